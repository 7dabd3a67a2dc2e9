"""Digests of weights: experts, tied heads, shards, half precision, adapters; in memory as in the files they go into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from evidence_runs import get_order, verified
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)

import sdk
from sdk.evidence.saved_weights import files_digest, files_of
from sdk.records import Rollout
from sdk.traces import RunFolder
from sdk.trainer.sampler import weights_digest

SMALL = {
    **{"vocab_size": 32, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "bos_token_id": 1,
    },
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, PretrainedConfig] = {
    "experts fused in memory, one by one in the files": MixtralConfig(**SMALL, **EXPERTS),
    "experts beside a tied head": Qwen3MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=4, tie_word_embeddings=True
    ),
    "experts fused in both": GptOssConfig(**SMALL, **EXPERTS, head_dim=4, rope_parameters={"rope_type": "default"}),
    "no experts, a tied head": LlamaConfig(**SMALL, tie_word_embeddings=True),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_weights_have_the_digest_of_the_files_they_are_saved_into(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family], dtype=dtype)
    found = weights_digest(model)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    assert len(files_of(tmp_path / "shards", adapter=False)) > 1
    for folder in ("whole", "shards"):
        assert files_digest(files_of(tmp_path / folder, adapter=False)) == found["sha256"], folder
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "shards", dtype=dtype)
    assert weights_digest(again) == found
    with torch.no_grad():
        list(again.parameters())[-1].view(-1)[0] += 1
    assert weights_digest(again)["sha256"] != found["sha256"]


def answers_oddly(rollout: Rollout) -> float:
    """In place of an outcome: right about every second time."""
    return float(sum(map(ord, rollout.messages[-1].content)) % 2)


CONFIG: dict[str, Any] = {
    **{
        "grpo.max_steps": 2,
        "grpo.num_generations": 4,
        "grpo.prompts_per_step": 1,
        "warm_start.max_steps": 0,
        "evaluation.heldout": 1,
        "evaluation.max_served": 0,
    },
    **{"grpo.save_steps": 1, "probes.tasks": 0, "alarms.action": "off", "grpo.learning_rate": 1e-2},
    "limits": {"max_turns": 1, "max_turn_tokens": 4},
}
TASKS = [{"id": f"t{number}", "prompt": f"Where is order {number}?"} for number in range(5)]


def published(run: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (run / "evidence.jsonl").read_text().splitlines()]
    return [entry["data"] for entry in entries if entry["kind"] == "published"]


def changed(file: Path) -> None:
    """One number of one tensor."""
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    next(iter(tensors.values())).view(-1)[0] += 1
    save_file(tensors, file)


@pytest.mark.timeout(300)
def test_a_run_with_lora_is_verified_by_its_adapters_and_a_changed_adapter_is_named(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    run = tmp_path / "run"
    sdk.train([get_order], TASKS, answers_oddly, tiny_model_folder, run, {**CONFIG, "lora.r": 2})
    versions = published(run)
    assert [(one["version"], one["of"]) for one in versions if one["of"] == "adapter"] == [
        (version, "adapter") for version in range(3)
    ]
    assert {one["of"] for one in versions} == {"weights", "adapter"}, "the model's own weights have a digest, too"
    found = verified(run, answers_oddly)
    assert found.findings == []
    adapted = json.loads((run / "model" / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert adapted == sorted(adapted), "in every process the same bytes, so that the same call again changes nothing"
    sdk.train([get_order], TASKS, answers_oddly, tiny_model_folder, run, {**CONFIG, "lora.r": 2})
    assert verified(run, root=found.root).findings == []
    changed(run / "model" / "adapter" / "adapter_model.safetensors")
    assert {finding.file for finding in verified(run).findings} == {
        "model",
        "model/adapter/adapter_model.safetensors",
    }


@pytest.mark.timeout(300)
def test_a_run_of_a_mixture_of_experts_is_verified_with_its_weights(tmp_path: Path, tiny_model_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 1024, "num_hidden_layers": 1}
    torch.manual_seed(0)
    folder = tmp_path / "experts"
    AutoModelForCausalLM.from_config(MixtralConfig(**SMALL | EXPERTS | ids | sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    run = tmp_path / "run"
    sdk.train([get_order], TASKS, answers_oddly, folder, run, CONFIG)
    steps = [line for line in RunFolder.open_to_read(run).read_metrics() if line["stage"] == "grpo"]
    assert all(line["aux_loss"] > 0 for line in steps)  # of balanced experts
    assert steps
    assert [one["version"] for one in published(run)] == [0, 1, 2]
    assert len({one["sha256"] for one in published(run)}) == 3
    assert verified(run, answers_oddly).findings == []
    changed(run / "model" / "model.safetensors")
    assert {finding.file for finding in verified(run).findings} == {"model", "model/model.safetensors"}
