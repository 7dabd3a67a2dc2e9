"""LoRA by one option: what is trained, what is published, what is left, and that all of it can be loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from test_training_runs import TINY, add, even_letters, tasks

import sdk
from sdk.policies.models import load_model
from sdk.trainer.config import TrainConfig
from sdk.trainer.grpo import Reference
from sdk.trainer.lora import keep_model, load_kept, merged_state, plain_model, with_adapters
from sdk.trainer.shared_prefix import share_prefixes

LORA = {**TINY, "lora.r": 4, "grpo.learning_rate": 1e-3, "grpo.max_steps": 2}


def adapted(folder: Path, *, seed: int = 0, moved: bool = True) -> Any:
    """The tiny model with adapters that do something."""
    model = with_adapters(load_model(str(folder)).model, TrainConfig.of({"lora.r": 4, "seed": seed}))
    if moved:
        torch.manual_seed(5)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.3)
    return model


def test_only_the_adapters_are_trained_and_equal_seeds_make_equal_ones(tiny_model_dir: Path) -> None:
    one, same, other = (adapted(tiny_model_dir, seed=seed, moved=False) for seed in (1, 1, 2))
    trained = {name for name, weight in one.named_parameters() if weight.requires_grad}
    assert trained == {name for name, _ in one.named_parameters() if ".lora_" in name}
    assert len(trained) == 2 * 2 * 7  # two matrices, two layers, seven linear layers in each
    states = [model.state_dict() for model in (one, same, other)]
    assert all(states[0][name].equal(states[1][name]) for name in trained)
    assert not all(states[0][name].equal(states[2][name]) for name in trained)
    ids = torch.arange(9)[None]
    plain = load_model(str(tiny_model_dir)).model
    torch.testing.assert_close(one(input_ids=ids).logits, plain(input_ids=ids).logits)  # they change nothing at first


def test_the_merged_weights_say_what_the_adapted_model_says_and_fit_the_plain_one(tiny_model_dir: Path) -> None:
    model, plain = adapted(tiny_model_dir), load_model(str(tiny_model_dir)).model
    ids = torch.arange(9)[None]
    assert not torch.allclose(model(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-3)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    plain.load_state_dict(merged_state(model))
    torch.testing.assert_close(plain(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-4, atol=1e-4)
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())


def test_gradients_of_the_adapters_by_shared_prefixes_equal_those_of_the_padded_forward(tiny_model_dir: Path) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 10, 11]])
    gradients = []
    for shared in (False, True):
        model = adapted(tiny_model_dir)
        if shared:
            share_prefixes(plain_model(model))
            (-model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True).loss).backward()
        else:
            (-model(input_ids=ids, labels=ids).loss).backward()
        gradients.append([weight.grad for weight in model.parameters() if weight.requires_grad])
    assert any(one.abs().max() > 1e-3 for one in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_reference_beside_adapters_copies_the_adapters_alone(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = adapted(tiny_model_dir)
    reference = Reference(model, every=1, prepare=lambda one: None)
    ids = torch.arange(9)[None]
    begun = reference.model(input_ids=ids).logits
    for mine, copied in zip(model.parameters(), reference.model.parameters(), strict=True):
        assert (mine is copied) == (not mine.requires_grad)
    reference.save(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 100_000
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.mul_(2.0)
    assert reference.model(input_ids=ids).logits.equal(begun)
    reference.follow(model, 1)
    assert reference.model(input_ids=ids).logits.equal(model(input_ids=ids).logits)
    reference.load(tmp_path)
    assert reference.model(input_ids=ids).logits.equal(begun)


def test_what_is_kept_can_be_gone_on_from_and_is_bit_equal(tiny_model_dir: Path, tmp_path: Path) -> None:
    model, tokenizer = adapted(tiny_model_dir), load_model(str(tiny_model_dir)).tokenizer
    keep_model(model, tokenizer, tmp_path / "kept", family=None)
    again = adapted(tiny_model_dir, seed=3, moved=False)
    load_kept(again, tmp_path / "kept")
    assert all(weight.equal(again.state_dict()[name]) for name, weight in model.state_dict().items())
    with pytest.raises(sdk.ModelError, match="has no adapter"):
        load_kept(again, tiny_model_dir)


@pytest.mark.parametrize("shared_prefix", [True, False])
def test_a_run_with_lora_leaves_the_merged_model_and_the_adapter(
    tiny_model_dir: Path, tmp_path: Path, shared_prefix: bool
) -> None:
    config = {**LORA, "batching.shared_prefix": shared_prefix, "grpo.beta": 0.01, "grpo.ref_model_sync_steps": 1}
    run = sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", config)
    assert run.report.run["trained_parameters"] < run.report.run["parameters"] / 10
    merged, base = load_model(str(run.model_dir)).model, load_model(str(tiny_model_dir)).model
    names = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight")
    assert [merged.state_dict()[name].equal(base.state_dict()[name]) for name in names] == [True, False]
    ids = torch.arange(9)[None]
    beside = PeftModel.from_pretrained(base, str(run.model_dir / "adapter"))
    torch.testing.assert_close(beside(input_ids=ids).logits, merged(input_ids=ids).logits, rtol=1e-4, atol=1e-4)
    assert not list((run.run_dir / "checkpoints").glob("grpo*"))
    report = sdk.evaluate(
        [add], ["2 + 2?"], even_letters, model=str(run.model_dir), limits={"max_turns": 1, "max_turn_tokens": 4}
    )
    (condition,) = report.conditions.values()
    assert condition.unscored == 0
    lines = [line for line in sdk.traces.RunFolder.open_to_read(run.run_dir).read_metrics() if line["stage"] == "grpo"]
    # The engine samples with merged weights, the trainer computes with the adapters beside them: rounding apart.
    assert max(line["sampler_gap/max"] for line in lines if "sampler_gap/max" in line) < 1e-3


def test_an_alpha_without_adapters_is_refused() -> None:
    with pytest.raises(sdk.ConfigError, match="lora_alpha does nothing while r is 0"):
        TrainConfig.of({"lora.lora_alpha": 16})
