"""From the scores of a group to the advantages of its rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..records import Rollout
from ..rollouts.tree import RolloutTree

# ---------------------------------------------------------------------------------------------------------------------
# Advantages of rollouts that branched: at each branch point, its continuations are compared with each other.
#
# A rollout with its branches is cut into segments at its branch points, and each segment has a value: the score of the
# rollout that ends with it or, where it ends at a branch point, the mean of the values of all that goes on from there:
# a Monte Carlo estimate of what the state there is worth (as in VinePPO, arXiv 2410.01679). Segments that begin at the
# same point are one group, as in GRPO; those that begin with the task are compared over all rollouts of it. Without
# branches this is GRPO itself. Tree-GRPO (arXiv 2509.21240) compares within a tree, too, rollout with rollout.


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


# ---------------------------------------------------------------------------------------------------------------------

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does, so that tiny differences are not blown up."""


Scale = Literal["std", "none"]
Baseline = Literal["mean", "leave_one_out"]


def group_advantages(
    scores: Sequence[float | None], *, scale: Scale = "std", baseline: Baseline = "mean", negative_weight: float = 1.0
) -> list[float | None] | None:
    """Each score against its group: `A_i = (r_i - baseline) / (std + 1e-4)`.

    GRPO (arXiv 2402.03300, section 4.1.2) with the mean as baseline and the sample standard deviation; `scale="none"`
    leaves the division out (Dr. GRPO, arXiv 2503.20783). `baseline="leave_one_out"` takes the mean of the others, which
    does not depend on the rollout's own score (RLOO, arXiv 2402.14740). `negative_weight` multiplies what comes out
    below zero; like a baseline below the mean, it leans on what worked (asymmetric REINFORCE, arXiv 2506.20520).
    Unscored rollouts (`None`) take no part and get no advantage.
    Returns None when the group has no signal: fewer than two scores, or all of them equal.

    Example: `[1.0, 0.0, None, 0.0]` with `scale="none"` gives `[0.667, -0.333, None, -0.333]`.
    """
    scored = [score for score in scores if score is not None]
    if len(scored) < 2 or max(scored) == min(scored):
        return None
    mean = sum(scored) / len(scored)
    divisor = 1.0
    if scale == "std":
        divisor = math.sqrt(sum((score - mean) ** 2 for score in scored) / (len(scored) - 1)) + EPSILON
    # r_i less the mean of the other n - 1 scores is n / (n - 1) times r_i less the mean of all.
    factor = len(scored) / (len(scored) - 1) if baseline == "leave_one_out" else 1.0
    advantages = [None if score is None else factor * (score - mean) / divisor for score in scores]
    return weighed(advantages, negative_weight)


def weighed(advantages: Sequence[float | None], negative_weight: float) -> list[float | None]:
    """Advantages below zero times `negative_weight`, the others as they are."""
    return [one if one is None or one >= 0 else negative_weight * one for one in advantages]


def normalised_by_domain(
    groups: Sequence[Sequence[float | None] | None], domains: Sequence[str]
) -> list[list[float | None] | None]:
    """Centred advantages of a step's groups, each divided by the deviation of all those of its domain.

    `groups`: of each group its advantages, centred and not scaled; None where it has no signal. `domains`: of each
    group its domain. Within a domain a group that differs more weighs more, as without scaling; between domains the
    advantages are of one size, so that rewards from 0 to 100 do not drown those from 0 to 1.

    Example: groups `[1, -1]` and `[3, -3]` of one domain: the deviation is sqrt((1 + 1 + 9 + 9) / 4) = 2.236, and they
    become `[0.447, -0.447]` and `[1.342, -1.342]`.
    """
    squares: dict[str, list[float]] = {}
    for group, domain in zip(groups, domains, strict=True):
        squares.setdefault(domain, []).extend(one * one for one in group or [] if one is not None)
    deviations = {domain: math.sqrt(sum(found) / max(len(found), 1)) + EPSILON for domain, found in squares.items()}
    return [
        None if group is None else [None if one is None else one / deviations[domain] for one in group]
        for group, domain in zip(groups, domains, strict=True)
    ]
