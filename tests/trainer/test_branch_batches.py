"""Advantages and rows of rollouts that branched, by hand, and what every tree keeps to."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk import TrainConfig
from sdk.records import Rollout, Task, TokenRow, Verdict
from sdk.rollouts.branching import branch_id, grow_trees
from sdk.trainer.advantages import branch_advantages, group_advantages
from sdk.trainer.batch import build_batch
from sdk.trainer.tree_attention import build_prefix_tree

_fresh = itertools.count(100)


def played(name: str, turns: int, score: float | None, *, past: Rollout | None = None, at: int = 0) -> Rollout:
    """A rollout of turns of two tokens with one rendered token between them; up to turn `at` they are `past`'s."""
    ids: list[int] = []
    sampled: list[bool] = []
    for turn in range(turns):
        ids += [next(_fresh), next(_fresh)] + [7] * (turn < turns - 1)
        sampled += [True, True] + [False] * (turn < turns - 1)
    if past is not None:
        ids[: 3 * at] = past.rows[0].completion_ids[: 3 * at]
    row = TokenRow(
        prompt_ids=[1, 2],
        completion_ids=ids,
        sampled=sampled,
        logprobs=[-0.5 * s for s in sampled],
        versions=[0 if s else -1 for s in sampled],
    )
    verdict = None if score is None else Verdict(score=score)
    return Rollout(
        id=name, task=Task(prompt="p"), rows=[row], turns=turns, sampled_tokens=2 * turns, verdict=verdict, group="g"
    )


def branch(root: Rollout, at: int, number: int, turns: int, score: float | None) -> Rollout:
    return played(branch_id(root.id, at, number), turns, score, past=root, at=at)


def test_each_branch_point_is_a_group_and_what_comes_before_is_worth_its_mean() -> None:
    a = played("a", 3, 1.0)
    b = played("b", 1, 0.0)
    group = [a, branch(a, 1, 0, 2, 0.0), branch(a, 2, 0, 3, 0.0), b]
    segments = branch_advantages(grow_trees(group), scale="none")
    # At turn 2: 1 and 0, mean 0.5. At turn 1: 0.5 and 0, mean 0.25. At the beginning: 0.25 and 0.
    found = [(s.rollout.id, s.begin, s.end, s.value, s.advantage) for s in segments]
    assert found == [
        ("a", 0, 1, 0.25, pytest.approx(0.125)),
        ("b", 0, None, 0.0, pytest.approx(-0.125)),
        ("a", 1, 2, 0.5, pytest.approx(0.25)),
        ("a~1.0", 1, None, 0.0, pytest.approx(-0.25)),
        ("a", 2, None, 1.0, pytest.approx(0.5)),
        ("a~2.0", 2, None, 0.0, pytest.approx(-0.5)),
    ]


def test_an_unscored_branch_takes_no_part_and_gets_no_advantage() -> None:
    a = played("a", 2, 1.0)
    group = [a, branch(a, 1, 0, 2, None), branch(a, 1, 1, 2, 0.0), played("b", 1, 0.0)]
    segments = {s.rollout.id + str(s.begin): s for s in branch_advantages(grow_trees(group), scale="none")}
    assert segments["a0"].value == 0.5
    assert segments["a~1.01"].advantage is None
    assert segments["a1"].advantage == pytest.approx(0.5)


def test_a_branch_costs_its_own_tokens_alone() -> None:
    a = played("a", 3, 1.0)
    batch = build_batch([[a, branch(a, 2, 0, 3, 0.0), branch(a, 2, 1, 3, 0.0), played("b", 1, 0.0)]])
    (rows,) = batch.groups
    tree = build_prefix_tree([row.tokens.prompt_ids + row.tokens.completion_ids for row in rows])
    # Two prompt tokens, 8 of the root (6 sampled, 2 rendered), 2 of each branch, 2 of the other rollout.
    assert len(tree.token_ids) == 2 + 8 + 2 + 2 + 2
    assert (batch.stats.sampled_tokens, batch.stats.trained_tokens) == (12, 12)
    assert batch.stats.rollouts == 4


scores = st.none() | st.sampled_from([0.0, 0.5, 1.0])


@st.composite
def groups(draw: st.DrawFn) -> list[Rollout]:
    group: list[Rollout] = []
    for number in range(draw(st.integers(1, 4))):
        turns = draw(st.integers(1, 4))
        root = played(f"r{number}", turns, draw(scores))
        group.append(root)
        for at in range(1, turns):
            for which in range(draw(st.integers(0, 2))):
                group.append(branch(root, at, which, draw(st.integers(at + 1, 5)), draw(scores)))
    return group


@given(groups())
def test_every_sampled_token_is_trained_at_most_once_and_each_branch_point_sums_to_zero(
    group: list[Rollout],
) -> None:
    batch = build_batch([group], TrainConfig.of({"grpo.scale_rewards": "none"}))
    (rows,) = batch.groups
    trained = [t for row in rows for t, s in zip(row.tokens.completion_ids, row.tokens.sampled, strict=True) if s]
    assert len(trained) == len(set(trained)) == batch.stats.trained_tokens
    there = {t for r in group for row in r.rows for t, s in zip(row.completion_ids, row.sampled, strict=True) if s}
    assert set(trained) <= there
    assert batch.stats.sampled_tokens == len(there)
    points: dict[tuple[str, int], float] = {}
    for segment in branch_advantages(grow_trees(group), scale="none"):
        at = ("", 0) if segment.begin == 0 else (segment.rollout.id.split("~")[0], segment.begin)
        points[at] = points.get(at, 0.0) + (segment.advantage or 0.0)
    assert all(total == pytest.approx(0, abs=1e-9) for total in points.values())


@given(st.lists(scores, min_size=2, max_size=6))
def test_without_branches_it_is_what_it_is_without_trees(given_scores: list[float | None]) -> None:
    group = [played(f"r{n}", 2, score) for n, score in enumerate(given_scores)]
    advantages = group_advantages(given_scores) or [None] * len(group)
    found = [(row.tokens, row.advantage) for row in build_batch([group]).groups[0]]
    assert found == [(r.rows[0], one) for r, one in zip(group, advantages, strict=True) if one is not None]
    found = [(row.tokens, row.advantage) for row in build_batch([group], TrainConfig.of({"grpo.beta": 0.1})).groups[0]]
    assert found == [(r.rows[0], one or 0.0) for r, one in zip(group, advantages, strict=True) if r.scored]
