"""From groups of rollouts that branched to the rows that are trained: each segment a row, each sampled token once.

A row is a segment's own tokens and, untrained, all tokens before them. Rows of one tree share these as a prefix, which
the shared-prefix forward computes once (`prefix_tree`), so a branch costs its own tokens alone.

Axes: T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Rollout, TokenRow
from ..rollouts.tree import TurnSpan, grow_trees, sampled_turns
from .advantages import Baseline, Scale
from .batch import CUT_OFF, Batch, BatchStats, TrainRow, count_without_signal
from .branch_advantages import Segment, branch_advantages


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
