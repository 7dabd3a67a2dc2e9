"""Intervals and tests for success on tasks. No random numbers: the same rollouts give the same figures.

All intervals are two-sided; `z = 1.96` is the normal quantile of 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import NormalDist

from pydantic import BaseModel, ConfigDict

Z_95 = NormalDist().inv_cdf(0.975)


class Interval(BaseModel):
    """An estimate with the ends of its confidence interval: `low <= estimate <= high`."""

    model_config = ConfigDict(frozen=True)

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
        raise ValueError(f"{successes} successes of {n} are no rate; it takes n > 0 and 0 <= successes <= n")
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


def mean_interval(values: Sequence[float], bounds: tuple[float, float]) -> Interval:
    """Mean of independent values in `bounds`, with a 95 % interval. One value a task; differences for a paired one.

    Student's t interval, cut at the bounds. For paired differences of scores, and for averages of several tries
    at a task, this is the clustered interval of Miller (2024), "Adding Error Bars to Evals", arXiv 2411.00640.
    Where all values are equal their spread says nothing: then at most a share `1 - 0.025^(1/n)` of tasks can be
    otherwise (the exact binomial bound of Clopper and Pearson, 1934), each as far as the bounds.

    Raises `ValueError` without values or for one outside of the bounds.
    """
    n = len(values)
    low, high = bounds
    if n == 0 or not all(low <= value <= high for value in values):
        raise ValueError(f"{n} values in [{low}, {high}] expected; give at least one, and none outside")
    mean = math.fsum(values) / n
    spread = math.fsum((value - mean) ** 2 for value in values)
    if n == 1 or max(values) == min(values):
        mean = values[0]
        otherwise = 1 - 0.025 ** (1 / n)
        return Interval(estimate=mean, low=mean - otherwise * (mean - low), high=mean + otherwise * (high - mean))
    half = student_t_975(n - 1) * math.sqrt(spread / (n - 1) / n)
    return Interval(estimate=mean, low=max(low, mean - half), high=min(high, mean + half))


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
