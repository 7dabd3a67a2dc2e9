"""Advantages of rollouts that branched: at each branch point, its continuations are compared with each other.

A rollout with its branches is cut into segments at its branch points, and each segment has a value: the score of the
rollout that ends with it or, where it ends at a branch point, the mean of the values of all that goes on from there:
a Monte Carlo estimate of what the state there is worth (as in VinePPO, arXiv 2410.01679). Segments that begin at the
same point are one group, as in GRPO; those that begin with the task are compared over all rollouts of it. Without
branches this is GRPO itself. Tree-GRPO (arXiv 2509.21240) compares within a tree, too, rollout with rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..records import Rollout
from ..rollouts.tree import RolloutTree
from .advantages import Baseline, Scale, group_advantages


@dataclass(frozen=True)
class Segment:
    """Turns of a rollout from one branch point to the next, or to its end."""

    rollout: Rollout
    begin: int
    """Its first turn."""
    end: int | None
    """The turn after its last one; None: it goes to the rollout's end."""
    value: float | None
    """None where nothing that goes on from it was scored."""
    advantage: float | None = None
    """None where its group has no signal, or nothing that goes on from it was scored."""


def branch_advantages(
    trees: Sequence[RolloutTree],
    *,
    scale: Scale = "std",
    baseline: Baseline = "mean",
    negative_weight: float = 1.0,
) -> list[Segment]:
    """The segments of all rollouts of one task, with their advantages; the options are those of `group_advantages`.

    Example, one rollout with score 1 that branched once before its second turn, its branch scored 0, and another
    rollout with score 0: the first turn is worth 1/2 and compared with the other rollout's 0; the two second turns,
    1 and 0, are compared with each other.
    """
    groups: list[list[Segment]] = [[]]
    for tree in trees:
        first, *points = _segments(tree)
        groups[0] += first
        groups += points
    found = []
    for group in groups:
        advantages = group_advantages(
            [segment.value for segment in group], scale=scale, baseline=baseline, negative_weight=negative_weight
        )
        for segment, advantage in zip(group, advantages or [None] * len(group), strict=True):
            found.append(Segment(segment.rollout, segment.begin, segment.end, segment.value, advantage))
    return found


def _segments(tree: RolloutTree) -> list[list[Segment]]:
    """The segments that begin with the task, then those of each branch point, in the order of the turns."""
    points = sorted(tree.branches)
    groups: list[list[Segment]] = []
    value = _score(tree.root)
    end: int | None = None
    for point in reversed(points):  # a value rests on those after it
        group = [Segment(tree.root, point, end, value)]
        group += [Segment(branch, point, None, _score(branch)) for branch in tree.branches[point]]
        groups.append(group)
        scored = [segment.value for segment in group if segment.value is not None]
        value, end = (sum(scored) / len(scored) if scored else None), point
    return [[Segment(tree.root, 0, end, value)], *reversed(groups)]


def _score(rollout: Rollout) -> float | None:
    return rollout.verdict.score if rollout.scored and rollout.verdict is not None else None
