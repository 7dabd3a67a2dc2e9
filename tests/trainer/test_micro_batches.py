"""A step in parts of bounded size: nothing lost, the same gradient, and what each way of saving memory saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from fresh_models import fresh_model
from hypothesis import given
from hypothesis import strategies as st
from test_shared_prefix import CONFIGS, padded_rows, tiny
from torch.utils._python_dispatch import TorchDispatchMode

import sdk
from sdk.records import TokenRow
from sdk.trainer import shared_prefix
from sdk.trainer.batch import Batch, BatchStats, TrainRow
from sdk.trainer.config import LossType, TrainConfig
from sdk.trainer.grpo import RolloutTrainer, make_trainer
from sdk.trainer.micro_batches import Plan, over_budget, within_budget
from sdk.trainer.shared_prefix import checkpoint_layers, share_prefixes

LOSSES = get_args(LossType)


def row(prompt: list[int], completion: list[int], advantage: float = 1.0) -> TrainRow:
    count = len(completion)
    tokens = TokenRow(
        prompt_ids=prompt,
        completion_ids=completion,
        sampled=[True] * count,
        logprobs=[-8.0] * count,
        versions=[0] * count,
    )
    return TrainRow(tokens, advantage)


def ids(one: TrainRow) -> list[int]:
    return one.tokens.prompt_ids + one.tokens.completion_ids


def cost(rows: list[TrainRow], shared: bool) -> int:
    if shared:
        return len({tuple(ids(one)[:end]) for one in rows for end in range(1, len(ids(one)) + 1)})
    longest = max(len(one.tokens.prompt_ids) for one in rows) + max(len(one.tokens.completion_ids) for one in rows)
    return len(rows) * longest  # prompts are padded on the left, completions on the right


TOKENS = st.lists(st.integers(5, 7), min_size=1, max_size=6)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=8), st.integers(1, 30), st.booleans())
def test_every_row_is_in_one_part_and_no_part_is_larger_than_its_budget(
    pairs: list[tuple[list[int], list[int]]], budget: int, shared: bool
) -> None:
    rows = [row(prompt, completion, float(place)) for place, (prompt, completion) in enumerate(pairs)]
    parts = within_budget(rows, budget, shared_prefix=shared)
    assert sorted(one.advantage for part in parts for one in part) == [one.advantage for one in rows]
    for part in parts:
        assert len(part) <= 1 or cost(part, shared) <= budget
    assert over_budget(Batch(groups=[rows]), budget) == sum(len(ids(one)) > budget for one in rows)


def test_rows_of_a_group_share_their_part_as_long_as_it_has_room() -> None:
    rows = [row([5] * 10, [number, 6]) for number in (7, 8, 9)]
    # 10 of the prompt and 2 for each row: 14 tokens hold two rows, and the third pays for the prompt again.
    assert [len(part) for part in within_budget(rows, 14, shared_prefix=True)] == [2, 1]
    assert [len(part) for part in within_budget(rows, 16, shared_prefix=True)] == [3]
    assert [len(part) for part in within_budget(rows, 16, shared_prefix=False)] == [1, 1, 1]


def test_without_shared_prefixes_a_part_costs_what_it_is_padded_to() -> None:
    """A row with a long prompt beside one with a long completion, as where a template rewrote history."""
    rows = [row([5], [6] * 9), row([5] * 9, [7])]
    # 10 tokens each, and 2 x (9 + 9) beside each other: prompts are padded on the left, completions on the right.
    assert [len(part) for part in within_budget(rows, 35, shared_prefix=False)] == [1, 1]
    assert [len(part) for part in within_budget(rows, 36, shared_prefix=False)] == [2]


@given(st.integers(1, 5), st.integers(0, 9), st.sampled_from([None, 6, 40]), st.integers(1, 3))
def test_processes_share_a_step_without_overlap_in_equally_many_parts(
    processes: int, rows: int, budget: int | None, parts: int
) -> None:
    batch = Batch(groups=[[row([5, place], [6, 7], float(place))] for place in range(rows)])
    plans = [
        Plan(1 if budget else parts, budget, True, processes, process).parts_of(batch) for process in range(processes)
    ]
    assert len({tuple(tuple(part.height for part in step) for step in plan) for plan in plans}) == 1
    assert all(len(part.rows) <= part.height for plan in plans for step in plan for part in step)
    assert sorted(one.advantage for plan in plans for step in plan for part in step for one in part.rows) == list(
        range(rows)
    )


class Nowhere:
    def publish(self, state: Any, *, version: int) -> None:
        pass


def step_batch() -> Batch:
    prompt = list(range(5, 25))
    groups = [
        [row(prompt, [30 + member, 40, 41 + member], 1.0 if member % 2 else -1.0) for member in range(4)],
        [],
        [row([*prompt, 50], [60 + member] * 5, 0.5 - member) for member in range(3)],
    ]
    return Batch(groups=groups, stats=BatchStats(scored_tokens=35, scored_rows=9))


def parts(budget: int | None) -> dict[str, Any]:
    return {"batching.tokens_per_micro_batch": budget}


def trainer_for(model_dir: Path, output_dir: Path, **options: Any) -> RolloutTrainer:
    loaded = fresh_model(model_dir)
    if options.get("grpo.loss_type") == "cispo":
        options["grpo.epsilon_high"] = 5.0
    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig.of({"grpo.num_generations": 2, "grpo.prompts_per_step": 1, "grpo.max_steps": 1, **options}),
        output_dir=str(output_dir),
        collect=lambda step: step_batch(),
        publisher=Nowhere(),
        callbacks=[],
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def step_of(trainer: RolloutTrainer) -> tuple[float, list[torch.Tensor]]:
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, trainer.next_inputs())
    loss.backward()
    return loss.item(), [weight.grad.clone() for weight in trainer.model.parameters()]


@pytest.mark.parametrize("loss_type", LOSSES)
def test_parts_by_a_budget_give_the_loss_and_the_gradient_of_the_whole_step(
    tiny_model_dir: Path, tmp_path: Path, loss_type: str
) -> None:
    whole, parted = (
        trainer_for(tiny_model_dir, tmp_path, **{"grpo.loss_type": loss_type}, **parts(budget)) for budget in (None, 28)
    )
    (loss, gradients), (same, others) = step_of(whole), step_of(parted)
    assert len(parted._micro_batches[0]) >= 3
    assert same == pytest.approx(loss, rel=1e-4)
    assert_same(others, gradients)


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    largest = max(float(g.abs().max()) for g in wanted)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_entropy_bonus_weighs_the_same_however_many_parts_a_step_has(
    tiny_model_dir: Path, tmp_path: Path, loss_type: str
) -> None:
    def bonus(budget: int | None) -> list[torch.Tensor]:
        """The gradient of the bonus alone."""
        options = {"grpo.loss_type": loss_type, **parts(budget)}
        with_it, without = (
            step_of(trainer_for(tiny_model_dir, tmp_path, **{**options, "grpo.entropy_coef": weight}))
            for weight in (10.0, 0.0)
        )
        return [one - other for one, other in zip(with_it[1], without[1], strict=True)]

    assert_same(bonus(28), bonus(None))


def trained(trainer: RolloutTrainer) -> list[torch.Tensor]:
    trainer.train()
    return [weight.detach().clone() for weight in trainer.model.parameters()]


@pytest.mark.parametrize(
    "more",
    [{}, {"trl.max_grad_norm": 0}, {"off_policy.importance_sampling_mode": "token_truncate"}],
    ids=["none", "not clipped", "cap"],
)
def test_two_iterations_on_a_batch_are_two_steps_that_are_given_the_same_batch(
    tiny_model_dir: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    same = {"grpo.lr_scheduler_type": "constant", "grpo.learning_rate": 1e-3, "grpo.prompts_per_step": 2, **more}
    same["batching.micro_batches"] = 2

    def weights(name: str, **options: Any) -> list[torch.Tensor]:
        return trained(trainer_for(tiny_model_dir, tmp_path / name, **same, **options))

    one_step = weights("once", **{"grpo.max_steps": 1})
    iterated = weights("twice", **{"grpo.max_steps": 1, "grpo.num_iterations": 2})
    two_steps = weights("again", **{"grpo.max_steps": 2})
    largest = max(float((new - old).abs().max()) for new, old in zip(two_steps, one_step, strict=True))
    assert largest > 1e-4
    if "off_policy.importance_sampling_mode" in more:
        # The correction is that of the first update: the second one is clipped.
        assert max(float((a - b).abs().max()) for a, b in zip(iterated, one_step, strict=True)) > 1e-4
        return
    for one, other in zip(iterated, two_steps, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=largest * 1e-3)


@pytest.mark.parametrize("optimizer", [{}, {"batching.offload_optimizer": True}, {"grpo.num_iterations": 2}], ids=str)
def test_a_step_without_signal_leaves_the_weights_and_the_momentum_as_they_are(
    tiny_model_dir: Path, tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    options = {"grpo.lr_scheduler_type": "constant", "grpo.learning_rate": 1e-3, **optimizer}
    nothing = Batch([[]], BatchStats(groups_all_right=1, scored_tokens=3, scored_rows=1))

    def weights(name: str, signal: list[bool]) -> list[torch.Tensor]:
        trainer = trainer_for(tiny_model_dir, tmp_path / name, **options, **{"grpo.max_steps": len(signal)})
        collect = trainer._collect
        trainer._collect = lambda step: collect(step) if signal[step] else nothing
        return trained(trainer)

    untrained = [weight.detach() for weight in fresh_model(tiny_model_dir).model.parameters()]
    once, later = weights("once", [True]), weights("later", [True, False, False])
    assert all(torch.equal(one, other) for one, other in zip(once, later, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(once, untrained, strict=True))
    twice, between = weights("twice", [True, True]), weights("between", [False, True, False, True])
    assert all(torch.equal(one, other) for one, other in zip(twice, between, strict=True))


def test_rollouts_that_are_larger_than_a_part_are_trained_and_counted(tiny_model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny_model_dir, tmp_path, **parts(24))
    step_of(trainer)
    figures: dict[str, float] = {}
    trainer.log(figures)
    assert figures["rows_over_budget"] == 3  # of 26 tokens each; the others have 23
    assert figures["micro_batches"] == 7


def test_the_gap_between_sampler_and_trainer_is_that_of_the_step_in_however_many_parts(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    found = []
    for name, options in (("whole", {}), ("parts", parts(24))):
        trainer = trainer_for(tiny_model_dir, tmp_path / name, **options)
        step_of(trainer)
        figures: dict[str, float] = {}
        trainer.log(figures)
        found.append([figures["sampler_gap/mean"], figures["sampler_gap/max"]])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[0][1] > found[0][0] * 1.01


@pytest.mark.parametrize("shared", [True, False])
def test_a_part_without_rows_has_no_part_in_the_figures_of_a_step(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    one_group = Batch(groups=step_batch().groups[:2], stats=BatchStats(scored_tokens=12, scored_rows=4))
    monkeypatch.setattr(f"{__name__}.step_batch", lambda: one_group)
    figures: list[dict[str, float]] = []
    for count in (1, 2):
        trainer = trainer_for(
            tiny_model_dir,
            tmp_path / str(count),
            **{"grpo.prompts_per_step": 2, "batching.micro_batches": count, "batching.shared_prefix": shared},
            **{"grpo.beta": 0.1, "off_policy.importance_sampling_mode": "none"},
        )
        trainer.train()
        figures.append(next(one for one in trainer.state.log_history if "loss" in one))
    for name in ("loss", "grad_norm", "entropy", "clip_ratio/region_mean", "kl"):
        assert figures[1][name] == pytest.approx(figures[0][name], rel=1e-4), name


def test_layers_computed_again_give_the_same_gradient_bit_for_bit_and_keep_less() -> None:
    rows, mask, labels = padded_rows()
    results, kept = [], []
    for again in (False, True):
        model = tiny(CONFIGS[0])
        share_prefixes(model)
        if again:
            checkpoint_layers(model)
        model.train()
        saved: dict[int, int] = {}

        def pack(tensor: torch.Tensor, saved: dict[int, int] = saved) -> torch.Tensor:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(input_ids=rows, attention_mask=mask, labels=labels, fused_lm_head=True)
        output.loss.backward()
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        kept.append(sum(size for place, size in saved.items() if place not in weights))
        results.append([output.loss, *(weight.grad for weight in model.parameters())])
    assert all(one.equal(other) for one, other in zip(*results, strict=True))
    assert kept[1] < kept[0] / 2


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes, the weights themselves and views of them aside."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.numbers = 0
        self._weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self._weights:
                self.numbers = max(self.numbers, one.numel())
        return made


def test_the_logits_are_never_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefix, "_HEAD_CHUNK", 4)
    model = tiny(type(CONFIGS[0])(**{**CONFIGS[0].to_dict(), "vocab_size": 5000, "tie_word_embeddings": True}))
    share_prefixes(model)
    rows, mask, labels = padded_rows()
    model.requires_grad_(False)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)  # no gradient of the head, which is as large
    with Largest(model) as seen:
        output = model(input_ids=rows, attention_mask=mask, labels=labels, fused_lm_head=True)
        output.loss.backward()
    predicting = int(output.label_mask.sum())
    assert predicting * 5000 > 4 * 5000 * 6  # the whole would be many chunks
    assert 4 * 5000 <= seen.numbers < 2 * 4 * 5000


def test_bf16_computes_in_bfloat16_and_keeps_the_weights_in_float32(tiny_model_dir: Path, tmp_path: Path) -> None:
    exact, rough = (trainer_for(tiny_model_dir, tmp_path, **{"batching.bf16": bf16}) for bf16 in (False, True))
    exact_loss, exact_gradients = step_of(exact)
    with rough.compute_loss_context_manager():
        loss = rough.compute_loss(rough.model.train(), rough.next_inputs())
    loss.backward()
    gradients = [weight.grad for weight in rough.model.parameters()]
    assert {weight.dtype for weight in rough.model.parameters()} == {g.dtype for g in gradients} == {torch.float32}
    assert loss.item() != exact_loss
    # bfloat16 has 8 bits: a relative error of 1/256 for each operation, a few percent of a gradient's norm.
    assert loss.item() == pytest.approx(exact_loss, abs=0.03 * max(1, abs(exact_loss)))
    error = sum(float((a - b).square().sum()) for a, b in zip(gradients, exact_gradients, strict=True)) ** 0.5
    norm = sum(float(b.square().sum()) for b in exact_gradients) ** 0.5
    assert 0 < error < 0.1 * norm


@pytest.mark.parametrize(
    "options", [{"batching.gradient_checkpointing": True, "batching.bf16": True, "batching.tokens_per_micro_batch": 28}]
)
def test_a_step_with_every_way_of_saving_memory_moves_the_weights(
    tiny_model_dir: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    trainer = trainer_for(tiny_model_dir, tmp_path, **options)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert any(not one.equal(other) for one, other in zip(before, trainer.model.parameters(), strict=True))


def test_a_model_that_cannot_compute_layers_again_trains_without_and_a_warning_names_it(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("transformers.LlamaPreTrainedModel.supports_gradient_checkpointing", False)
    trainer = trainer_for(tiny_model_dir, tmp_path)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert "LlamaForCausalLM cannot compute layers again" in caplog.text
    assert any(not one.equal(other) for one, other in zip(before, trainer.model.parameters(), strict=True))


def test_two_ways_of_planning_parts_are_refused() -> None:
    with pytest.raises(sdk.ConfigError, match="micro_batches is 2 beside tokens_per_micro_batch"):
        TrainConfig.of({"batching.micro_batches": 2, "batching.tokens_per_micro_batch": 4096})
