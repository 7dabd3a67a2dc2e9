"""A comparison of two conditions on the same tasks, which cancels how hard the tasks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel

from ..records import Rollout
from .conditions import FAMILY, families_by_task, score_bounds, score_by_task, success_by_task
from .statistics import Interval, clustered_mean_interval, holm, mcnemar_exact, paired_rate_difference, sign_flip_exact


class PairedComparison(BaseModel):
    """Second minus first, on the tasks that were scored in both."""

    first: str
    second: str
    tasks: int
    families: int | None = None
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
    """Exact McNemar test of gained against lost; where tasks were tried several times or share families, the exact
    test that flips the signs of whole families. `None` where no task was scored in both."""
    p_holm: float | None = None
    """The p-value adjusted for all comparisons of the report (Holm); `None` where there is one only."""
    method: Literal["tango", "student_t", "clustered", "none"]


def compare_paired(
    first: Sequence[Rollout],
    second: Sequence[Rollout],
    *,
    names: tuple[str, str],
    threshold: float = 1.0,
    cluster_by: str = FAMILY,
) -> PairedComparison:
    """Compare two conditions on the tasks scored in both. Tries at the same task are averaged first."""
    before, after = success_by_task(first, threshold), success_by_task(second, threshold)
    both = sorted(before.keys() & after.keys())
    families = families_by_task([*first, *second], cluster_by)
    clusters = [families[task] for task in both]
    differences = [after[task] - before[task] for task in both]
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    # One try at each task: success is yes or no, and the exact methods for pairs apply.
    single = all(rates[task] in (0, 1) for rates in (before, after) for task in both)
    alone = len(set(clusters)) == len(both)
    success, p_value = None, None
    if both and single and alone:
        success, p_value = paired_rate_difference(gained, lost, len(both)), mcnemar_exact(gained, lost)
    elif both:
        success = clustered_mean_interval([float(d) for d in differences], clusters, (-1.0, 1.0))
        p_value = sign_flip_exact(differences, clusters)
    return PairedComparison(
        first=names[0],
        second=names[1],
        tasks=len(both),
        families=len(set(clusters)),
        left_out=sorted({r.task.id for r in [*first, *second]} - set(both)),
        gained=gained,
        lost=lost,
        success=success,
        score=_score_difference(first, second, both, clusters),
        p_value=p_value,
        method="none" if not both else "clustered" if not alone else "tango" if single else "student_t",
    )


def _score_difference(
    first: Sequence[Rollout], second: Sequence[Rollout], both: Sequence[str], clusters: Sequence[str]
) -> Interval | None:
    if not both:
        return None
    before, after = score_by_task(first), score_by_task(second)
    low, high = score_bounds([*before.values(), *after.values()])
    return clustered_mean_interval([after[task] - before[task] for task in both], clusters, (low - high, high - low))


def in_order(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each condition with the next, then the first with the last."""
    pairs = list(pairwise(names))
    return [*pairs, (names[0], names[-1])] if len(names) > 2 else pairs


def compare_conditions(
    conditions: Mapping[str, Sequence[Rollout]],
    *,
    threshold: float,
    cluster_by: str = FAMILY,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> list[PairedComparison]:
    """The comparisons of `pairs` of names, those `in_order` where None, with p-values adjusted for being several."""
    wanted = in_order(list(conditions)) if pairs is None else pairs
    found = [
        compare_paired(conditions[a], conditions[b], names=(a, b), threshold=threshold, cluster_by=cluster_by)
        for a, b in wanted
    ]
    adjusted = holm({str(place): c.p_value for place, c in enumerate(found) if c.p_value is not None})
    if len(adjusted) < 2:
        return found
    return [c.model_copy(update={"p_holm": adjusted.get(str(place))}) for place, c in enumerate(found)]
