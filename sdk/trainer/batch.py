"""From groups of rollouts to the rows that are trained. Plain data: no torch.

Axes: P prompt tokens, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..records import CUT_OFF, Rollout, TokenRow
from ..rollouts.tree import TurnSpan, grow_trees, sampled_turns
from .advantages import Baseline, Scale, Segment, branch_advantages, normalised_by_domain, turn_segments
from .config import TrainConfig


@dataclass(frozen=True)
class BatchOptions:
    """How the rollouts of a step are credited, and which of their rows are trained."""

    advantages: Literal["rollout", "turn"] = "rollout"
    """Whether rollouts with their branches are compared (see `branch_advantages`) or turns (see `turn_segments`)."""
    scale: Scale = "group"
    baseline: Baseline = "mean"
    domain: str | None = None
    """A tag: advantages are divided by the deviation in their domain in place of the group's (see
    `normalised_by_domain`)."""
    mask_truncated_completions: bool = False
    """Rollouts that a length limit ended are not trained."""
    average_over_signal: bool = False
    """Rows of groups without signal do not count in the average that the loss is (see `BatchStats.scored_rows`)."""
    without_signal: bool = False
    """Rows of groups without signal are there with an advantage of 0, for the part of a loss that holds for every
    rollout, as the divergence from a reference (GRPO, arXiv 2402.03300, equation 3) and the entropy bonus do."""

    @classmethod
    def of(cls, config: TrainConfig) -> BatchOptions:
        """Those of a run."""
        return cls(
            advantages=config.grpo.advantages,
            scale=config.grpo.scale_rewards,
            baseline=config.grpo.baseline,
            domain=config.grpo.domain,
            mask_truncated_completions=config.grpo.mask_truncated_completions,
            average_over_signal=config.curriculum.dynamic_sampling_rounds > 0,
            without_signal=config.trains_without_signal,
        )


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


def build_batch(groups: Sequence[Sequence[Rollout]], options: BatchOptions | None = None) -> Batch:
    """Rows to train from groups of rollouts of the same task each, with their branches.

    A group has a signal where any of its segments has an advantage: its rollouts among each other, or those of a branch
    point. Raises `ToolbakeError` where turns are compared and a scored rollout has no rewards of its turns.
    """
    options = options or BatchOptions()
    batch = Batch()
    stats = batch.stats
    scores: list[float] = []
    for group, segments in zip(groups, _credited(groups, options), strict=True):
        scored = [one.verdict.score for one in group if one.scored and one.verdict is not None]
        scores += scored
        signal = any(segment.advantage is not None for segment in segments)
        _count_group(stats, group, scored, signal=signal)
        rows: list[TrainRow] = []
        cut_off: set[str] = set()
        for segment in segments:
            made = segment_rows(segment)
            stats.sampled_tokens += _sampled(made)
            if segment.value is None:
                continue
            if options.mask_truncated_completions and _is_cut_off(segment, options):
                cut_off.add(segment.rollout.id)
                continue
            if signal or not options.average_over_signal:
                stats.scored_rows += len(made)
                stats.scored_tokens += _sampled(made)
            if segment.advantage is not None or options.without_signal:
                rows += [TrainRow(row, segment.advantage or 0.0) for row in made]
        batch.groups.append(rows)
        stats.cut_off += len(cut_off)
        stats.trained_rows += len(rows)
        stats.trained_tokens += _sampled(row.tokens for row in rows)
    stats.mean_score = sum(scores) / len(scores) if scores else None
    return batch


def _credited(groups: Sequence[Sequence[Rollout]], options: BatchOptions) -> list[list[Segment]]:
    """The segments of each group, with their advantages."""
    if options.advantages == "turn":
        return [turn_segments(group, scale=options.scale) for group in groups]
    scale = options.scale if options.domain is None else "none"
    found = [branch_advantages(grow_trees(group), scale=scale, baseline=options.baseline) for group in groups]
    if options.domain is None:
        return found
    domains = [group[0].task.tags[options.domain] if group else "" for group in groups]
    advantages = normalised_by_domain([[segment.advantage for segment in one] for one in found], domains)
    return [
        [replace(segment, advantage=value) for segment, value in zip(one, values, strict=True)]
        for one, values in zip(found, advantages, strict=True)
    ]


def _is_cut_off(segment: Segment, options: BatchOptions) -> bool:
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
    )


def _count_group(stats: BatchStats, group: Sequence[Rollout], scored: Sequence[float], *, signal: bool) -> None:
    """`scored`: the scores of its scored rollouts."""
    stats.rollouts += len(group)
    stats.unscored += len(group) - len(scored)
    if signal:
        stats.groups_with_signal += 1
    elif len(scored) < 2:
        stats.groups_unscored += 1
    elif scored[0] > 0:
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
