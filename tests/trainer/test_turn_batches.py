"""Advantages and rows of turns, by hand, and what every group keeps to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_branch_batches import played
from test_overlap_and_branches import TASKS, TINY, even_letters

import sdk
from sandboxes.helpdesk import Helpdesk
from sdk import TrainConfig
from sdk.errors import ToolbakeError, VerifierError
from sdk.records import Rollout, Verdict
from sdk.traces import RunFolder
from sdk.trainer.advantages import turn_advantages
from sdk.trainer.batch import build_batch
from sdk.verifiers import all_of, run_verifier, watched, weighted

REWARDS = st.lists(st.none() | st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5)

BY_TURN = TrainConfig.of({"grpo.advantages": "turn"})


def with_rewards(name: str, rewards: list[float] | None, **fields: Any) -> Rollout:
    turns = len(rewards or [0.0])
    rollout = played(name, turns, None).model_copy(update=fields)
    if rewards is not None:
        rollout.verdict = Verdict(score=rewards[-1], turn_rewards=rewards)
    return rollout


def test_a_turn_is_credited_with_what_follows_and_not_with_what_came_before() -> None:
    # Mean 1/3; less it 2/3, -1/3 and -1/3; summed from each turn on.
    found = turn_advantages([[1.0, 0.0], [0.0], None], scale="none")
    assert found == [pytest.approx([1 / 3, -1 / 3]), pytest.approx([-1 / 3]), None]
    # 1, 0, 0, 1: mean 1/2, sample deviation sqrt(4 * 1/4 / 3) = 0.57735, so each is 0.5 / 0.57745 = 0.86588 off.
    found = turn_advantages([[1.0, 0.0], [0.0, 1.0]])
    assert found == [pytest.approx([0.0, -0.86588], abs=1e-5), pytest.approx([0.0, 0.86588], abs=1e-5)]


def test_a_group_of_one_rollout_or_of_equal_rewards_teaches_nothing() -> None:
    assert turn_advantages([[1.0, 0.0], None]) is None
    assert turn_advantages([[0.5, 0.5], [0.5]]) is None
    assert turn_advantages([[0.0, 1.0], [0.0, 1.0], None]) is None  # nothing tells one of them from another


@given(REWARDS)
def test_the_first_turns_sum_to_nothing_and_one_turn_each_is_plain_grpo(rewards: list[list[float] | None]) -> None:
    found = turn_advantages(rewards, scale="none")
    if found is not None:
        firsts = [one[0] for one in found if one is not None]
        assert math.fsum(firsts) == pytest.approx(0.0, abs=1e-9)
    singles = [None if one is None else one[:1] for one in rewards]
    group = [with_rewards(str(place), one) for place, one in enumerate(singles)]
    by_turn, by_rollout = build_batch([group], BY_TURN), build_batch([group])
    assert [row.tokens for row in by_turn.groups[0]] == [row.tokens for row in by_rollout.groups[0]]
    advantages = [row.advantage for row in by_rollout.groups[0]]
    assert [row.advantage for row in by_turn.groups[0]] == pytest.approx(advantages)


def test_each_turn_is_a_row_and_each_sampled_token_is_trained_once() -> None:
    first, second = with_rewards("a", [1.0, 0.0]), with_rewards("b", [0.0])
    batch = build_batch([[first, second, with_rewards("c", None)]], BY_TURN.changed({"grpo.scale_rewards": "none"}))
    (rows,) = batch.groups
    assert [row.advantage for row in rows] == pytest.approx([1 / 3, -1 / 3, -1 / 3])
    assert [row.tokens.sampled for row in rows] == [[True] * 2, [False] * 3 + [True] * 2, [True] * 2]
    assert rows[1].tokens.completion_ids == first.rows[0].completion_ids
    stats = batch.stats
    assert (stats.rollouts, stats.unscored, stats.groups_with_signal) == (3, 1, 1)
    assert (stats.trained_rows, stats.trained_tokens, stats.scored_tokens, stats.sampled_tokens) == (3, 6, 6, 8)


def test_where_the_loss_has_a_part_for_every_turn_those_without_signal_have_rows_of_advantage_zero() -> None:
    group = [with_rewards("a", [1.0, 1.0]), with_rewards("b", [1.0]), with_rewards("c", None)]
    assert build_batch([group], BY_TURN).groups == [[]]
    (rows,) = build_batch([group], BY_TURN.changed({"grpo.beta": 0.1})).groups
    assert [row.advantage for row in rows] == [0.0, 0.0, 0.0]


def test_a_rollout_that_was_cut_off_counts_in_the_mean_and_is_masked_once() -> None:
    cut = with_rewards("a", [1.0, 0.0], stop_reason="token_limit")
    batch = build_batch(
        [[cut, with_rewards("b", [0.0])]],
        BY_TURN.changed({"grpo.scale_rewards": "none", "grpo.mask_truncated_completions": True}),
    )
    assert [row.advantage for row in batch.groups[0]] == pytest.approx([-1 / 3])
    assert batch.stats.cut_off == 1


def test_a_verdict_without_rewards_by_turn_is_named() -> None:
    with pytest.raises(ToolbakeError, match="rollout 'a' with its 2 turns has the turn_rewards None"):
        build_batch([[played("a", 2, 1.0), with_rewards("b", [0.0])]], BY_TURN)


async def test_rewards_that_are_not_one_for_each_turn_leave_the_rollout_unscored() -> None:
    with pytest.raises(VerifierError, match="gave 1 turn_rewards for rollout 'a', which has 2 assistant messages"):
        await run_verifier(lambda rollout: Verdict(score=1, turn_rewards=[1.0]), played("a", 2, None))
    with pytest.raises(ValidationError, match="the reward of turn 2 is nan"):
        Verdict(score=1, turn_rewards=[0.0, math.nan])


async def test_combined_verifiers_add_the_rewards_that_their_parts_give() -> None:
    def step(rollout: Rollout) -> Verdict:
        return Verdict(score=1, turn_rewards=[1.0, 2.0])

    def other(rollout: Rollout) -> Verdict:
        return Verdict(score=0, turn_rewards=[0.0, 10.0])

    def silent(rollout: Rollout) -> float:
        return 1.0

    rollout = played("a", 2, None)
    for verifier, wanted in (
        (all_of(step, other, silent), [1.0, 12.0]),
        (weighted({step: 1.0, other: 0.5, silent: 1.0}), [1.0, 7.0]),
        (watched(step, other), [1.0, 2.0]),
        (watched(silent, other), None),
        (all_of(silent), None),
    ):
        assert (await run_verifier(verifier, rollout)).turn_rewards == wanted


def last_turn_even(rollout: Rollout) -> Verdict:
    even = float(even_letters(rollout))
    return Verdict(score=even, turn_rewards=[0.0] * (rollout.turns - 1) + [even])


@pytest.mark.timeout(300)
def test_a_run_trains_by_turns_and_its_verdicts_keep_their_rewards(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = {**TINY, "grpo.advantages": "turn", "grpo.max_steps": 1}
    sdk.train(Helpdesk(), TASKS, last_turn_even, str(tiny_model_dir), tmp_path / "run", config)
    run = RunFolder.open_to_read(tmp_path / "run")
    rollouts = run.read_rollouts("grpo")
    assert all(len(r.verdict.turn_rewards or []) == r.turns for r in rollouts if r.verdict)
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    (line,) = [line for line in run.read_metrics() if line["stage"] == "grpo"]
    assert line["trained_tokens"] == build_batch(list(groups.values()), BY_TURN).stats.trained_tokens > 0


@pytest.mark.parametrize(
    "other", [{"rollouts.branches": 1}, {"grpo.domain": "topic"}, {"grpo.baseline": "leave_one_out"}]
)
def test_what_compares_rollouts_is_refused_beside_turns(other: dict[str, Any]) -> None:
    with pytest.raises(
        sdk.ConfigError, match=f"{next(iter(other)).removeprefix('grpo.')} decides how rollouts are compared"
    ):
        sdk.TrainConfig.of({"grpo.advantages": "turn", **other})
