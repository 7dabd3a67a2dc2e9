"""Advantages of the segments of a step's rollouts, computed from the scores of their groups. Plain data: no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import ToolbakeError
from ..records import Rollout
from ..rollouts.branching import RolloutTree, grow_trees, sampled_turns
from .config import Baseline, GrpoOptions, Scale

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
    trees: Sequence[RolloutTree], *, scale: Scale = "group", baseline: Baseline = "mean"
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
        advantages = group_advantages([segment.value for segment in group], scale=scale, baseline=baseline)
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
# Advantages of turns: each turn is credited with what was earned from it on, and not with what came before.
#
# Process supervision as in DeepSeekMath (arXiv 2402.03300, section 4.1.3), with assistant messages as its steps: the
# rewards of all turns of all rollouts of a task are normalised together, and a turn's advantage is the sum of the
# normalised rewards from that turn to the rollout's end. Rows are those of branches: each turn is one,
# its past an untrained prefix that the turns share.


def turn_advantages(
    rewards: Sequence[Sequence[float] | None], *, scale: Scale = "group"
) -> list[list[float] | None] | None:
    """`A_t = sum over k >= t of (r_k - mean) / (std + 1e-4)`, mean and sample deviation over all turns of the group.

    `rewards`: of each rollout of a task those of its turns; None where it is unscored, which gets no advantages.
    `scale="none"` leaves the division out.
    Returns None when the group has no signal: fewer than two rollouts with rewards, or the same in all of them, or all
    rewards equal.

    Example: `[[1.0, 0.0], [0.0], None]` with `scale="none"`: the mean is 1/3, less it they are `[[2/3, -1/3], [-1/3]]`,
    and summed from each turn on `[[1/3, -1/3], [-1/3], None]`.
    """
    if len({tuple(one) for one in rewards if one}) < 2:
        return None
    normalised = group_advantages([reward for one in rewards for reward in one or []], scale=scale)
    if normalised is None:
        return None
    following = iter(normalised)
    found: list[list[float] | None] = []
    for one in rewards:
        centred = [next(following) or 0.0 for _ in one or []]
        sums = [sum(centred[turn:]) for turn in range(len(centred))]
        found.append(None if one is None else sums)
    return found


def turn_segments(group: Sequence[Rollout], *, scale: Scale = "group") -> list[Segment]:
    """The turns of the rollouts of one task as segments, with their advantages.

    Raises `ToolbakeError` for a scored rollout whose verdict has no `turn_rewards`.
    """
    rewards = [_rewards(rollout) for rollout in group]
    found = turn_advantages(rewards, scale=scale) or [None] * len(group)
    return [
        Segment(rollout, turn, turn + 1, value, None if advantages is None else advantages[turn])
        for rollout, values, advantages in zip(group, rewards, found, strict=True)
        for turn, value in enumerate(values or [None] * len(sampled_turns(rollout)))
    ]


def _rewards(rollout: Rollout) -> list[float] | None:
    if not rollout.scored or rollout.verdict is None:
        return None
    rewards, turns = rollout.verdict.turn_rewards, len(sampled_turns(rollout))
    if rewards is None or len(rewards) != turns:
        raise ToolbakeError(
            f'grpo.advantages is "turn", and the verdict of rollout {rollout.id!r} with its {turns} turns has the '
            f"turn_rewards {rewards}: let the verifier return sdk.Verdict(score=..., turn_rewards=[...]) with one "
            'number for each assistant message, or set grpo.advantages to "rollout"'
        )
    return rewards


# ---------------------------------------------------------------------------------------------------------------------

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does, so that tiny differences are not blown up."""


def group_advantages(
    scores: Sequence[float | None], *, scale: Scale = "group", baseline: Baseline = "mean"
) -> list[float | None] | None:
    """Each score against its group: `A_i = (r_i - baseline) / (std + 1e-4)`.

    GRPO (arXiv 2402.03300, section 4.1.2) with the mean as baseline and the sample standard deviation; `scale="none"`
    leaves the division out (Dr. GRPO, arXiv 2503.20783). `baseline="leave_one_out"` takes the mean of the others, which
    does not depend on the rollout's own score (RLOO, arXiv 2402.14740). Unscored rollouts (`None`) take no part and get
    no advantage.
    Returns None when the group has no signal: fewer than two scores, or all of them equal.

    Example: `[1.0, 0.0, None, 0.0]` with `scale="none"` gives `[0.667, -0.333, None, -0.333]`.
    """
    scored = [score for score in scores if score is not None]
    if len(scored) < 2 or max(scored) == min(scored):
        return None
    mean = sum(scored) / len(scored)
    divisor = 1.0
    if scale == "group":
        divisor = math.sqrt(sum((score - mean) ** 2 for score in scored) / (len(scored) - 1)) + EPSILON
    # r_i less the mean of the other n - 1 scores is n / (n - 1) times r_i less the mean of all.
    factor = len(scored) / (len(scored) - 1) if baseline == "leave_one_out" else 1.0
    return [None if score is None else factor * (score - mean) / divisor for score in scores]


def normalised_by_domain(groups: Sequence[Sequence[float | None]], domains: Sequence[str]) -> list[list[float | None]]:
    """Centred advantages of a step's groups, each divided by the deviation of all those of its domain.

    `groups`: of each group its advantages, centred and not scaled; all None where it has no signal. `domains`: of each
    group its domain. Within a domain a group that differs more weighs more, as without scaling; between domains the
    advantages are of one size, so that rewards from 0 to 100 do not drown those from 0 to 1 (as the task advantage
    normalization of AgentRL, arXiv 2510.04206, which takes the mean of the domain, too).

    Example: groups `[1, -1]` and `[3, -3]` of one domain: the deviation is sqrt((1 + 1 + 9 + 9) / 4) = 2.236, and they
    become `[0.447, -0.447]` and `[1.342, -1.342]`.
    """
    squares: dict[str, list[float]] = {}
    for group, domain in zip(groups, domains, strict=True):
        squares.setdefault(domain, []).extend(one * one for one in group if one is not None)
    deviations = {domain: math.sqrt(sum(found) / max(len(found), 1)) + EPSILON for domain, found in squares.items()}
    return [
        [None if one is None else one / deviations[domain] for one in group]
        for group, domain in zip(groups, domains, strict=True)
    ]


def credited(groups: Sequence[Sequence[Rollout]], options: GrpoOptions) -> list[list[Segment]]:
    """The segments of each group, with their advantages."""
    if options.advantages == "turn":
        return [turn_segments(group, scale=options.scale_rewards) for group in groups]
    scale = options.scale_rewards if options.domain is None else "none"
    found = [branch_advantages(grow_trees(group), scale=scale, baseline=options.baseline) for group in groups]
    if options.domain is None:
        return found
    domains = [group[0].task.tags[options.domain] if group else "" for group in groups]
    advantages = normalised_by_domain([[segment.advantage for segment in one] for one in found], domains)
    return [
        [replace(segment, advantage=value) for segment, value in zip(one, values, strict=True)]
        for one, values in zip(found, advantages, strict=True)
    ]
