"""From the scores of a step's groups to advantages, and from these to the rows that are trained. Plain data: no torch.

Axes: P prompt tokens, T completion tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import ToolbakeError
from ..evaluation.conditions import is_success
from ..records import CUT_OFF, Rollout, TokenRow
from ..rollouts.branching import RolloutTree, TurnSpan, grow_trees, sampled_turns
from .config import Baseline, GrpoOptions, Scale, TrainConfig

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


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainRow:
    """One row of tokens and what each sampled token earned.

    Example: the row of `TokenRow`'s example with advantage 1.5 for all of the rollout's sampled tokens.
    """

    tokens: TokenRow
    advantage: float


@dataclass
class BatchStats:
    """Counts of a step's rollouts, including everything that was not trained."""

    rollouts: int = 0
    unscored: int = 0
    groups_with_signal: int = 0
    groups_all_right: int = 0
    """Without signal, and every scored rollout is a success."""
    groups_all_wrong: int = 0
    """Without signal, and not every scored rollout is a success."""
    groups_unscored: int = 0
    """Without signal because fewer than two of their rollouts could be scored."""
    cut_off: int = 0
    """Rollouts cut off by length and therefore not trained, where that was asked for; they count in the baseline."""
    mean_score: float | None = None
    sampled_tokens: int = 0
    scored_rows: int = 0
    scored_tokens: int = 0
    """Rows and sampled tokens of all scored rollouts. Losses are averaged over these, as TRL does: a step in which one
    group of many has a signal has a small gradient beside the other steps of the run. Of rollouts that were cut off,
    the rows count and the tokens do not."""
    trained_rows: int = 0
    trained_tokens: int = 0

    @property
    def groups(self) -> int:
        return self.groups_with_signal + self.groups_all_right + self.groups_all_wrong + self.groups_unscored


@dataclass
class Batch:
    """One optimiser step: the groups in the order of their tasks; a group without signal has no rows, unless the loss
    has a part for them."""

    groups: list[list[TrainRow]] = field(default_factory=list)
    stats: BatchStats = field(default_factory=BatchStats)


def build_batch(groups: Sequence[Sequence[Rollout]], config: TrainConfig | None = None) -> Batch:
    """Rows to train from groups of rollouts of the same task each, with their branches.

    A group has a signal where any of its segments has an advantage: its rollouts among each other, or those of a branch
    point. Raises `ToolbakeError` where turns are compared and a scored rollout has no rewards of its turns.
    """
    config = config or TrainConfig()
    batch = Batch()
    stats = batch.stats
    scores: list[float] = []
    for group, segments in zip(groups, _credited(groups, config.grpo), strict=True):
        scores += [one.verdict.score for one in group if one.scored and one.verdict is not None]
        signal = any(segment.advantage is not None for segment in segments)
        _count_group(stats, group, config.evaluation.success_threshold, signal=signal)
        rows: list[TrainRow] = []
        cut_off: set[str] = set()
        for segment in segments:
            made = segment_rows(segment)
            stats.sampled_tokens += _sampled(made)
            if segment.value is None:
                continue
            counts = signal or not config.curriculum.dynamic_sampling_rounds
            stats.scored_rows += len(made) if counts else 0
            if config.grpo.mask_truncated_completions and _is_cut_off(segment, config.grpo):
                cut_off.add(segment.rollout.id)
                continue
            stats.scored_tokens += _sampled(made) if counts else 0
            if segment.advantage is not None or config.trains_without_signal:
                rows += [TrainRow(row, segment.advantage or 0.0) for row in made]
        batch.groups.append(rows)
        stats.cut_off += len(cut_off)
        stats.trained_rows += len(rows)
        stats.trained_tokens += _sampled(row.tokens for row in rows)
    stats.mean_score = sum(scores) / len(scores) if scores else None
    return batch


def _credited(groups: Sequence[Sequence[Rollout]], options: GrpoOptions) -> list[list[Segment]]:
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


def _is_cut_off(segment: Segment, options: GrpoOptions) -> bool:
    """Whether what it is worth rests on a rollout that was not finished. What comes before a branch point is worth the
    mean of all that goes on from there."""
    ends = segment.end is None or options.advantages == "turn"
    return ends and segment.rollout.stop_reason in CUT_OFF


def segment_rows(segment: Segment) -> list[TokenRow]:
    """The rows in which the segment's tokens were sampled, up to its end; only its own tokens are marked as sampled.

    More than one where a template rewrote history within the segment. A whole rollout has its rows as they are.
    """
    begin, end, rollout = segment.begin, segment.end, segment.rollout
    if begin == 0 and end is None:
        return [row for row in rollout.rows if any(row.sampled)]
    by_row: dict[int, list[TurnSpan]] = {}
    for span in sampled_turns(rollout)[begin:end]:
        by_row.setdefault(span.row, []).append(span)
    return [_row(rollout.rows[number], own) for number, own in by_row.items()]


def _row(row: TokenRow, own: Sequence[TurnSpan]) -> TokenRow:
    begin, end = own[0].begin, own[-1].end
    return TokenRow(
        prompt_ids=row.prompt_ids,
        completion_ids=row.completion_ids[:end],
        sampled=[place >= begin and sampled for place, sampled in enumerate(row.sampled[:end])],
        logprobs=row.logprobs[:end],
        versions=row.versions[:end],
        allowed=row.allowed[:end],
    )


def _count_group(stats: BatchStats, group: Sequence[Rollout], threshold: float, *, signal: bool) -> None:
    scored = [rollout for rollout in group if rollout.scored]
    stats.rollouts += len(group)
    stats.unscored += len(group) - len(scored)
    if signal:
        stats.groups_with_signal += 1
    elif len(scored) < 2:
        stats.groups_unscored += 1
    elif all(is_success(rollout, threshold) for rollout in scored):
        stats.groups_all_right += 1
    else:
        stats.groups_all_wrong += 1


def _sampled(rows: Iterable[TokenRow]) -> int:
    return sum(sum(row.sampled) for row in rows)


def with_audits(batch: Batch, audits: Batch) -> Batch:
    """One optimiser step of both. Rows and tokens are counted together, since the loss is averaged over all; rollouts,
    groups and scores stay those of `batch`."""
    summed = ("sampled_tokens", "scored_rows", "scored_tokens", "trained_rows", "trained_tokens")
    both = {name: getattr(batch.stats, name) + getattr(audits.stats, name) for name in summed}
    return Batch(groups=[*batch.groups, *audits.groups], stats=replace(batch.stats, **both))
