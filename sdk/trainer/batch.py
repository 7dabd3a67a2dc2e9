"""The batch of a step: the rows that are trained, with the advantages of their groups. Plain data: no torch.

Axes: P prompt tokens, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..evaluation.conditions import is_success
from ..records import CUT_OFF, Rollout, TokenRow
from ..rollouts.branching import TurnSpan, sampled_turns
from .advantages import Segment, credited
from .config import GrpoOptions, TrainConfig


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
    for group, segments in zip(groups, credited(groups, config.grpo), strict=True):
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
