"""The seams of TRL that the trainer relies on. An upgrade that moves one fails here, not in a run."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_micro_batches import LOSSES
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

from sdk.policies.models import load_model
from sdk.records import TokenRow
from sdk.trainer.batch import Batch, BatchStats, TrainRow
from sdk.trainer.config import TrainConfig, TrlOptions
from sdk.trainer.grpo import RolloutTrainer, make_trainer
from sdk.trainer.micro_batches import Plan, collate_batch


def test_the_overridden_methods_keep_their_signatures() -> None:
    assert list(inspect.signature(GRPOTrainer._prepare_inputs).parameters) == ["self", "generation_batch"]
    assert list(inspect.signature(GRPOTrainer._compute_loss).parameters) == ["self", "model", "inputs"]
    wanted = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    assert list(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)[:7] == wanted


def test_what_is_overridden_for_sharded_weights_keeps_its_signatures() -> None:
    for method, parameters in {
        "create_accelerator_and_postprocess": ["self"],
        "save_model": ["self", "output_dir", "_internal_call"],
        "_save": ["self", "output_dir", "state_dict"],
        "_save_optimizer_and_scheduler": ["self", "output_dir"],
        "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
        "_get_grad_norm": ["self", "model", "grad_norm"],
    }.items():
        assert list(inspect.signature(getattr(Trainer, method)).parameters) == parameters, method


def test_the_loss_reads_the_tensors_we_give_it() -> None:
    source = inspect.getsource(GRPOTrainer._compute_loss)
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"):
        assert f'inputs["{name}"]' in source, name
    assert '"tool_mask" not in inputs' in source
    assert 'inputs.get("old_per_token_logps")' in source


def test_the_telemetry_that_is_switched_off_is_still_called_by_that_name() -> None:
    assert "self._send_telemetry()" in inspect.getsource(inspect.getmodule(GRPOTrainer.__base__))


def test_rollouts_are_asked_for_once_per_optimiser_step() -> None:
    # `_prepare_inputs` is ours; it relies on `_step` counting micro-batches from zero.
    assert "self._step += 1" in inspect.getsource(GRPOTrainer.training_step)


class Published:
    def __init__(self) -> None:
        self.versions: list[int] = []

    def publish(self, state: Any, *, version: int) -> None:
        self.versions.append(version)


def two_rows() -> list[TrainRow]:
    first = TokenRow(
        prompt_ids=[5, 6, 7],
        completion_ids=[8, 9, 10, 11],
        sampled=[True, True, False, True],
        logprobs=[0.0] * 4,
        versions=[0, 0, -1, 0],
    )
    second = TokenRow(
        prompt_ids=[5, 6], completion_ids=[8, 12], sampled=[True] * 2, logprobs=[0.0] * 2, versions=[0] * 2
    )
    return [TrainRow(first, 0.5), TrainRow(second, -1.5)]


@pytest.fixture
def trainer(tiny_model_dir: Path, tmp_path: Path) -> RolloutTrainer:
    loaded = load_model(str(tiny_model_dir))
    return make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig(group_size=2, prompts_per_step=1, grpo_steps=1),
        output_dir=str(tmp_path),
        collect=lambda step: Batch(),
        publisher=Published(),
        callbacks=[],
    )


def log_prob(model: Any, row: TokenRow, place: int) -> torch.Tensor:
    """The plain log-probability of one completion token."""
    ids = torch.tensor([row.prompt_ids + row.completion_ids[:place]])
    return model(input_ids=ids).logits[0, -1].log_softmax(-1)[row.completion_ids[place]]


def test_the_loss_is_the_policy_gradient_over_sampled_tokens_only(trainer: RolloutTrainer) -> None:
    rows = two_rows()
    for row in rows:  # on policy: the sampler's log-probabilities are the model's
        for place, sampled in enumerate(row.tokens.sampled):
            if sampled:
                row.tokens.logprobs[place] = log_prob(trainer.model, row.tokens, place).item()
    batch = Batch(groups=[rows], stats=BatchStats(scored_tokens=5, scored_rows=2))
    ((inputs,),) = collate_batch(batch, Plan(), loss_type="dapo", pad_id=0, device="cpu")
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, inputs)
    # By hand: five sampled tokens, ratio 1 each: -(3 x 0.5 + 2 x -1.5) / 5 = 0.3
    assert loss.item() == pytest.approx(0.3, abs=1e-4)
    loss.backward()
    got = [p.grad.clone() for p in trainer.model.parameters()]

    trainer.model.zero_grad()
    expected = sum(
        -row.advantage * log_prob(trainer.model, row.tokens, place) / 5
        for row in rows
        for place, sampled in enumerate(row.tokens.sampled)
        if sampled
    )
    expected.backward()
    for mine, plain in zip(got, trainer.model.parameters(), strict=True):
        torch.testing.assert_close(mine, plain.grad, rtol=1e-3, atol=1e-6)
    assert trainer._metrics["train"]["sampler_gap/max"][-1] < 1e-4


def test_trl_has_the_losses_that_we_name() -> None:
    source = inspect.getsource(GRPOTrainer._compute_loss)
    compared = re.findall(r"self\.loss_type (?:==|in) (\[.*?\]|\".*?\")", source)
    assert set(re.findall(r"\w+", " ".join(compared))) == set(LOSSES)


def test_options_that_are_handed_through_have_the_names_and_defaults_of_trls() -> None:
    theirs = {one.name: one.default for one in dataclasses.fields(GRPOConfig)}
    ours = {name: field.default for name, field in TrlOptions.model_fields.items()}
    assert ours.pop("lr_scheduler_type") == "constant"  # theirs falls from the first step on
    assert ours == {name: theirs[name] for name in ours}


def test_a_group_without_signal_changes_nothing(trainer: RolloutTrainer) -> None:
    ((inputs,),) = collate_batch(Batch(groups=[[]]), Plan(), loss_type="dapo", pad_id=0, device="cpu")
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in trainer.model.parameters())


@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_entropy_bonus_of_a_group_without_signal_is_the_mean_over_the_scored_tokens_of_the_step(
    trainer: RolloutTrainer, loss_type: str
) -> None:
    rows = [TrainRow(row.tokens, 0.0) for row in two_rows()]
    wanted = 0.0
    for row in rows:
        for place, sampled in enumerate(row.tokens.sampled):
            ids = torch.tensor([row.tokens.prompt_ids + row.tokens.completion_ids[:place]])
            with torch.no_grad():
                log_probs = trainer.model(input_ids=ids).logits[0, -1].log_softmax(-1)
            wanted -= sampled * float((log_probs.exp() * log_probs).sum()) / 5
    trainer.loss_type, trainer.entropy_coef, trainer._entropy_bonus_enabled = loss_type, 0.25, True
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    batch = Batch(groups=[rows], stats=BatchStats(scored_tokens=5, scored_rows=2))
    ((inputs,),) = collate_batch(batch, Plan(), loss_type=loss_type, pad_id=0, device="cpu")
    assert trainer._compute_loss(trainer.model, inputs).item() == pytest.approx(-0.25 * wanted, rel=1e-4)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_step_in_parts_gives_the_gradient_of_the_whole_step(trainer: RolloutTrainer, loss_type: str) -> None:
    one, other = two_rows()
    # Groups of different sizes, two of them without signal.
    groups = [[one, other], [], [other, one, one], [], [other, other]]
    tokens = sum(sum(row.tokens.sampled) for group in groups for row in group)
    # Two scored rollouts of groups without signal count in the average, though they are not forwarded.
    batch = Batch(groups=groups, stats=BatchStats(scored_tokens=tokens + 9, scored_rows=9))
    trainer.loss_type = loss_type
    gradients = []
    for parts in (1, 2, 5):
        trainer.model.train()
        trainer.model.zero_grad()
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = parts
        for (inputs,) in collate_batch(batch, Plan(parts), loss_type=loss_type, pad_id=0, device="cpu"):
            trainer._compute_loss(trainer.model, inputs).backward()
        gradients.append([p.grad.clone() for p in trainer.model.parameters()])
    largest = max(float(g.abs().max()) for g in gradients[0])
    assert largest > 0
    for parted in gradients[1:]:
        for whole, part in zip(gradients[0], parted, strict=True):
            torch.testing.assert_close(part, whole, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("loss_type", [one for one in LOSSES if one != "dr_grpo"])
def test_rows_without_signal_count_in_the_average_without_being_forwarded(
    trainer: RolloutTrainer, loss_type: str
) -> None:
    one, other = two_rows()
    idle = [TrainRow(one.tokens, 0.0), TrainRow(other.tokens, 0.0)]
    trainer.loss_type = loss_type
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
    losses = []
    for groups in ([[one, other], idle], [[one, other], []]):
        batch = Batch(groups=groups, stats=BatchStats(scored_tokens=10, scored_rows=4))
        ((inputs,),) = collate_batch(batch, Plan(), loss_type=loss_type, pad_id=0, device="cpu")
        trainer.model.train()
        losses.append(trainer._compute_loss(trainer.model, inputs).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != 0


@pytest.mark.parametrize(
    ("rise", "fall", "factors"),
    [
        (0, 0, [1, 1, 1, 1]),
        (1, 0, [0.5, 1, 1, 1]),
        (3, 0, [0.25, 0.5, 0.75, 1]),
        (0, 3, [1, 0.75, 0.5, 0.25]),
        (1, 1, [0.5, 1, 1, 0.5]),
    ],
)
def test_the_learning_rate_rises_and_falls_and_no_step_learns_nothing(
    tiny_model_dir: Path, tmp_path: Path, rise: int, fall: int, factors: list[float]
) -> None:
    config = TrainConfig(learning_rate=1e-3, learning_rate_rise=rise, learning_rate_fall=fall)
    rates = scheduled_rates(tiny_model_dir, tmp_path, config)
    assert rates == pytest.approx([1e-3 * factor for factor in factors])


def test_a_schedule_of_trls_own_takes_the_place_of_the_rise(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = TrainConfig(learning_rate=1e-3, grpo_steps=4, trl={"lr_scheduler_type": "linear"})
    assert scheduled_rates(tiny_model_dir, tmp_path, config) == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def scheduled_rates(model_dir: Path, output_dir: Path, config: TrainConfig) -> list[float]:
    loaded = load_model(str(model_dir))
    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=config,
        output_dir=str(output_dir),
        collect=lambda step: Batch(),
        publisher=Published(),
        callbacks=[],
    )
    trainer.create_optimizer_and_scheduler(num_training_steps=4)
    rates = []
    for _ in range(4):
        rates.append(trainer.lr_scheduler.get_last_lr()[0])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    return rates
