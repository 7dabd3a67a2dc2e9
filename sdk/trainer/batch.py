"""From groups of rollouts to the rows that are trained. Plain data: no torch.

Axes: P prompt tokens, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..records import Rollout, TokenRow
from .advantages import Baseline, Scale, group_advantages, normalised_by_domain, weighed

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
