"""Clustered intervals, exact tests on families, adjusted p-values, pass@k and pass^k: by hand and by property."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.evaluation.statistics import (
    clustered_standard_error,
    clustered_wilson,
    effective_clusters,
    effective_tasks,
    holm,
    mcnemar_exact,
    mean_interval,
    pass_at_k,
    pass_hat_k,
    pass_rates,
    sign_flip_exact,
    wilson,
)


@st.composite
def clustered(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Rates and the family of each."""
    n = draw(st.integers(1, 25))
    rates = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n))
    return rates, draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))


def counts() -> st.SearchStrategy[tuple[int, int, int]]:
    """(n, c, k)"""
    return st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


# ---- clusters


def test_the_clustered_standard_error_has_the_value_computed_by_hand() -> None:
    # Two families, (1, 1) and (0, 1, 0): mean 0.6; deviations sum to 0.8 and -0.8.
    # sqrt(0.64 / (1 - 2/5) + 0.64 / (1 - 3/5)) / 5 = sqrt(2.6667) / 5 = 0.3266.
    assert clustered_standard_error([1, 1, 0, 1, 0], "aabbb") == pytest.approx(0.3266, abs=1e-4)


def test_families_of_one_size_count_as_themselves_and_a_large_one_beside_small_ones_as_few() -> None:
    assert effective_clusters("aabbcc") == 3
    assert effective_clusters("a" * 20 + "bcdefghijk") == pytest.approx(900 / 410)


@pytest.mark.parametrize("sizes", [[8] * 5, [20, *[1] * 10], [10, 10, *[1] * 10], [12, 6, 4, 3, 2, 1, 1, 1]])
def test_intervals_over_families_of_any_sizes_hold_the_true_rate_nearly_as_often_as_they_promise(
    sizes: list[int],
) -> None:
    random, families = Random(0), [family for family, size in enumerate(sizes) for _ in range(size)]
    held = {"rate": 0, "mean": 0}
    for _ in range(draws := 300):
        chances = [random.betavariate(0.5, 0.5) for _ in sizes]
        right = [float(random.random() < chances[family]) for family in families]
        for name, found in (
            ("rate", clustered_wilson(right, families)),
            ("mean", mean_interval(right, (0, 1), families)),
        ):
            held[name] += found.low <= 0.5 <= found.high
    assert held["rate"] >= 0.92 * draws
    assert held["mean"] >= 0.88 * draws


def test_the_clustered_interval_has_the_value_computed_by_hand() -> None:
    # Three families of two: means 1, 0.5, 0; deviations sum to 1, 0, -1; sqrt(3 / 2 * 2) / 6 = 0.288675; t(2) = 4.3027.
    interval = mean_interval([1, 1, 1, 0, 0, 0], (-5.0, 5.0), "aabbcc")
    half = 4.3027 * math.sqrt(3) / 6
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((0.5 - half, 0.5, 0.5 + half), abs=1e-4)


def test_the_effective_number_of_tasks_has_the_value_computed_by_hand() -> None:
    # The same rates: binomial variance 0.25 / 5 = 0.05, clustered 3 / 36 = 0.08333, so deff = 5 / 3.
    # 6 / (5 / 3) * (t(5) / t(2))^2 = 3.6 * (2.5706 / 4.3027)^2 = 1.2850.
    rates = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert effective_tasks(rates, "aabbcc") == pytest.approx(1.2850, abs=2e-3)
    assert clustered_wilson(rates, "aabbcc") == wilson(
        0.5 * effective_tasks(rates, "aabbcc"), effective_tasks(rates, "aabbcc")
    )


def test_equal_families_count_as_one_task_each() -> None:
    assert clustered_wilson([1.0] * 12, "aaaabbbbcccc") == wilson(3, 3)
    assert mean_interval([0.0] * 12, (0, 1), "aaaabbbbcccc") == mean_interval([0.0] * 3, (0, 1))
    assert effective_tasks([1.0, 0.0, 1.0], "aaa") == 1


def test_families_that_are_alike_by_chance_do_not_narrow_the_interval() -> None:
    families = "a" * 20 + "b" * 20
    alike, nearly = [1.0] * 18 + [0.0] * 2, [1.0] * 17 + [0.0] * 3
    assert clustered_wilson(alike * 2, families) == wilson(1.8, 2)
    narrow, wide = clustered_wilson(alike * 2, families), clustered_wilson(nearly + alike, families)
    assert narrow.high - narrow.low > 0.7 * (wide.high - wide.low)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=30))
def test_families_of_one_task_change_nothing(rates: list[float]) -> None:
    alone = list(range(len(rates)))
    assert clustered_wilson(rates, alone) == wilson(math.fsum(rates), len(rates))
    assert mean_interval(rates, (0, 1), alone) == mean_interval(rates, (0, 1))


@given(clustered())
def test_a_clustered_interval_contains_the_estimate_and_is_never_narrower_than_wilsons(
    case: tuple[list[float], list[int]],
) -> None:
    rates, families = case
    plain, found = wilson(math.fsum(rates), len(rates)), clustered_wilson(rates, families)
    assert 0 <= found.low <= found.estimate <= found.high <= 1
    assert found.high - found.low >= plain.high - plain.low - 1e-9
    assert 1 <= effective_tasks(rates, families) <= len(rates)
    mean = mean_interval(rates, (0, 1), families)
    assert 0 <= mean.low <= mean.estimate <= mean.high <= 1


def test_values_without_a_family_each_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values in 1 clusters"):
        mean_interval([0.0, 1.0], (0, 1), "a")
    with pytest.raises(ValueError, match="at least two"):
        clustered_standard_error([0.0, 1.0], "aa")


# ---- exact tests


def test_flipping_the_signs_of_families_has_the_value_computed_by_hand() -> None:
    # Sums 2, 1 and -1: |2| of the 8 signed sums 4 2 2 0 0 -2 -2 -4 is reached by 6.
    ones = [Fraction(1)] * 3 + [Fraction(-1)]
    assert sign_flip_exact(ones, "aabc") == pytest.approx(6 / 8)
    # Halves: sums 1/2, 1/2 and 1: 2 is reached by two of the eight.
    assert sign_flip_exact([Fraction(1, 2), Fraction(1, 2), Fraction(1)], "abc") == pytest.approx(2 / 8)


@given(st.lists(st.integers(-1, 1), max_size=40))
def test_with_one_task_a_family_it_is_mcnemars_exact_test(signs: list[int]) -> None:
    p = sign_flip_exact([Fraction(sign) for sign in signs], list(range(len(signs))))
    assert p == pytest.approx(mcnemar_exact(signs.count(1), signs.count(-1)))


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_flipping_signs_agrees_with_trying_all_ways(case: list[tuple[int, int]]) -> None:
    differences = [Fraction(value, 4) for value, _ in case]
    families = [family for _, family in case]
    sums = [sum(d for d, f in zip(differences, families, strict=True) if f == family) for family in set(families)]
    ways = [
        abs(sum(s * x for s, x in zip(signs, sums, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(sums))
    ]
    assert sign_flip_exact(differences, families) == pytest.approx(sum(w >= abs(sum(sums)) for w in ways) / len(ways))


def test_a_test_that_would_take_too_long_is_left_out_and_not_guessed() -> None:
    odd = [Fraction(1, n) for n in range(2, 40)]
    assert sign_flip_exact(odd, list(range(len(odd)))) is None


def test_holm_has_the_values_computed_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.04: times 3, 2 and 1 are 0.03, 0.04 and 0.04.
    assert holm({"a": 0.04, "b": 0.01, "c": 0.02}) == pytest.approx({"a": 0.04, "b": 0.03, "c": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


@given(st.lists(st.floats(0, 1), max_size=8))
def test_adjusted_p_values_are_no_smaller_and_keep_their_order(values: list[float]) -> None:
    p_values = {str(place): value for place, value in enumerate(values)}
    adjusted = holm(p_values)
    assert adjusted.keys() == p_values.keys()
    assert all(p <= adjusted[name] <= 1 for name, p in p_values.items())
    order = sorted(p_values, key=lambda name: p_values[name])
    assert [adjusted[name] for name in order] == sorted(adjusted.values())


# ---- several tries


@pytest.mark.parametrize(
    ("n", "c", "k", "at", "hat"),
    [
        (5, 2, 1, 2 / 5, 2 / 5),
        (5, 2, 2, 1 - 3 / 10, 1 / 10),  # C(3, 2) = 3, C(2, 2) = 1, of C(5, 2) = 10
        (4, 3, 3, 1.0, 1 / 4),  # one failure: no three fail; C(3, 3) of C(4, 3)
        (4, 0, 4, 0.0, 0.0),
        (4, 4, 4, 1.0, 1.0),
    ],
)
def test_pass_at_k_and_pass_hat_k_have_the_values_computed_by_hand(
    n: int, c: int, k: int, at: float, hat: float
) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(at)
    assert pass_hat_k(n, c, k) == pytest.approx(hat)


@given(counts())
def test_pass_hat_k_is_what_pass_at_k_leaves_to_the_failures(case: tuple[int, int, int]) -> None:
    n, c, k = case
    assert pass_at_k(n, c, k) == pytest.approx(1 - pass_hat_k(n, n - c, k))
    assert 0 <= pass_hat_k(n, c, k) <= c / n + 1e-12
    assert c / n - 1e-12 <= pass_at_k(n, c, k) <= 1


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices_with_a_success(case: tuple[int, int, int]) -> None:
    n, c, k = case
    chosen = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(tries) for tries in chosen) / len(chosen))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(all(tries) for tries in chosen) / len(chosen))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_impossible_counts_of_tries_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="it takes 0 <= c <= n tries and 1 <= k <= n"):
        pass_at_k(n, c, k)


def test_rates_of_several_tries_leave_out_tasks_with_too_few_and_say_so() -> None:
    at, hat = pass_rates({"a": (1, 3), "b": (2, 2), "c": (0, 3)}, {"a": "a", "b": "b", "c": "c"}, {})
    assert [(rate.k, rate.tasks, rate.left_out) for rate in at] == [(1, 3, 0), (2, 3, 0), (3, 2, 1)]
    assert [rate.interval.estimate for rate in at] == pytest.approx([(1 / 3 + 1) / 3, (2 / 3 + 1) / 3, 1 / 2])
    assert [rate.interval.estimate for rate in hat] == pytest.approx([(1 / 3 + 1) / 3, (0 + 1) / 3, 0])
    assert [rate.worst_case for rate in at] == pytest.approx([rate.interval.estimate for rate in at])
    assert pass_rates({"a": (1, 1)}, {"a": "a"}, {}) == ([], [])


def test_unscored_tries_count_as_failed_in_the_worst_case_of_several_tries() -> None:
    at, hat = pass_rates({"a": (2, 2)}, {"a": "a"}, {"a": 1, "b": 3})
    assert [(rate.k, rate.interval.estimate, rate.left_out) for rate in at] == [(1, 1, 1), (2, 1, 1)]
    # Of a, two of three tries are right, and no choice of two has none of them; of b, none is.
    assert [rate.worst_case for rate in at] == pytest.approx([(2 / 3 + 0) / 2, (1 + 0) / 2])
    assert [rate.worst_case for rate in hat] == pytest.approx([(2 / 3 + 0) / 2, (1 / 3 + 0) / 2])
