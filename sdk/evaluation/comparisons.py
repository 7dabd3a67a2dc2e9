"""Two conditions on the same tasks: the comparison that cancels how hard the tasks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel

from ..records import Rollout
from .conditions import score_bounds, score_by_task, success_by_task
from .statistics import Interval, mcnemar_exact, mean_interval, paired_rate_difference


class PairedComparison(BaseModel):
    """Second minus first, on the tasks that were scored in both."""

    first: str
    second: str
    tasks: int
    left_out: list[str]
    """Ids of tasks scored in one of the two only, or in neither."""
    gained: int
    """Tasks with more success in the second."""
    lost: int
    """Tasks with less success in the second."""
    success: Interval | None
    """Difference of success; `None` where no task was scored in both."""
    score: Interval | None
    """Difference of mean scores."""
    p_value: float | None
    """Exact McNemar test of gained against lost; `None` where tasks were tried several times."""
    method: Literal["tango", "student_t", "none"]


def compare_paired(
    first: Sequence[Rollout], second: Sequence[Rollout], *, names: tuple[str, str], threshold: float = 1.0
) -> PairedComparison:
    """Compare two conditions on the tasks scored in both. Tries at the same task are averaged first."""
    before, after = success_by_task(first, threshold), success_by_task(second, threshold)
    both = sorted(before.keys() & after.keys())
    left_out = sorted({r.task.id for r in [*first, *second]} - set(both))
    gained = sum(after[task] > before[task] for task in both)
    lost = sum(after[task] < before[task] for task in both)
    # One try at each task: success is yes or no, and the exact methods for pairs apply.
    single = all(rates[task] in (0.0, 1.0) for rates in (before, after) for task in both)
    success = None
    if both and single:
        success = paired_rate_difference(gained, lost, len(both))
    elif both:
        success = mean_interval([after[task] - before[task] for task in both], (-1.0, 1.0))
    return PairedComparison(
        first=names[0],
        second=names[1],
        tasks=len(both),
        left_out=left_out,
        gained=gained,
        lost=lost,
        success=success,
        score=_score_difference(first, second, both),
        p_value=mcnemar_exact(gained, lost) if both and single else None,
        method="none" if not both else "tango" if single else "student_t",
    )


def _score_difference(first: Sequence[Rollout], second: Sequence[Rollout], both: Sequence[str]) -> Interval | None:
    if not both:
        return None
    before, after = score_by_task(first), score_by_task(second)
    low, high = score_bounds([*before.values(), *after.values()])
    return mean_interval([after[task] - before[task] for task in both], (low - high, high - low))


def compare_conditions(conditions: Mapping[str, Sequence[Rollout]], *, threshold: float) -> list[PairedComparison]:
    """Each condition with the next, then the first with the last."""
    names = list(conditions)
    pairs = list(pairwise(names))
    if len(names) > 2:
        pairs.append((names[0], names[-1]))
    return [compare_paired(conditions[a], conditions[b], names=(a, b), threshold=threshold) for a, b in pairs]
