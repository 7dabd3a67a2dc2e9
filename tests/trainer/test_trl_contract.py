"""The seams of TRL that the trainer relies on. An upgrade that moves one fails here, not in a run."""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from fresh_models import fresh_model
from huggingface_hub import constants
from test_micro_batches import LOSSES
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

import sdk
from sdk.records import TokenRow
from sdk.trainer.base_trainer import check_seams
from sdk.trainer.batch import Batch, BatchStats, TrainRow
from sdk.trainer.config import BatchingOptions, GrpoOptions, OffPolicyOptions, TrainConfig, TrlOptions
from sdk.trainer.grpo import RolloutTrainer, _grpo_config, make_trainer
from sdk.trainer.micro_batches import Plan, collate_batch
from sdk.trainer.sharding import prepare_arguments
from sdk.trainer.warm_start import make_warm_start


def test_the_overridden_methods_keep_their_signatures() -> None:
    for method, parameters in {
        "training_step": ["self", "model", "inputs", "num_items_in_batch"],
        "create_accelerator_and_postprocess": ["self"],
        "save_model": ["self", "output_dir", "_internal_call"],
        "_save_optimizer_and_scheduler": ["self", "output_dir"],
        "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    }.items():
        assert list(inspect.signature(getattr(Trainer, method)).parameters) == parameters, method


def test_shards_are_refused_where_transformers_has_not_the_methods_that_write_and_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_seams()
    for name in ("_save_optimizer_and_scheduler", "_load_from_checkpoint"):
        with monkeypatch.context() as without:
            without.delattr(Trainer, name)
            with pytest.raises(sdk.ConfigError, match=rf"transformers \S+ has no Trainer\.{name}.*install"):
                check_seams()


def test_the_loss_reads_the_tensors_we_give_it() -> None:
    source = inspect.getsource(GRPOTrainer._compute_loss)
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"):
        assert f'inputs["{name}"]' in source, name
    assert '"tool_mask" not in inputs' in source
    assert 'inputs.get("old_per_token_logps")' in source


def test_deepspeed_starts_also_where_it_does_not_tell_which_operations_it_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for known in ({"deepspeed_shm_comm": True}, None):
        ops = SimpleNamespace(**({} if known is None else {"__compatible_ops__": known}))
        monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(ops=ops))
        prepare_arguments(SimpleNamespace())
        assert known in ({"deepspeed_shm_comm": False}, None)


def test_no_telemetry_is_sent_where_the_environment_allows_it(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr("huggingface_hub.utils._telemetry._start_telemetry_thread", lambda: None)
    monkeypatch.setattr("huggingface_hub.utils._telemetry._TELEMETRY_QUEUE", SimpleNamespace(put=sent.append))
    monkeypatch.delenv("CI", raising=False)
    loaded = fresh_model(tiny_model_dir)
    GRPOTrainer(
        loaded.model,
        reward_funcs=len,
        args=GRPOConfig(str(tmp_path), report_to="none", use_cpu=True, bf16=False),
        train_dataset=Dataset.from_list([{"prompt": "p"}] * 8),
        processing_class=loaded.tokenizer,
    )
    assert len(sent) == 1  # TRL itself sends
    for made in (trainer_in(loaded, tmp_path), warm_start_in(loaded, tmp_path)):
        assert made is not None
    assert len(sent) == 1
    assert constants.HF_HUB_DISABLE_TELEMETRY is False


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
    return trainer_in(fresh_model(tiny_model_dir), tmp_path)


def trainer_in(loaded: Any, folder: Path) -> RolloutTrainer:
    return make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig.of({"grpo.num_generations": 2, "grpo.prompts_per_step": 1, "grpo.max_steps": 1}),
        output_dir=str(folder),
        collect=lambda step: Batch(),
        publisher=Published(),
        callbacks=[],
    )


def warm_start_in(loaded: Any, folder: Path) -> Any:
    rows = [row.tokens for row in two_rows()]
    config = TrainConfig.of({"warm_start.max_steps": 1, "warm_start.batch_size": 1})
    return make_warm_start(loaded.model, loaded.tokenizer, rows, config=config, output_dir=str(folder), callbacks=[])


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
    loss = trainer.compute_loss(trainer.model, {"parts": [inputs]})
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
    figures: dict[str, float] = {}
    trainer.log(figures)
    assert figures["sampler_gap/max"] < 1e-4


def test_trl_has_the_losses_that_we_name() -> None:
    source = inspect.getsource(GRPOTrainer._compute_loss)
    compared = re.findall(r"self\.loss_type (?:==|in) (\[.*?\]|\".*?\")", source)
    assert set(re.findall(r"\w+", " ".join(compared))) == set(LOSSES)


def test_options_that_are_handed_through_have_the_names_and_defaults_of_trls() -> None:
    theirs = {one.name: one.default for one in dataclasses.fields(GRPOConfig)}
    assert {name: field.default for name, field in TrlOptions.model_fields.items()} == {
        name: theirs[name] for name in TrlOptions.model_fields
    }


def test_options_with_a_meaning_of_ours_alone_have_no_name_of_trls() -> None:
    theirs = {one.name for one in dataclasses.fields(GRPOConfig)}
    ours = set(GrpoOptions.model_fields) | set(BatchingOptions.model_fields) | set(OffPolicyOptions.model_fields)
    assert ours - theirs == {
        *("prompts_per_step", "advantages", "baseline", "domain"),
        *("micro_batches", "tokens_per_micro_batch", "shared_prefix", "offload_optimizer"),
        *("max_off_policy_steps", "importance_sampling_mode", "importance_sampling_clip_max"),
    }


def test_a_group_without_signal_changes_nothing(trainer: RolloutTrainer) -> None:
    ((inputs,),) = collate_batch(Batch(groups=[[]]), Plan(), loss_type="dapo", pad_id=0, device="cpu")
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, {"parts": [inputs]})
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
    assert trainer.compute_loss(trainer.model, {"parts": [inputs]}).item() == pytest.approx(-0.25 * wanted, rel=1e-4)


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
            trainer.compute_loss(trainer.model, {"parts": [inputs]}).backward()
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
        losses.append(trainer.compute_loss(trainer.model, {"parts": [inputs]}).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != 0


@pytest.mark.parametrize(
    ("warmup", "decay", "factors"),
    [
        (0, 0, [1, 1, 1, 1]),
        (1, 1, [1, 1, 1, 1]),
        (2, 0, [0.5, 1, 1, 1]),
        (4, 1, [0.25, 0.5, 0.75, 1]),
        (0, 4, [1, 0.75, 0.5, 0.25]),
        (2, 2, [0.5, 1, 1, 0.5]),
        (0.5, 2, [0.5, 1, 1, 0.5]),
    ],
)
def test_the_learning_rate_rises_and_falls_and_no_step_learns_nothing(
    tiny_model_dir: Path, tmp_path: Path, warmup: float, decay: int, factors: list[float]
) -> None:
    schedule = {"num_decay_steps": decay, "decay_type": "linear"}
    rates = scheduled_rates(tiny_model_dir, tmp_path, warmup_steps=warmup, lr_scheduler_kwargs=schedule)
    assert rates == pytest.approx([1e-3 * factor for factor in factors])


@pytest.mark.parametrize(
    ("kind", "warmup", "factors"),
    [
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("linear", 1, [1, 0.75, 0.5, 0.25]),
        ("linear", 2, [0.5, 1, 2 / 3, 1 / 3]),
        ("constant_with_warmup", 4, [0.25, 0.5, 0.75, 1]),
        ("constant", None, [1, 1, 1, 1]),
        ("cosine", 0, [1, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_any_schedule_of_transformers_is_taken_by_its_name(
    tiny_model_dir: Path, tmp_path: Path, kind: str, warmup: float | None, factors: list[float]
) -> None:
    rates = scheduled_rates(tiny_model_dir, tmp_path, lr_scheduler_type=kind, warmup_steps=warmup)
    assert rates == pytest.approx([1e-3 * factor for factor in factors])


def scheduled_rates(model_dir: Path, output_dir: Path, **schedule: Any) -> list[float]:
    loaded = fresh_model(model_dir)
    config = TrainConfig(grpo=GrpoOptions(learning_rate=1e-3, max_steps=4, **schedule))
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


def test_a_process_trains_on_one_gpu_also_where_it_sees_several(tmp_path: Path) -> None:
    ours, theirs = _grpo_config(TrainConfig(), str(tmp_path)), GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    for arguments in (ours, theirs):
        arguments._n_gpu = 4
    assert (ours.n_gpu, theirs.n_gpu) == (1, 4)
