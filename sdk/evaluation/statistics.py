"""Intervals and tests for success on tasks, with families of tasks, and with several tries at each.

No random numbers: the same rollouts give the same figures. Intervals are two-sided, of 95 % (`z = 1.96`, the normal
quantile). Axes: n tasks, G families (clusters); where each family has one task, clustered figures are the plain ones.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import TypeVar

from pydantic import BaseModel

K = TypeVar("K", bound=Hashable)
Z_95 = NormalDist().inv_cdf(0.975)


class Interval(BaseModel, frozen=True):
    """An estimate with the ends of its confidence interval: `low <= estimate <= high`."""

    estimate: float
    low: float
    high: float


def wilson(successes: float, n: float, z: float = Z_95) -> Interval:
    """A rate with Wilson's score interval. Example: `wilson(8, 10)` is 0.8 in [0.490, 0.943].

    `successes` may be a fraction, where several tries at each of `n` tasks are averaged first.

    Source: Wilson (1927), J. Am. Stat. Assoc. 22:209-212; recommended by Brown, Cai and DasGupta (2001),
    Statistical Science 16:101-133. Raises `ValueError` without trials or for successes outside [0, n].
    """
    if not n > 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} are not a rate; it takes n > 0 and 0 <= successes <= n")
    rate = successes / n
    scale = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # Rounding must not push an end past the estimate (at 0 and n they are equal).
    return Interval(estimate=rate, low=max(0.0, min(centre - half, rate)), high=min(1.0, max(centre + half, rate)))


def paired_rate_difference(gained: int, lost: int, n: int, z: float = Z_95) -> Interval:
    """Difference of two success rates on the same `n` tasks, with Tango's score interval.

    `gained`: tasks that succeeded only in the second condition; `lost`: only in the first. The interval is the
    set of differences that the score test does not reject; it holds up with few tasks and with none gained or lost.

    Source: Tango (1998), Statistics in Medicine 17:891-908, equations 24 to 26; compared with others by
    Fagerland, Lydersen and Laake (2014), Statistics in Medicine 33:2850-2875.
    Raises `ValueError` for counts that are negative or more than `n`.
    """
    if n < 1 or gained < 0 or lost < 0 or gained + lost > n:
        raise ValueError(f"gained={gained} and lost={lost} of n={n}; it takes n >= 1 and gained + lost <= n")
    estimate = (gained - lost) / n

    def score(difference: float) -> float:
        return _tango_score(gained, lost, n, difference)

    # The score falls as the difference grows: +z at the lower end, -z at the upper.
    low = -1.0 if gained - lost == -n else _falling_root(lambda d: score(d) - z, -1.0, estimate)
    high = 1.0 if gained - lost == n else _falling_root(lambda d: score(d) + z, estimate, 1.0)
    return Interval(estimate=estimate, low=low, high=high)


def _tango_score(gained: int, lost: int, n: int, difference: float) -> float:
    """Tango's statistic for the hypothesis that the rates differ by `difference`; infinite at -1 and 1."""
    # `q`: the likeliest probability of a lost task under the hypothesis, the root of 2n q^2 + b q + c = 0.
    b = (2 * n - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    q = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
    variance = n * (2 * q + difference * (1 - difference))
    distance = gained - lost - n * difference
    if variance <= 0:
        return 0.0 if distance == 0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _falling_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero between `low` and `high`, by bisection to the last bits."""
    for _ in range(100):
        middle = (low + high) / 2
        if function(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided exact p-value of McNemar's test: are gained and lost tasks equally likely?

    The probability, with fair coins for the tasks that changed, of a split at least as uneven.
    Source: McNemar (1947), Psychometrika 12:153-157, with the binomial distribution in place of chi-squared.
    """
    if gained < 0 or lost < 0:
        raise ValueError(f"gained={gained} and lost={lost}; counts cannot be negative")
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**changed)))


def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution, within 0.2 %. `degrees` of freedom: 1 or more.

    Source: exact for 1 and 2; otherwise Abramowitz and Stegun (1964), 26.7.5, an expansion in 1 / degrees.
    """
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; it must be 1 or more")
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:
        return 2 * 0.475 * math.sqrt(2 / (1 - 4 * 0.475**2))
    z = Z_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(degrees**power) for power, term in enumerate(terms, start=1))


_MOST_WORK = 2 * 10**7
"""Families times the range of their sums, above which the exact test is not computed."""


def clustered_standard_error(values: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """The standard error of the mean of `values` [n], robust to any dependence within a cluster.

    sqrt(sum over clusters of (sum of the cluster's deviations from the mean)^2 / (1 - n_g / n)) / n, where n_g is the
    number of values in the cluster. The sum of squares is the one of Miller (2024), "Adding Error Bars to Evals", arXiv
    2411.00640, section 2.2, equation 4. A large cluster draws the mean to itself, so that its deviations are too small:
    the divisor is the correction CR2 of Bell and McCaffrey (2002), Survey Methodology 28:169-181, for a mean. With G
    clusters of one size it is the factor G / (G - 1).

    Raises `ValueError` for fewer than two clusters, or where the two lists differ in length.
    """
    sums, sizes, n = *_deviations(values, clusters), len(values)
    if len(sums) < 2:
        raise ValueError(f"{len(sums)} clusters; the spread between clusters takes at least two")
    return math.sqrt(math.fsum(s * s * n / (n - size) for s, size in zip(sums, sizes, strict=True))) / n


def effective_clusters(clusters: Sequence[Hashable]) -> float:
    """How many clusters of one size tell as much as these do: n^2 / (sum of n_g^2), in [1, G].

    Source: Carter, Schnepel and Steigerwald (2017), Review of Economics and Statistics 99:698-709, for values that are
    alike within a cluster.
    """
    return len(clusters) ** 2 / sum(size * size for size in Counter(clusters).values())


def _degrees(clusters: Sequence[Hashable]) -> int:
    """Of freedom: the effective clusters less one, rounded down; 1 at least."""
    return max(1, int(effective_clusters(clusters)) - 1)


def mean_interval(
    values: Sequence[float],
    bounds: tuple[float, float],
    clusters: Sequence[Hashable] | None = None,
    *,
    cut: tuple[float, float] | None = None,
) -> Interval:
    """Mean of `values` [n] in `bounds`, one a task, with a 95 % interval; differences for a paired one.

    Student's t interval, cut at the bounds, or at `cut` where they are only those of what was seen, with one degree of
    freedom less than there are `effective_clusters`; each value is a cluster of its own where `clusters` is None. It is
    the clustered interval of Miller (2024), "Adding Error Bars to Evals", arXiv 2411.00640, also for paired differences
    of scores and for averages of several tries at a task. Where all clusters are equal, or there is one, their spread
    shows nothing: then at most a share `1 - 0.025^(1/G)` of the G effective clusters can be otherwise (the exact
    binomial bound of Clopper and Pearson, 1934), each as far as the bounds.

    Raises `ValueError` without values or for one outside of the bounds.
    """
    n = len(values)
    low, high = bounds
    if n == 0 or not all(low <= value <= high for value in values):
        raise ValueError(f"{n} values in [{low}, {high}] expected; give at least one, and none outside")
    clusters = range(n) if clusters is None else clusters
    (sums, _), mean = _deviations(values, clusters), math.fsum(values) / n
    if len(sums) == 1 or math.fsum(s * s for s in sums) <= n * (1e-9 * (high - low)) ** 2:  # equal but for rounding
        otherwise = 1 - 0.025 ** (1 / effective_clusters(clusters))
        return Interval(estimate=mean, low=mean - otherwise * (mean - low), high=mean + otherwise * (high - mean))
    half = student_t_975(_degrees(clusters)) * clustered_standard_error(values, clusters)
    low, high = cut or bounds
    return Interval(estimate=mean, low=max(low, mean - half), high=min(high, mean + half))


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
    """How many independent tasks, each tried once, carry as much information as these n success rates: in [1, n].

    n / deff * (t(n-1) / t(G-1))^2, where deff (Kish, 1965) is the clustered variance of the mean over the
    binomial one, p (1 - p) / (n - 1), and G the number of `effective_clusters`. Never more than n: neither families nor
    several tries at a task make an interval narrower. The factor for few clusters is that of Korn and Graubard (1998),
    Survey Methodology 24:193-201. Where the families are exactly alike, their spread is unknown; then each effective
    family counts as one task.
    """
    n, families = len(rates), len(_deviations(rates, clusters)[0])
    if families == n:
        return float(n)
    mean = math.fsum(rates) / n
    robust = clustered_standard_error(rates, clusters) ** 2 if families > 1 else 0.0
    if robust <= 1e-18:
        return effective_clusters(clusters)
    few = (student_t_975(n - 1) / student_t_975(_degrees(clusters))) ** 2
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


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """P-values adjusted for being several, by key: the chance of any false alarm among them is held.

    Source: Holm (1979), Scandinavian Journal of Statistics 6:65-70. Each is multiplied by the number of those at least
    as large, and none is below a smaller one's.
    """
    adjusted: dict[K, float] = {}
    floor = 0.0
    for place, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        floor = max(floor, min(1.0, p_values[key] * (len(p_values) - place)))
        adjusted[key] = floor
    return {key: adjusted[key] for key in p_values}


def _deviations(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[list[float], list[int]]:
    """The sum of each cluster's deviations from the mean of all values [G], and how many it has [G]."""
    if len(values) != len(clusters) or not values:
        raise ValueError(
            f"{len(values)} values in {len(clusters)} clusters; give each value its cluster, and at least one"
        )
    mean = math.fsum(values) / len(values)
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value - mean)
    return [math.fsum(group) for group in groups.values()], [len(group) for group in groups.values()]


class PassRate(BaseModel, frozen=True):
    """A rate over the `tasks` that were scored at least k times; the others are counted in `left_out`."""

    k: int
    tasks: int
    left_out: int
    interval: Interval
    worst_case: float | None = None
    """The rate over all tasks with k tries, where every unscored try counts as failed. None in reports of before it was
    counted."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` tries succeeds, from `c` successes in `n` tries: 1 - C(n-c, k) / C(n, k).

    Unbiased: it is the share of the choices of k of the n tries that hold a success.
    Source: Chen et al. (2021), "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, equation 1.
    Raises `ValueError` unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of `k` tries succeed (pass^k), from `c` successes in `n` tries: C(c, k) / C(n, k).

    Source: Yao et al. (2024), "tau-bench", arXiv 2406.12045, section 3. Raises `ValueError` as `pass_at_k` does.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"n={n}, c={c}, k={k}; it takes 0 <= c <= n tries and 1 <= k <= n")


def pass_rates(
    successes: Mapping[str, tuple[int, int]], families: Mapping[str, str], unscored: Mapping[str, int]
) -> tuple[list[PassRate], list[PassRate]]:
    """pass@k and pass^k for k = 1, 2, 4, ... and the largest number of tries; empty where no task was tried twice.

    `successes`: task id -> (successes, scored tries). `families`: task id -> family. `unscored`: task id -> how many
    further tries have no score, also of tasks without any score. Means over tasks with intervals
    that count families, see `mean_interval`.
    """
    most = max((n for _, n in successes.values()), default=0)
    if most < 2:
        return [], []
    ks = sorted({*(2**power for power in range(most.bit_length())), most})
    all_tries = [
        (c, n + unscored.get(task, 0)) for task in {**successes, **unscored} for c, n in [successes.get(task, (0, 0))]
    ]
    at: list[PassRate] = []
    hat: list[PassRate] = []
    for k in ks:
        enough = [task for task, (_, n) in successes.items() if n >= k]
        clusters = [families[task] for task in enough]
        for rates, formula in ((at, pass_at_k), (hat, pass_hat_k)):
            values = [formula(successes[task][1], successes[task][0], k) for task in enough]
            interval = mean_interval(values, (0.0, 1.0), clusters)
            worst = [formula(n, c, k) for c, n in all_tries if n >= k]
            rates.append(
                PassRate(
                    k=k,
                    tasks=len(enough),
                    left_out=len({**successes, **unscored}) - len(enough),
                    interval=interval,
                    worst_case=math.fsum(worst) / len(worst),
                )
            )
    return at, hat
