"""Gates, order and extra credit: what comes first stays first, whatever the rest says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts_for_verifiers import rollout

from sdk.errors import ConfigError, VerifierError
from sdk.evaluation.report import build_report
from sdk.records import Verdict
from sdk.verifiers import (
    all_of,
    answer_match,
    any_of,
    extra_credit,
    gated,
    lexicographic,
    run_verifier,
    thrift,
    verifier_identity,
    watched,
)

ENOUGH = settings(max_examples=40, deadline=None)


def fixed(score):
    async def says(rollout):
        return score

    return says


async def score_of(verifier, one=None):
    return (await run_verifier(verifier, one or rollout("x"))).score


async def test_a_closed_gate_gives_nothing_and_what_is_behind_it_does_not_run():
    ran = []

    def costly(rollout):
        ran.append(rollout.id)
        return 0.7

    assert await score_of(gated(fixed(1), fixed(0), then=costly)) == 0
    assert ran == []
    verdict = await run_verifier(gated(fixed(1), then=costly), rollout("x"))
    assert (verdict.score, verdict.components) == (0.7, {"says": 1.0, "costly": 0.7})
    assert ran == ["r1"]


@pytest.mark.parametrize("right", [0.6 + 0.3 + 0.1, 0.4 + 0.2 + 0.3 + 0.1])  # just below 1, and just above
async def test_parts_that_add_up_to_one_but_for_rounding_are_right(right):
    assert right != 1
    assert await score_of(all_of(fixed(right), fixed(1))) == 1
    assert await score_of(any_of(fixed(right), fixed(0))) == 1
    assert await score_of(gated(fixed(right), then=fixed(0.7))) == 0.7
    assert await score_of(extra_credit(fixed(right), {fixed(0.5): 0.2})) == pytest.approx(1.1)
    assert await score_of(lexicographic(fixed(right), fixed(right))) == await score_of(
        lexicographic(fixed(1), fixed(1))
    )


async def test_a_watcher_is_kept_and_earns_nothing():
    verdict = await run_verifier(watched(fixed(1), fixed(0), fixed(0.5)), rollout("x"))
    assert (verdict.score, verdict.components) == (1.0, {"says": 1.0, "says#2": 0.0, "says#3": 0.5})


async def test_a_watcher_that_fails_leaves_the_rollout_unscored():
    with pytest.raises(VerifierError, match="returned nan"):
        await score_of(watched(fixed(1), fixed(float("nan"))))


SHARES = st.integers(0, 10).map(lambda tenth: tenth / 10)
LISTS = st.lists(SHARES, min_size=3, max_size=3)


@ENOUGH
@given(LISTS, LISTS)
async def test_lexicographic_scores_are_ordered_as_the_parts_are(one, other):
    first = await score_of(lexicographic(*map(fixed, one)))
    second = await score_of(lexicographic(*map(fixed, other)))
    assert (first > second) == (one > other)
    assert (first == second) == (one == other)
    assert (first >= 1) == (one[0] == 1)


async def test_lexicographic_golden_values():
    # Levels 2, so base 3: (2, 1) is 2 * 3 + 1 = 7 of 2 * 3 = 6 steps to being right.
    assert await score_of(lexicographic(fixed(1), fixed(0.5), levels=2)) == 7 / 6
    assert await score_of(lexicographic(fixed(0.5), fixed(1), levels=2)) == 5 / 6
    assert await score_of(lexicographic(fixed(0.49), fixed(0.99), levels=2)) == 1 / 6


async def test_a_part_outside_0_to_1_is_no_part_of_an_order():
    with pytest.raises(VerifierError, match=r"scored 1\.5; a part must score from 0 to 1"):
        await score_of(lexicographic(fixed(1.5), fixed(0)))
    with pytest.raises(VerifierError, match="scored -1"):
        await score_of(extra_credit(fixed(1), {fixed(-1): 0.1}))


USED = st.fixed_dictionaries(
    {
        "turns": st.integers(0, 1000),
        "sampled_tokens": st.integers(0, 10**9),
        "duration_s": st.floats(0, 1e9),
        "calls": st.integers(0, 20).map(lambda count: [("look", {})] * count),
    }
)
ECONOMY = thrift(turns=8, calls=16, tokens=2048, seconds=60)


@ENOUGH
@given(st.floats(-1e6, 1, exclude_max=True), USED, USED, st.floats(0.001, 0.5))
async def test_no_saving_outweighs_being_right(wrong_score, spent, saved, weight):
    right = await score_of(extra_credit(fixed(1), {ECONOMY: weight}), rollout("x", **spent))
    wrong = await score_of(extra_credit(fixed(wrong_score), {ECONOMY: weight}), rollout("x", **saved))
    assert wrong == wrong_score
    assert wrong < 1 <= right <= 1 + weight


@ENOUGH
@given(st.floats(0, 1), st.floats(0, 1), USED, USED, st.floats(0.001, 0.5))
async def test_giving_up_right_answers_to_save_more_does_not_pay(accuracy, given_up, spent, saved, weight):
    verifier = extra_credit(fixed(1), {ECONOMY: weight})
    honest = accuracy * await score_of(verifier, rollout("x", **spent))
    thrifty = accuracy * (1 - given_up) * await score_of(verifier, rollout("x", **saved))
    if given_up > weight / (1 + weight) + 1e-9:
        assert thrifty <= honest


async def test_thrift_golden_values():
    one = rollout("x", turns=2, sampled_tokens=512, calls=[("look", {})] * 4)
    verdict = await run_verifier(thrift(turns=8, tokens=2048, calls=4), one)
    assert verdict.components == {"turns": 0.75, "calls": 0.0, "tokens": 0.75}
    assert verdict.score == 0.5
    assert verdict.explanation == "2 of 8 turns, 4 of 4 calls, 512 of 2048 tokens"


async def test_a_wrong_answer_earns_no_thrift():
    verifier = extra_credit(answer_match(), {thrift(turns=8): 0.1})
    right = await score_of(verifier, rollout("shipped", expected={"answer": "shipped"}, turns=8))
    wrong = await score_of(verifier, rollout("pending", expected={"answer": "shipped"}, turns=0))
    assert (right, wrong) == (1.0, 0.0)


async def test_scores_above_1_take_no_extra():
    with pytest.raises(VerifierError, match=r"scored 1\.5, more than 1"):
        await score_of(extra_credit(fixed(1.5), {thrift(turns=8): 0.1}))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: gated(then=fixed(1)), r"gated\(\) combines nothing"),
        (lambda: gated(fixed(1), then=3), "the verifier is 3"),
        (lambda: watched(fixed(1)), r"watched\(\) combines nothing"),
        (lambda: lexicographic(fixed(1), levels=0), "levels is 0; give a whole number from 1"),
        (lambda: lexicographic(*[fixed(1)] * 20), "more steps than one number tells apart"),
        (lambda: extra_credit(fixed(1), {thrift(turns=8): 0.6}), "weight of thrift.* is 0.6; give a number above 0"),
        (lambda: extra_credit(fixed(1), {thrift(turns=8): -0.1}), "is -0.1; give a number above 0"),
        (lambda: extra_credit(fixed(1), {thrift(turns=8): 0.3, thrift(calls=8): 0.3}), "add up to 0.6"),
        (lambda: extra_credit(fixed(1), thrift(turns=8)), "is not a mapping"),
        (lambda: thrift(), "measures nothing"),
        (lambda: thrift(turns=0), "turns is 0; give the amount above 0"),
        (lambda: thrift(seconds=float("inf")), "seconds is inf"),
    ],
)
def test_combinations_that_cannot_work_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


async def test_components_reach_the_report_and_parts_make_the_identity():
    verifier = extra_credit(gated(fixed(1), then=fixed(1)), {thrift(turns=4): 0.1})
    one = rollout("x", turns=1)
    one.verdict = await run_verifier(verifier, one)
    assert isinstance(one.verdict, Verdict)
    means = build_report({"now": [one]}).conditions["now"].components
    assert {name: mean.mean for name, mean in means.items()} == {
        "gated": 1.0,
        "gated.says": 1.0,
        "gated.says#2": 1.0,
        "thrift": 0.75,
        "thrift.turns": 0.75,
    }
    assert verifier_identity(verifier) == verifier_identity(verifier)
    other = extra_credit(gated(fixed(1), then=fixed(1)), {thrift(turns=5): 0.1})
    assert verifier_identity(verifier) != verifier_identity(other)
