"""Intervals and tests against the literature, against values computed by hand, and by their properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.evaluation.statistics import (
    Interval,
    mcnemar_exact,
    mean_interval,
    paired_rate_difference,
    student_t_975,
    wilson,
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, int, int]:
    """(gained, lost, n)"""
    gained, lost, same = (draw(st.integers(0, 60)) for _ in range(3))
    return gained, lost, max(1, gained + lost + same)


def ends(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


# ---- Wilson


def test_wilson_has_the_value_computed_by_hand() -> None:
    # 8 of 10, z = 2: (0.8 + 4/20 ± 2 sqrt(0.16/10 + 4/400)) / (1 + 4/10) = (1 ± 2 sqrt(0.026)) / 1.4
    root = math.sqrt(0.026)
    assert ends(wilson(8, 10, z=2)) == pytest.approx(((1 - 2 * root) / 1.4, (1 + 2 * root) / 1.4))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe (1998), Statistics in Medicine 17:857-872, table I, method 3 (score, without correction).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_has_the_values_of_the_literature(successes: int, n: int, low: float, high: float) -> None:
    assert ends(wilson(successes, n)) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.floats(0, n), st.just(n))))
def test_wilson_contains_the_rate_and_stays_between_zero_and_one(case: tuple[float, int]) -> None:
    interval = wilson(*case)
    assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
    assert interval.low < interval.high


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_of_the_failures_is_its_mirror_image(case: tuple[int, int]) -> None:
    successes, n = case
    there, back = wilson(successes, n), wilson(n - successes, n)
    assert ends(there) == pytest.approx((1 - back.high, 1 - back.low))


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5), (math.nan, 5)])
def test_wilson_refuses_what_is_no_rate(successes: float, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(successes, n)


# ---- paired difference of rates


def test_tango_interval_of_the_sleeping_difficulties_data() -> None:
    # Tango (1998), section 6.2: 32 pairs, 9 and 3 discordant: -0.027 to 0.390.
    assert ends(paired_rate_difference(9, 3, 32)) == pytest.approx((-0.027, 0.390), abs=5e-4)


def test_tango_interval_of_the_contact_lens_trial() -> None:
    # Tango (1998), section 6.1: 44 pairs, 0 and 1 discordant; the 90 % interval begins at -0.096.
    assert paired_rate_difference(0, 1, 44, z=1.6449).low == pytest.approx(-0.096, abs=5e-4)


def test_tango_interval_of_the_airway_reactivity_data() -> None:
    # Fagerland, Lydersen and Laake (2014), table VI: 21 pairs, 1 and 7 discordant: -0.517 to -0.026.
    assert ends(paired_rate_difference(1, 7, 21)) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_tango_interval_without_any_change_has_its_closed_form() -> None:
    # With no discordant pair the score equation becomes n d^2 = z^2 |d| (1 - |d|), so |d| = z^2 / (n + z^2).
    assert ends(paired_rate_difference(0, 0, 16, z=2)) == pytest.approx((-0.2, 0.2))


@given(pairs())
def test_paired_difference_contains_the_estimate_within_minus_one_and_one(case: tuple[int, int, int]) -> None:
    gained, lost, n = case
    interval = paired_rate_difference(gained, lost, n)
    assert interval.estimate == (gained - lost) / n
    assert -1 <= interval.low <= interval.estimate <= interval.high <= 1
    assert interval.low < interval.high


@given(pairs())
def test_paired_difference_is_mirrored_when_the_conditions_are_swapped(case: tuple[int, int, int]) -> None:
    gained, lost, n = case
    there, back = paired_rate_difference(gained, lost, n), paired_rate_difference(lost, gained, n)
    assert ends(there) == pytest.approx((-back.high, -back.low), abs=1e-9)


@given(pairs())
def test_the_ends_of_the_paired_interval_are_where_the_score_test_turns(case: tuple[int, int, int]) -> None:
    # The likelihood is maximised here by brute force, independent of Tango's closed form for it.
    gained, lost, n = case
    z = 1.959964
    interval = paired_rate_difference(gained, lost, n, z)
    for end in ends(interval):
        if abs(end) > 0.999:
            continue
        # P(lost) = q, P(gained) = q + end; the rest is 1 - 2q - end.
        low, high = max(0.0, -end), (1 - end) / 2
        golden = (math.sqrt(5) - 1) / 2

        def likelihood(q: float, end: float = end) -> float:
            cells = ((gained, q + end), (lost, q), (n - gained - lost, 1 - 2 * q - end))
            return sum(count * math.log(max(p, 1e-300)) for count, p in cells if count)

        for _ in range(90):
            a, b = high - golden * (high - low), low + golden * (high - low)
            low, high = (a, high) if likelihood(a) < likelihood(b) else (low, b)
        q = (low + high) / 2
        statistic = (gained - lost - n * end) / math.sqrt(n * (2 * q + end - end * end))
        assert abs(statistic) == pytest.approx(z, rel=1e-3)


@pytest.mark.parametrize(("gained", "lost", "n"), [(0, 0, 0), (-1, 0, 5), (3, 3, 5)])
def test_paired_difference_refuses_impossible_counts(gained: int, lost: int, n: int) -> None:
    with pytest.raises(ValueError, match="gained"):
        paired_rate_difference(gained, lost, n)


# ---- McNemar


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (7, 1, 2 * (1 + 8) / 256),  # by hand: 0.0703, as in Fagerland, Lydersen and Laake (2013)
        (10, 0, 2 / 1024),
        (5, 5, 1.0),
        (0, 0, 1.0),
        (1, 0, 1.0),
    ],
)
def test_mcnemar_has_the_values_computed_by_hand(gained: int, lost: int, p: float) -> None:
    assert mcnemar_exact(gained, lost) == pytest.approx(p)


def test_mcnemar_does_not_overflow_on_thousands_of_tasks() -> None:
    assert 0 <= mcnemar_exact(5000, 10) < 1e-300
    assert mcnemar_exact(2600, 2400) == pytest.approx(0.0049, abs=2e-4)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_a_probability_and_does_not_care_which_is_first(gained: int, lost: int) -> None:
    assert 0 < mcnemar_exact(gained, lost) <= 1
    assert mcnemar_exact(gained, lost) == mcnemar_exact(lost, gained)


# ---- means


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (120, 1.9799)],
)
def test_student_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_t_975(degrees) == pytest.approx(quantile, rel=2e-3)


def test_mean_interval_has_the_value_computed_by_hand() -> None:
    # Mean 0.5, variance (4 * 0.01) / 4 = 0.01, standard error sqrt(0.01 / 5), t(4) = 2.776.
    interval = mean_interval([0.4, 0.6, 0.4, 0.6, 0.5], (0, 1))
    half = 2.7764 * math.sqrt(0.01 / 5)
    assert interval.estimate == pytest.approx(0.5)
    assert ends(interval) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-3)


def test_equal_values_do_not_pretend_to_certainty() -> None:
    # All 10 tasks at 0: at most 1 - 0.025^(1/10) = 30.85 % of tasks can be otherwise (Clopper-Pearson for 0 of 10).
    assert ends(mean_interval([0.0] * 10, (0, 1))) == pytest.approx((0.0, 0.3085), abs=1e-4)
    rounded = [0.3 - 0.1, 0.5 - 0.3, 0.7 - 0.5, 0.9 - 0.7]
    assert ends(mean_interval(rounded, (-1, 1))) == pytest.approx(ends(mean_interval([0.2] * 4, (-1, 1))))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50))
def test_mean_interval_contains_the_mean_within_the_bounds(values: list[float]) -> None:
    interval = mean_interval(values, (-1, 1))
    assert -1 <= interval.low <= interval.estimate <= interval.high <= 1
    assert interval.estimate == pytest.approx(sum(values) / len(values), abs=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50))
def test_mean_interval_is_mirrored_when_the_conditions_are_swapped(values: list[float]) -> None:
    there, back = mean_interval(values, (-1, 1)), mean_interval([-v for v in values], (-1, 1))
    assert ends(there) == pytest.approx((-back.high, -back.low), abs=1e-9)


@pytest.mark.parametrize("values", [[], [0.5, 1.5], [math.nan]])
def test_mean_interval_refuses_no_values_and_values_outside(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values"):
        mean_interval(values, (0, 1))
