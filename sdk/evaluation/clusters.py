"""Intervals and tests where tasks come in families: tasks of one family fail together, so they count for less.

Axes: G families (clusters), n tasks. Where each family has one task, every figure here is the plain one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction

from .statistics import Interval, mean_interval, student_t_975, wilson

_MOST_WORK = 2 * 10**7
"""Families times the range of their sums, above which the exact test is not computed."""


def clustered_standard_error(values: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """The standard error of the mean of `values` [n], robust to any dependence within a cluster.

    sqrt(G / (G - 1) * sum over clusters of (sum of the cluster's deviations from the mean)^2) / n. The sum of squares
    is the one of Miller (2024), "Adding Error Bars to Evals", arXiv 2411.00640, section 2.2, equation 4; the factor for
    few clusters is that of Cameron and Miller (2015), Journal of Human Resources 50:317-372, section VI.B.

    Raises `ValueError` for fewer than two clusters, or where the two lists differ in length.
    """
    sums = _deviations(values, clusters)
    if len(sums) < 2:
        raise ValueError(f"{len(sums)} clusters; the spread between clusters takes at least two")
    return math.sqrt(len(sums) / (len(sums) - 1) * math.fsum(s * s for s in sums)) / len(values)


def clustered_mean_interval(
    values: Sequence[float], clusters: Sequence[Hashable], bounds: tuple[float, float]
) -> Interval:
    """Mean of values in `bounds` with a 95 % interval: Student's t with G - 1 degrees of freedom, cut at the bounds.

    With one value a cluster it is `mean_interval`. Where all clusters have the same mean their spread says nothing,
    and the interval is that of as many equal values as there are clusters (see `mean_interval`); with one cluster it
    is that of one value.
    """
    sums = _deviations(values, clusters)
    plain = mean_interval(values, bounds)
    if len(sums) == len(values):
        return plain
    low, high = bounds
    spread = math.fsum(s * s for s in sums)
    if len(sums) < 2 or spread <= 1e-18 * len(values):
        few = mean_interval([plain.estimate] * len(sums), bounds)
        return Interval(estimate=plain.estimate, low=few.low, high=few.high)
    half = student_t_975(len(sums) - 1) * clustered_standard_error(values, clusters)
    mean = plain.estimate
    return Interval(estimate=mean, low=max(low, min(mean, mean - half)), high=min(high, max(mean, mean + half)))


def clustered_wilson(rates: Sequence[float], clusters: Sequence[Hashable]) -> Interval:
    """The mean of success rates [n], one a task, with Wilson's interval for the effective number of tasks.

    See `effective_tasks`. With one task a cluster it is `wilson(sum(rates), n)`. Source: Wilson's interval on the
    effective sample size, as in Dean and Pagano (2015), Journal of Survey Statistics and Methodology 3:484-503.
    """
    n = len(rates)
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError("a success rate lies between 0 and 1")
    plain = wilson(min(float(n), math.fsum(rates)), n)
    effective = effective_tasks(rates, clusters)
    found = wilson(plain.estimate * effective, effective)
    return Interval(estimate=plain.estimate, low=min(found.low, plain.estimate), high=max(found.high, plain.estimate))


def effective_tasks(rates: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """How many independent tasks, each tried once, tell as much as these n success rates: in [1, n].

    n / deff * (t(n-1) / t(G-1))^2, where deff (Kish, 1965) is the clustered variance of the mean over the
    binomial one, p (1 - p) / (n - 1). Never more than n: neither families nor several tries at a task make an interval
    narrower. The factor for few clusters is that of Korn and Graubard (1998), Survey Methodology 24:193-201. Where all
    rates are equal nothing tells how alike the tasks of a family are; then each family counts as one task.
    """
    n, families = len(rates), len(_deviations(rates, clusters))
    if families == n:
        return float(n)
    mean = math.fsum(rates) / n
    robust = clustered_standard_error(rates, clusters) ** 2 if families > 1 else 0.0
    if max(rates) == min(rates) or families < 2:
        return float(families)
    if robust <= 1e-18:
        return float(n)  # families that are all alike, of tasks that are not
    few = (student_t_975(n - 1) / student_t_975(families - 1)) ** 2
    return min(float(n), max(1.0, n * mean * (1 - mean) / (n - 1) / robust * few))


def sign_flip_exact(differences: Sequence[Fraction], clusters: Sequence[Hashable]) -> float | None:
    """Two-sided exact p-value: are differences up and down equally likely, when whole clusters change sign together?

    The share of the 2^G ways to flip the signs of clusters whose sum is at least as far from zero. With one task a
    cluster and differences of -1, 0 and 1 it is McNemar's exact test. Source: the randomisation test of Fisher (1935),
    The Design of Experiments, section 21, with clusters as its units. None where the number of ways cannot be counted
    in reasonable time (many tasks with many different numbers of tries).
    """
    sums: dict[Hashable, Fraction] = defaultdict(Fraction)
    for difference, cluster in zip(differences, clusters, strict=True):
        sums[cluster] += difference
    scale = math.lcm(*(value.denominator for value in sums.values())) if sums else 1
    steps = [abs(int(value * scale)) for value in sums.values() if value]
    observed = abs(int(sum(sums.values(), Fraction(0)) * scale))
    if not steps or observed == 0:
        return 1.0
    total = sum(steps)
    if total * len(steps) > _MOST_WORK:
        return None
    # How many subsets of the steps have each sum: the coefficients of the product of (1 + x^step), as one integer
    # with a field of `bits` for each coefficient. A subset of sum s has the signed sum 2 s - total.
    bits = len(steps) + 1
    ways = 1
    for step in steps:
        ways += ways << (step * bits)
    # The fields up to (total - observed) / 2, added up: a number is the sum of its digits, modulo its base less 1.
    low_fields = ways & ((1 << ((total - observed) // 2 + 1) * bits) - 1)
    tail = low_fields % ((1 << bits) - 1)
    return min(1.0, float(Fraction(2 * tail, 1 << len(steps))))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P-values adjusted for being several, by name: the chance of any false alarm among them is held.

    Source: Holm (1979), Scandinavian Journal of Statistics 6:65-70. Each is multiplied by the number of those at least
    as large, and none is below a smaller one's.
    """
    adjusted: dict[str, float] = {}
    floor = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        floor = max(floor, min(1.0, p_values[name] * (len(p_values) - place)))
        adjusted[name] = floor
    return {name: adjusted[name] for name in p_values}


def _deviations(values: Sequence[float], clusters: Sequence[Hashable]) -> list[float]:
    """The sum of each cluster's deviations from the mean of all values [G]."""
    if len(values) != len(clusters) or not values:
        raise ValueError(
            f"{len(values)} values in {len(clusters)} clusters; give each value its cluster, and at least one"
        )
    mean = math.fsum(values) / len(values)
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value - mean)
    return [math.fsum(group) for group in groups.values()]
