"""Advantages by hand, and what becomes of each rollout of a step."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdk import TrainConfig
from sdk.records import LARGEST, Failure, Rollout, Task, TokenRow, Verdict
from sdk.trainer.advantages import group_advantages
from sdk.trainer.batch import build_batch


def test_scores_are_centred_and_divided_by_the_sample_deviation() -> None:
    # mean 0.25, deviations (0.75, -0.25, -0.25, -0.25): sample variance 0.75 / 3 = 0.25, standard deviation 0.5
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0])
    assert advantages == pytest.approx([0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001])


def test_without_scaling_they_are_only_centred() -> None:
    assert group_advantages([1.0, 0.0, None, 0.0], scale="none") == pytest.approx([2 / 3, -1 / 3, None, -1 / 3])


@pytest.mark.parametrize("scores", [[], [None, None], [1.0], [0.5, None], [1.0, 1.0, 1.0], [0.0, 0.0, None]])
def test_a_group_without_a_difference_has_no_signal(scores: list[float | None]) -> None:
    assert group_advantages(scores) is None


@given(st.lists(st.none() | st.floats(-100, 100), min_size=2, max_size=16), st.sampled_from(["std", "none"]))
def test_advantages_sum_to_zero_and_keep_the_order(scores: list[float | None], scale: str) -> None:
    advantages = group_advantages(scores, scale=scale)  # type: ignore[arg-type]
    if advantages is None:
        return
    assert [a is None for a in advantages] == [s is None for s in scores]
    pairs = [(s, a) for s, a in zip(scores, advantages, strict=True) if s is not None and a is not None]
    assert math.fsum(a for _, a in pairs) == pytest.approx(0, abs=1e-9 * max(1, *(abs(a) for _, a in pairs)))
    assert all(a1 <= a2 for (s1, a1) in pairs for (s2, a2) in pairs if s1 < s2)


def rollout(name: str, score: float | None, rows: int = 1) -> Rollout:
    row = TokenRow(
        prompt_ids=[1, 2],
        completion_ids=[3, 4, 5],
        sampled=[True, False, True],
        logprobs=[-0.5, 0.0, -0.25],
        versions=[0, -1, 0],
    )
    return Rollout(
        id=name,
        task=Task(prompt="p"),
        rows=[row] * rows,
        sampled_tokens=2 * rows,
        verdict=None if score is None else Verdict(score=score),
        failure=Failure(boundary="tools", kind="ServerDied", message="gone") if score is None else None,
    )


def test_an_unscored_rollout_is_masked_out_and_counted_not_scored_as_zero() -> None:
    batch = build_batch([[rollout("a", 1.0), rollout("b", None), rollout("c", 1.0)]])
    assert batch.stats.unscored == 1
    # With the failure counted as 0 this group would have a signal.
    assert batch.stats.groups_with_signal == 0
    assert batch.stats.groups_all_right == 1
    assert batch.groups == [[]]


def test_every_group_is_counted_once() -> None:
    groups = [
        [rollout("a", 1.0), rollout("b", 0.0)],
        [rollout("c", 1.0), rollout("d", 1.0)],
        [rollout("e", 0.0), rollout("f", 0.0)],
        [rollout("g", None), rollout("h", 1.0)],
    ]
    stats = build_batch(groups).stats
    counted = (stats.groups_with_signal, stats.groups_all_right, stats.groups_all_wrong, stats.groups_unscored)
    assert counted == (1, 1, 1, 1)
    assert stats.groups == 4
    assert stats.mean_score == pytest.approx(4 / 7)
    assert (stats.rollouts, stats.unscored, stats.sampled_tokens) == (8, 1, 16)
    assert (stats.trained_rows, stats.trained_tokens) == (2, 4)
    assert (stats.scored_rows, stats.scored_tokens) == (7, 14)


@pytest.mark.parametrize(
    ("score", "threshold", "right"), [(0.3, 1.0, False), (0.3, 0.3, True), (-1.0, -1.0, True), (1 - 2**-53, 1.0, True)]
)
def test_a_group_without_signal_is_right_where_its_rollouts_are_successes(
    score: float, threshold: float, right: bool
) -> None:
    config = TrainConfig.of({"evaluation.success_threshold": threshold})
    stats = build_batch([[rollout("a", score), rollout("b", score)]], config).stats
    assert (stats.groups_all_right, stats.groups_all_wrong) == (right, not right)


def test_where_the_loss_has_a_part_for_every_rollout_groups_without_signal_have_rows_of_advantage_zero() -> None:
    groups = [
        [rollout("a", 1.0), rollout("b", 1.0)],
        [rollout("c", 0.0), rollout("d", None)],
        [rollout("e", 1.0), rollout("f", 0.0)],
    ]
    batch = build_batch(groups, TrainConfig.of({"grpo.scale_rewards": "none", "grpo.beta": 0.1}))
    # What broke is masked out all the same.
    assert [[row.advantage for row in rows] for rows in batch.groups] == [[0.0, 0.0], [0.0], [0.5, -0.5]]
    assert (batch.stats.trained_rows, batch.stats.groups_with_signal) == (5, 1)
    assert (batch.stats.scored_rows, batch.stats.scored_tokens) == (5, 10)


def test_all_rows_of_a_split_rollout_share_its_advantage() -> None:
    batch = build_batch(
        [[rollout("a", 1.0, rows=2), rollout("b", 0.0)]], TrainConfig.of({"grpo.scale_rewards": "none"})
    )
    assert [row.advantage for row in batch.groups[0]] == [0.5, 0.5, -0.5]


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    # others of the first: (0 + 0 + 1) / 3; of a zero: (1 + 0 + 1) / 3
    advantages = group_advantages([1.0, 0.0, 0.0, 1.0], scale="none", baseline="leave_one_out")
    assert advantages == pytest.approx([1 - 1 / 3, -2 / 3, -2 / 3, 1 - 1 / 3])


@pytest.mark.parametrize("scale", ["group", "none"])
def test_advantages_of_the_largest_scores_are_finite_in_float32(scale: Any) -> None:
    for scores in ([LARGEST, -LARGEST], [LARGEST, LARGEST, 0.0], [LARGEST, 1.0, 0.0, -1.0]):
        advantages = group_advantages(scores, scale=scale)
        assert advantages is not None
        assert torch.tensor(advantages, dtype=torch.float32).square().isfinite().all()


def test_a_rollout_cut_off_by_length_is_counted_in_the_baseline_but_not_trained() -> None:
    group = [rollout("a", 1.0), rollout("b", 0.0), rollout("c", 0.0)]
    group[2].stop_reason = "token_limit"
    (kept,) = build_batch([group], TrainConfig.of({"grpo.scale_rewards": "none"})).groups
    (masked,) = (
        batch := build_batch(
            [group], TrainConfig.of({"grpo.scale_rewards": "none", "grpo.mask_truncated_completions": True})
        )
    ).groups
    assert [row.advantage for row in kept] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert [row.advantage for row in masked] == pytest.approx([2 / 3, -1 / 3])
    assert (batch.stats.cut_off, batch.stats.unscored) == (1, 0)
    assert (batch.stats.scored_rows, batch.stats.scored_tokens) == (3, 4)  # TRL counts its row, without its tokens


def test_with_dynamic_sampling_only_groups_with_signal_are_averaged_over() -> None:
    signal, idle = [rollout("a", 1.0), rollout("b", 0.0)], [rollout("c", 1.0), rollout("d", 1.0)]
    assert build_batch([signal, idle]).stats.scored_rows == 4
    stats = build_batch([signal, idle], TrainConfig.of({"curriculum.dynamic_sampling_rounds": 1})).stats
    assert (stats.scored_rows, stats.scored_tokens, stats.rollouts) == (2, 4, 4)
