"""What a training holds in memory: said before it begins, and kept below what is said."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_of_a_training import PROMPTS, length, look_up
from test_micro_batches import Nowhere, step_batch

import sdk
from sdk.policies.models import load_model
from sdk.trainer.config import TrainConfig
from sdk.trainer.grpo import make_trainer

LEAN = {"batching": {"micro_batches": 2, "offload_optimizer": True}}
GIGABYTE = 10**9


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
def test_two_steps_of_16_rollouts_of_the_embedded_model_take_less_than_3_gigabytes(tmp_path: Path) -> None:
    script = Path(__file__).with_name("memory_of_a_training.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), json.dumps(LEAN)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    assert min(measured["rows"]) >= 8
    assert measured["peak"] < 3 * GIGABYTE


def weights_after(
    model_dir: Path, folder: Path, checkpoint: Path | None = None, **options: Any
) -> tuple[list[torch.Tensor], Any]:
    loaded = load_model(str(model_dir))
    seen: list[Any] = []

    def collect(step: int) -> Any:
        if step:
            seen.extend(value for one in trainer.optimizer.state.values() for value in one.values())
        return step_batch()

    config = {"grpo.num_generations": 2, "grpo.prompts_per_step": 1, "grpo.max_steps": 3, "grpo.save_steps": 2}
    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig.of({**config, **options}),
        output_dir=str(folder),
        collect=collect,
        publisher=Nowhere(),
        callbacks=[],
    )
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return [weight.detach().clone() for weight in loaded.model.parameters()], seen


def test_moments_in_a_file_make_the_same_steps_also_from_a_checkpoint_and_leave_no_file(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    expected, _ = weights_after(tiny_model_dir, tmp_path / "plain")
    found, moments = weights_after(tiny_model_dir, tmp_path / "lean", **{"batching.offload_optimizer": True})
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    large = [value for value in moments if value.nbytes >= mmap.PAGESIZE]
    assert large
    assert all(value.data_ptr() % mmap.PAGESIZE == 0 for value in large)
    resumed, _ = weights_after(
        tiny_model_dir, tmp_path / "later", tmp_path / "lean" / "checkpoint-2", **{"batching.offload_optimizer": True}
    )
    assert all(torch.equal(one, other) for one, other in zip(resumed, expected, strict=True))
    files = {path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*")}
    assert {path.relative_to(tmp_path / "lean") for path in (tmp_path / "lean").rglob("*")} == files


class Lines(sdk.progress.Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_too_little_memory_ends_a_training_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sdk.policies.embedded.scheduler.free_bytes", lambda: 2 * GIGABYTE)
    with pytest.raises(sdk.ConfigError, match=r"2\.0 GB of memory are free.* at least 3\.0 GB.*lora\.r=16"):
        sdk.train([look_up], PROMPTS, length, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_memory_that_may_run_out_is_a_warning_that_names_what_lowers_it(
    monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("sdk.trainer.compute_plan.weight_bytes", lambda _: 540_000_000)
    monkeypatch.setattr("sdk.policies.embedded.scheduler.free_bytes", lambda: int(3.5 * GIGABYTE))

    def said(**options: Any) -> list[str]:
        lines = Lines()
        config = {
            "evaluation": {"heldout": 1, "validation": 0, "max_served": 0},
            "warm_start": {"max_steps": 0},
            "grpo": {"max_steps": 1, "prompts_per_step": 2, "num_generations": 2},
            "probes": {"tasks": 0},
            "limits": {"max_turns": 1, "max_turn_tokens": 2},
            **options,
        }
        folder = tmp_path / str(len(options))
        sdk.train([look_up], PROMPTS, length, str(tiny_model_dir), output_dir=folder, config=config, progress=lines)
        return [line for line in lines.said if "GB of memory" in line]

    (warning,) = said()
    assert "may take 4.0 GB" in warning
    assert "batching.offload_optimizer=true" in warning
    assert "batching.gradient_checkpointing" not in warning, "it is set"
    assert said(**LEAN) == []
    (warning,) = said(batching={"gradient_checkpointing": False, "offload_optimizer": True}, seed=1)
    assert "batching.gradient_checkpointing=true" in warning
