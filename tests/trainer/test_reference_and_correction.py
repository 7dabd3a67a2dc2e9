"""The divergence from a reference, and what is done where sampler and trainer disagree."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_models import fresh_model
from hypothesis import example, given
from hypothesis import strategies as st

import sdk
from sdk.evidence.saved_weights import REFERENCE_FILE
from sdk.records import TokenRow
from sdk.trainer.batch import Batch, BatchStats, TrainRow
from sdk.trainer.config import OffPolicyOptions, TrainConfig
from sdk.trainer.grpo import RolloutTrainer, importance_weights, make_trainer
from sdk.trainer.micro_batches import Plan, collate_batch
from sdk.trainer.warm_start import make_warm_start


class Nowhere:
    def publish(self, state_dict: Any, *, version: int) -> None:
        pass


ROW = TokenRow(
    prompt_ids=[5, 6, 7],
    completion_ids=[8, 9, 10, 11],
    sampled=[True, True, False, True],
    logprobs=[-7.5, -8.0, 0.0, -8.5],
    versions=[0, 0, -1, 0],
)


def trainer_for(model_dir: Path, output_dir: Path, **options: Any) -> RolloutTrainer:
    loaded = fresh_model(model_dir)
    config = TrainConfig.of({"grpo.num_generations": 2, "grpo.prompts_per_step": 1, "grpo.max_steps": 1, **options})
    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=config,
        output_dir=str(output_dir),
        collect=lambda step: Batch([[TrainRow(ROW, 1.0)]], BatchStats(scored_tokens=3, scored_rows=1)),
        publisher=Nowhere(),
        callbacks=[],
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def loss_of(trainer: RolloutTrainer, advantage: float = 1.0, row: TokenRow = ROW) -> torch.Tensor:
    batch = Batch([[TrainRow(row, advantage)]], BatchStats(scored_tokens=3, scored_rows=1))
    ((inputs,),) = collate_batch(batch, Plan(), loss_type="dapo", pad_id=0, device="cpu")
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, {"parts": [inputs]})
    assert isinstance(loss, torch.Tensor)
    return loss


def logps(model: Any, row: TokenRow = ROW) -> list[float]:
    """The plain log-probability of each sampled token."""
    ids = torch.tensor([row.prompt_ids + row.completion_ids])
    with torch.no_grad():
        table = torch.log_softmax(model(input_ids=ids).logits[0].float(), dim=-1)
    start = len(row.prompt_ids)
    return [
        table[start + place - 1, row.completion_ids[place]].item()
        for place, sampled in enumerate(row.sampled)
        if sampled
    ]


def test_the_divergence_from_the_reference_is_added_to_the_loss(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny_model_dir, tmp_path, **{"grpo.beta": 0.5})
    reference = logps(trainer._reference.model)  # type: ignore[union-attr]
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.mul_(1.5)
    policy = logps(trainer.model)
    assert policy != pytest.approx(reference, abs=1e-3)
    sampled = [value for value, is_sampled in zip(ROW.logprobs, ROW.sampled, strict=True) if is_sampled]
    # exp(ref - policy) - (ref - policy) - 1 (GRPO's estimator), times the ratio to the sampler, which makes its
    # gradient that of the reverse KL (DeepSeek-V3.2; TRL's default), over the three sampled tokens
    terms = [
        math.exp(p - old) * (math.exp(r - p) - (r - p) - 1)
        for r, p, old in zip(reference, policy, sampled, strict=True)
    ]
    wanted = sum(terms) / 3
    assert loss_of(trainer, advantage=0.0).item() == pytest.approx(0.5 * wanted, rel=1e-3)


def test_the_reference_stays_where_it_was_until_it_is_time(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny_model_dir, tmp_path, **{"grpo.beta": 0.1, "grpo.ref_model_sync_steps": 3})
    reference = trainer._reference
    assert reference is not None
    begun = logps(reference.model)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.mul_(1.5)
    for step in (0, 1, 2):
        reference.follow(trainer.model, step)
        assert logps(reference.model) == begun
    reference.follow(trainer.model, 3)
    assert logps(reference.model) == pytest.approx(logps(trainer.model))


@pytest.mark.parametrize(("kind", "weights"), [("token_truncate", [1.5, 2.0, 0.25]), ("token_mask", [1.5, 0.0, 0.0])])
def test_weights_of_tokens_on_which_sampler_and_trainer_disagree(kind: str, weights: list[float]) -> None:
    ratios = torch.tensor([[1.5, 3.0, 0.25]])
    options = OffPolicyOptions(importance_sampling_mode=kind, importance_sampling_clip_max=2.0)  # type: ignore[arg-type]
    assert importance_weights(ratios.log(), torch.zeros(1, 3), options)[0].tolist() == pytest.approx(weights)


@pytest.mark.parametrize("kind", ["token_truncate", "token_mask"])
def test_the_corrected_gradient_is_the_policy_gradient_of_each_token_times_its_weight(
    tiny_model_dir: Path, tmp_path: Path, kind: str
) -> None:
    correction = {"importance_sampling_mode": kind, "importance_sampling_clip_max": 1.5}
    trainer = trainer_for(tiny_model_dir, tmp_path, off_policy=correction)
    trainer_logps = logps(trainer.model)
    sampled = [value for value, is_sampled in zip(ROW.logprobs, ROW.sampled, strict=True) if is_sampled]
    ratios = [math.exp(t - s) for t, s in zip(trainer_logps, sampled, strict=True)]
    within = [1 / 1.5 <= ratio <= 1.5 for ratio in ratios]
    assert len(set(within)) == 2 or kind == "token_truncate"  # some tokens are masked and some are not
    weights = [min(r, 1.5) if kind == "token_truncate" else r * w for r, w in zip(ratios, within, strict=True)]
    # With a ratio of 1 the loss of a token is minus its weight; the mean is over the three sampled ones.
    assert loss_of(trainer).item() == pytest.approx(-sum(weights) / 3, rel=1e-3)


@given(
    st.lists(st.floats(-3, 3) | st.floats(allow_nan=False, width=32), min_size=1, max_size=8),
    st.sampled_from(["token_truncate", "token_mask"]),
)
@example([200.0, -200.0, math.inf, -math.inf, 0.0], "token_mask")
def test_weights_are_the_ratio_within_the_cap_and_finite_however_far_the_two_are_apart(
    gaps: list[float], kind: str
) -> None:
    options = OffPolicyOptions(importance_sampling_mode=kind, importance_sampling_clip_max=2.5)  # type: ignore[arg-type]
    weights = importance_weights(torch.tensor([gaps]), torch.zeros(1, len(gaps)), options)[0].tolist()
    for gap, weight in zip(gaps, weights, strict=True):
        ratio = math.exp(min(gap, 100.0))
        if math.isclose(abs(gap), math.log(2.5), rel_tol=1e-5):  # rounding decides on which side of the cap it is
            continue
        within = 1 / 2.5 <= ratio <= 2.5
        wanted = min(ratio, 2.5) if kind == "token_truncate" else ratio * within
        assert weight == pytest.approx(wanted, rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    ("kind", "loss_type"), [("none", "dapo"), ("none", "sapo"), ("token_truncate", "dapo"), ("token_mask", "dapo")]
)
def test_a_token_that_the_sampler_held_for_impossible_leaves_the_gradient_finite(
    tiny_model_dir: Path, tmp_path: Path, kind: str, advantage: float, loss_type: str
) -> None:
    correction = {} if kind == "none" else {"importance_sampling_mode": kind, "importance_sampling_clip_max": 1.5}
    trainer = trainer_for(tiny_model_dir, tmp_path, off_policy=correction, **{"grpo.loss_type": loss_type})
    row = ROW.model_copy(update={"logprobs": [-7.5, -500.0, 0.0, -8.5]})
    loss = loss_of(trainer, advantage, row)
    loss.backward()
    gradients = [weight.grad for weight in trainer.model.parameters()]
    assert all(bool(one.isfinite().all()) for one in gradients if one is not None)
    assert any(bool(one.any()) for one in gradients if one is not None)


def test_without_a_correction_ratios_are_as_they_are_up_to_e_to_the_20th(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny_model_dir, tmp_path)
    found = logps(trainer.model)
    sampled = [found[0] - 19.0, found[1] - 21.0, 0.0, found[2] + 0.1]
    loss = loss_of(trainer, -1.0, ROW.model_copy(update={"logprobs": sampled}))  # below zero nothing is clipped above
    assert loss.item() == pytest.approx((math.exp(19.0) + math.exp(20.0) + math.exp(-0.1)) / 3, rel=1e-3)


def test_a_gradient_that_is_not_finite_ends_the_run_before_its_update(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny_model_dir, tmp_path, **{"grpo.save_steps": 1})
    trainer._collect = lambda step: Batch([[TrainRow(ROW, math.inf)]], BatchStats(scored_tokens=3, scored_rows=1))
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    with pytest.raises(sdk.ToolbakeError, match=r"the norm of the gradient is (nan|inf) in step 0: no update was made"):
        trainer.train()
    assert all(one.equal(other) for one, other in zip(before, trainer.model.parameters(), strict=True))
    assert not (tmp_path / "checkpoint-1").exists()


def test_a_warm_start_whose_gradient_is_not_finite_ends_before_its_update(tiny_model_dir: Path, tmp_path: Path) -> None:
    loaded = fresh_model(tiny_model_dir)
    config = TrainConfig.of({"warm_start.max_steps": 1, "warm_start.batch_size": 1})
    trainer = make_warm_start(
        loaded.model, loaded.tokenizer, [ROW], config=config, output_dir=str(tmp_path), callbacks=[]
    )
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(math.nan)
    with pytest.raises(sdk.ToolbakeError, match="the norm of the gradient is nan in step 0"):
        trainer.train()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grpo.ref_model_sync_steps": 5}, "ref_model_sync_steps does nothing while beta is 0"),
        ({"off_policy.importance_sampling_clip_max": 3.0}, "importance_sampling_clip_max does nothing"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(sdk.ConfigError, match=words):
        TrainConfig.of(options)


def test_a_checkpoint_keeps_the_reference_and_training_goes_on_with_it(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny_model_dir, tmp_path, **{"grpo.beta": 0.1, "grpo.save_steps": 1})
    begun = logps(trainer._reference.model)  # type: ignore[union-attr]
    trainer.train()
    checkpoint = tmp_path / "checkpoint-1"
    assert (checkpoint / REFERENCE_FILE).exists()
    assert logps(trainer.model) != pytest.approx(begun, abs=1e-9)

    resumed = trainer_for(tiny_model_dir, tmp_path, **{"grpo.beta": 0.1})
    with torch.no_grad():
        for weight in resumed._reference.model.parameters():  # type: ignore[union-attr]
            weight.zero_()
    resumed.train(str(checkpoint))
    assert logps(resumed._reference.model) == pytest.approx(begun, rel=1e-5)  # type: ignore[union-attr]
