"""From groups of rollouts to the rows that are trained. Plain data: no torch.

Axes: P prompt tokens, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import ToolbakeError
from ..records import Rollout, TokenRow
from ..rollouts.tree import TurnSpan, grow_trees, sampled_turns
from .advantages import Baseline, Scale, Segment, branch_advantages, group_advantages, normalised_by_domain, weighed

# ---------------------------------------------------------------------------------------------------------------------
# Advantages of turns: each turn is credited with what was earned from it on, and not with what came before.
#
# Process supervision as in DeepSeekMath (arXiv 2402.03300, section 4.1.3), with assistant messages as its steps: the
# rewards of all turns of all rollouts of a task are normalised together, and a turn's advantage is the sum of the
# normalised rewards from that turn to the rollout's end. Rows are those of branches: each turn is one,
# its past an untrained prefix that the turns share.


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


# ---------------------------------------------------------------------------------------------------------------------


def build_branch_batch(
    groups: Sequence[Sequence[Rollout]],
    *,
    scale: Scale = "std",
    baseline: Baseline = "mean",
    negative_weight: float = 1.0,
    mask_cut_off: bool = False,
    average_over_signal: bool = False,
    without_signal: bool = False,
) -> Batch:
    """Rows to train from groups of rollouts and their branches; the options are those of `build_batch`.

    A group has a signal where any of its branch points has, or its rollouts among each other.
    """

    def segments_of(group: Sequence[Rollout]) -> list[Segment]:
        return branch_advantages(grow_trees(group), scale=scale, baseline=baseline, negative_weight=negative_weight)

    def masked(segment: Segment) -> bool:
        return mask_cut_off and segment.end is None and segment.rollout.stop_reason in CUT_OFF

    return build_segment_batch(
        groups, segments_of, masked, average_over_signal=average_over_signal, without_signal=without_signal
    )


def build_segment_batch(
    groups: Sequence[Sequence[Rollout]],
    segments_of: Callable[[Sequence[Rollout]], list[Segment]],
    masked: Callable[[Segment], bool],
    *,
    average_over_signal: bool,
    without_signal: bool,
) -> Batch:
    """Rows to train from the segments of each group. `masked`: whether a segment is not trained, and counted instead.
    `without_signal`: scored segments without an advantage have one of 0, see `build_batch`.

    A group has a signal where any of its segments has an advantage.
    """
    batch = Batch()
    scores: list[float] = []
    for group in groups:
        segments = segments_of(group)
        scored = [one.verdict.score for one in group if one.scored and one.verdict is not None]
        scores += scored
        _count_group(batch.stats, group, segments, scored)
        rows: list[TrainRow] = []
        signal = any(segment.advantage is not None for segment in segments)
        for segment in segments:
            made = segment_rows(segment)
            batch.stats.sampled_tokens += sum(sum(row.sampled) for row in made)
            if segment.value is None or masked(segment):
                continue
            if signal or not average_over_signal:
                batch.stats.scored_rows += len(made)
                batch.stats.scored_tokens += sum(sum(row.sampled) for row in made)
            if segment.advantage is not None or without_signal:
                rows += [TrainRow(row, segment.advantage or 0.0) for row in made]
        batch.stats.cut_off += len({one.rollout.id for one in segments if one.value is not None and masked(one)})
        batch.groups.append(rows)
        batch.stats.trained_rows += len(rows)
        batch.stats.trained_tokens += sum(sum(row.tokens.sampled) for row in rows)
    if scores:
        batch.stats.mean_score = sum(scores) / len(scores)
    return batch


def segment_rows(segment: Segment) -> list[TokenRow]:
    """The rows in which the segment's tokens were sampled, up to its end; only its own tokens are marked as sampled.

    More than one where a template rewrote history within the segment.
    """
    end = segment.end
    spans = [
        span
        for turn, span in enumerate(sampled_turns(segment.rollout))
        if turn >= segment.begin and (end is None or turn < end)
    ]
    by_row: dict[int, list[TurnSpan]] = {}
    for span in spans:
        by_row.setdefault(span.row, []).append(span)
    return [_row(segment.rollout.rows[number], own) for number, own in by_row.items()]


def _row(row: TokenRow, own: Sequence[TurnSpan]) -> TokenRow:
    begin, end = own[0].begin, own[-1].end
    return TokenRow(
        prompt_ids=row.prompt_ids,
        completion_ids=row.completion_ids[:end],
        sampled=[place >= begin and sampled for place, sampled in enumerate(row.sampled[:end])],
        logprobs=row.logprobs[:end],
        versions=row.versions[:end],
    )


def _count_group(
    stats: BatchStats, group: Sequence[Rollout], segments: Sequence[Segment], scored: Sequence[float]
) -> None:
    stats.rollouts += len(group)
    stats.unscored += len(group) - len(scored)
    if any(segment.advantage is not None for segment in segments):
        stats.groups_with_signal += 1
    else:
        count_without_signal(stats, scored)


# ---------------------------------------------------------------------------------------------------------------------

CUT_OFF = ("token_limit", "context_limit")
"""How a rollout ends that was not finished: what it would have earned is not known."""


@dataclass(frozen=True)
class TrainRow:
    """One row of tokens and what each sampled token earned.

    Example: the row of `TokenRow`'s example with advantage 1.5 for all of the rollout's sampled tokens.
    """

    tokens: TokenRow
    advantage: float


@dataclass
class BatchStats:
    """What became of a step's rollouts. Everything that was not trained is counted here."""

    rollouts: int = 0
    unscored: int = 0
    groups_with_signal: int = 0
    groups_all_right: int = 0
    """Without signal because every rollout reached the best score seen in the group, and that was positive."""
    groups_all_wrong: int = 0
    groups_unscored: int = 0
    """Without signal because fewer than two of their rollouts could be scored."""
    cut_off: int = 0
    """Rollouts cut off by length and therefore not trained, where that was asked for; they count in the baseline."""
    mean_score: float | None = None
    sampled_tokens: int = 0
    scored_rows: int = 0
    scored_tokens: int = 0
    """Rows and sampled tokens of all scored rollouts. Losses are averaged over these, as TRL does: a step in which one
    group of many has a signal is a small step."""
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


def build_batch(
    groups: Sequence[Sequence[Rollout]],
    *,
    scale: Scale = "std",
    baseline: Baseline = "mean",
    negative_weight: float = 1.0,
    mask_cut_off: bool = False,
    average_over_signal: bool = False,
    without_signal: bool = False,
    domain: str | None = None,
) -> Batch:
    """Rows to train from groups of rollouts of the same task each.

    `mask_cut_off`: rollouts that a length limit ended are not trained. `average_over_signal`: rows of groups without
    signal do not count in the average that the loss is (see `BatchStats.scored_rows`). `without_signal`: their rows are
    there with an advantage of 0, for the part of a loss that holds for every rollout, as the divergence from a
    reference (GRPO, arXiv 2402.03300, equation 3) and the entropy bonus do. `domain`: a tag; advantages are then
    divided by the deviation in their domain in place of the group's (see `normalised_by_domain`).
    """
    batch = Batch()
    stats = batch.stats
    scores_seen: list[float] = []
    scores_of = [[r.verdict.score if r.scored and r.verdict is not None else None for r in group] for group in groups]
    if domain is None:
        found = [
            group_advantages(scores, scale=scale, baseline=baseline, negative_weight=negative_weight)
            for scores in scores_of
        ]
    else:
        centred = [group_advantages(scores, scale="none", baseline=baseline) for scores in scores_of]
        normalised = normalised_by_domain(centred, [group[0].task.tags[domain] if group else "" for group in groups])
        found = [None if one is None else weighed(one, negative_weight) for one in normalised]
    for group, scores, advantages in zip(groups, scores_of, found, strict=True):
        scored = [score for score in scores if score is not None]
        scores_seen.extend(scored)
        stats.rollouts += len(group)
        stats.unscored += len(group) - len(scored)
        stats.sampled_tokens += sum(r.sampled_tokens for r in group)
        if advantages is None:
            count_without_signal(stats, scored)
        else:
            stats.groups_with_signal += 1
        kept = [r for r in group if r.scored and not (mask_cut_off and r.stop_reason in CUT_OFF)]
        stats.cut_off += len(scored) - len(kept)
        if advantages is not None or not average_over_signal:
            rows_counted = [row for r in kept for row in r.rows if any(row.sampled)]
            stats.scored_rows += len(rows_counted)
            stats.scored_tokens += sum(sum(row.sampled) for row in rows_counted)
        if advantages is None and without_signal:
            advantages = [None if score is None else 0.0 for score in scores]
        rows = _rows(group, advantages, kept)
        batch.groups.append(rows)
        stats.trained_rows += len(rows)
        stats.trained_tokens += sum(sum(row.tokens.sampled) for row in rows)
    if scores_seen:
        stats.mean_score = sum(scores_seen) / len(scores_seen)
    return batch


def with_audits(batch: Batch, audits: Batch) -> Batch:
    """One optimiser step of both. Rows and tokens are counted together, since the loss is averaged over all; rollouts,
    groups and scores stay those of `batch`."""
    summed = ("sampled_tokens", "scored_rows", "scored_tokens", "trained_rows", "trained_tokens")
    both = {name: getattr(batch.stats, name) + getattr(audits.stats, name) for name in summed}
    return Batch(groups=[*batch.groups, *audits.groups], stats=replace(batch.stats, **both))


def _rows(
    group: Sequence[Rollout], advantages: Sequence[float | None] | None, kept: Sequence[Rollout]
) -> list[TrainRow]:
    """The rows of a group that are trained: those of rollouts with an advantage."""
    ids = {rollout.id for rollout in kept}
    return [
        TrainRow(row, advantage)
        for rollout, advantage in zip(group, advantages or [None] * len(group), strict=True)
        if advantage is not None and rollout.id in ids
        for row in rollout.rows
        if any(row.sampled)
    ]


def count_without_signal(stats: BatchStats, scored: Sequence[float]) -> None:
    """Count a group that teaches nothing. `scored`: the scores of its scored rollouts."""
    if len(scored) < 2:
        stats.groups_unscored += 1
    elif scored[0] > 0:
        stats.groups_all_right += 1
    else:
        stats.groups_all_wrong += 1
