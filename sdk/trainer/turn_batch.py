"""Advantages of turns: each turn is credited with what was earned from it on, and not with what came before.

Process supervision as in DeepSeekMath (arXiv 2402.03300, section 4.1.3), with assistant messages as its steps: the
rewards of all turns of all rollouts of a task are normalised together, and a turn's advantage is the sum of the
normalised rewards from that turn to the rollout's end. Rows are those of branches (`branch_batch`): each turn is one,
its past an untrained prefix that the turns share.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ToolbakeError
from ..records import Rollout
from ..rollouts.tree import sampled_turns
from .advantages import Scale, group_advantages, weighed
from .batch import CUT_OFF, Batch
from .branch_advantages import Segment
from .branch_batch import build_segment_batch


def turn_advantages(
    rewards: Sequence[Sequence[float] | None], *, scale: Scale = "std", negative_weight: float = 1.0
) -> list[list[float] | None] | None:
    """`A_t = sum over k >= t of (r_k - mean) / (std + 1e-4)`, mean and sample deviation over all turns of the group.

    `rewards`: of each rollout of a task those of its turns; None where it is unscored, which gets no advantages.
    `scale="none"` leaves the division out. `negative_weight` multiplies the advantages below zero.
    Returns None when the group has no signal: fewer than two rollouts with rewards, or all rewards equal.

    Example: `[[1.0, 0.0], [0.0], None]` with `scale="none"`: the mean is 1/3, less it they are `[[2/3, -1/3], [-1/3]]`,
    and summed from each turn on `[[1/3, -1/3], [-1/3], None]`.
    """
    if sum(bool(one) for one in rewards) < 2:
        return None
    normalised = group_advantages([reward for one in rewards for reward in one or []], scale=scale)
    if normalised is None:
        return None
    following = iter(normalised)
    found: list[list[float] | None] = []
    for one in rewards:
        centred = [next(following) or 0.0 for _ in one or []]
        sums = [sum(centred[turn:]) for turn in range(len(centred))]
        found.append(None if one is None else [value or 0.0 for value in weighed(sums, negative_weight)])
    return found


def build_turn_batch(
    groups: Sequence[Sequence[Rollout]],
    *,
    scale: Scale = "std",
    negative_weight: float = 1.0,
    mask_cut_off: bool = False,
    average_over_signal: bool = False,
    without_signal: bool = False,
) -> Batch:
    """Rows to train from groups of rollouts with rewards by turn; the options are those of `build_batch`.

    Raises `ToolbakeError` for a scored rollout whose verdict has no `turn_rewards`.
    """

    def segments_of(group: Sequence[Rollout]) -> list[Segment]:
        rewards = [_rewards(rollout) for rollout in group]
        found = turn_advantages(rewards, scale=scale, negative_weight=negative_weight) or [None] * len(group)
        return [
            Segment(rollout, turn, turn + 1, value, None if advantages is None else advantages[turn])
            for rollout, values, advantages in zip(group, rewards, found, strict=True)
            for turn, value in enumerate(values or [None] * len(sampled_turns(rollout)))
        ]

    def masked(segment: Segment) -> bool:
        return mask_cut_off and segment.rollout.stop_reason in CUT_OFF

    return build_segment_batch(
        groups, segments_of, masked, average_over_signal=average_over_signal, without_signal=without_signal
    )


def _rewards(rollout: Rollout) -> list[float] | None:
    if not rollout.scored or rollout.verdict is None:
        return None
    rewards, turns = rollout.verdict.turn_rewards, len(sampled_turns(rollout))
    if rewards is None or len(rewards) != turns:
        raise ToolbakeError(
            f'advantages is "turn", and the verdict of rollout {rollout.id!r} with its {turns} turns has the '
            f"turn_rewards {rewards}: let the verifier return sdk.Verdict(score=..., turn_rewards=[...]) with one "
            'number for each assistant message, or set advantages to "rollout"'
        )
    return rewards
