"""What was done is judged by what happened: the state and the calls, not by what is said about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts_for_verifiers import rollout

from sandboxes import diff
from sdk.errors import ConfigError, VerifierError
from sdk.verifiers import all_of, answer_match, any_of, calls_match, final_state, required_calls, run_verifier, weighted

BEFORE = {"orders": {"1": {"status": "processing", "total": 12}, "2": {"status": "processing", "total": 5}}}
CANCELLED = {"orders": {"1": {"status": "cancelled", "total": 12}, "2": {"status": "processing", "total": 5}}}
BOTH = {"orders": {"1": {"status": "cancelled", "total": 12}, "2": {"status": "cancelled", "total": 5}}}
GOLD = [{"table": "orders", "key": "1", "column": "status", "before": "processing", "after": "cancelled"}]


async def judge(verifier, **fields):
    return await run_verifier(verifier, rollout(**fields))


async def test_exactly_the_expected_changes_are_right():
    verdict = await judge(final_state(), expected={"changes": GOLD}, before=BEFORE, after=CANCELLED)
    assert (verdict.score, verdict.components) == (1.0, {"changes": 1.0})


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (BEFORE, r"missing: orders\['1'\].status to 'cancelled'"),
        (BOTH, r"not asked for: orders\['2'\].status to 'cancelled'"),
        (
            {"orders": {**CANCELLED["orders"], "1": {"status": "refunded", "total": 12}}},
            r"wrong: orders\['1'\].status is 'refunded' instead of 'cancelled'",
        ),
        ({"orders": {"1": CANCELLED["orders"]["1"]}}, "not asked for"),
        ({**CANCELLED, "refunds": {"1": {"amount": 12}}}, r"not asked for: refunds\['1'\].amount to 12"),
    ],
)
async def test_a_missing_wrong_or_further_change_is_not(after, reason):
    import re

    verdict = await judge(final_state(), expected={"changes": GOLD}, before=BEFORE, after=after)
    assert verdict.score == 0
    assert re.search(reason, verdict.explanation), verdict.explanation


async def test_no_changes_expected_means_that_nothing_may_change():
    assert (await judge(final_state(), expected={"changes": []}, before=BEFORE, after=BEFORE)).score == 1
    assert (await judge(final_state(), expected={"changes": []}, before=BEFORE, after=CANCELLED)).score == 0


async def test_a_row_with_no_value_but_its_key_is_a_change_too():
    before = {"blocked": {"C1": {}}, "notes": {}}
    for after, said in (
        ({"blocked": {"C1": {}, "C2": {}}, "notes": {}}, "not asked for: blocked['C2'] to {}"),
        ({"blocked": {}, "notes": {}}, "not asked for: blocked['C1'] to None"),
        ({"blocked": {"C1": {}}, "notes": {"1": {"text": None}}}, "not asked for: notes['1'] to {}"),
    ):
        verdict = await judge(final_state(), expected={"changes": []}, before=before, after=after)
        assert (verdict.score, verdict.explanation) == (0, said)
        gold = {"changes": [dict(change) for change in diff(before, after)]}
        assert (await judge(final_state(), expected=gold, before=before, after=after)).score == 1
        assert (await judge(final_state(), expected=gold, before=before, after=before)).score == 0


async def test_ignored_tables_and_columns_do_not_matter():
    after = {"orders": CANCELLED["orders"], "log": {"1": {"text": "cancelled"}}}
    after["orders"] = {**after["orders"], "1": {**after["orders"]["1"], "seen": "now"}}
    verifier = final_state(ignore=("log", "orders.seen"))
    assert (await judge(verifier, expected={"changes": GOLD}, before=BEFORE, after=after)).score == 1
    assert (await judge(final_state(), expected={"changes": GOLD}, before=BEFORE, after=after)).score == 0


@pytest.mark.parametrize(("ignore", "score"), [("orders.1.seen", 1), ("orders.2.seen", 0)])
async def test_one_value_is_ignored_of_one_row(ignore, score):
    after = {**CANCELLED, "orders": {**CANCELLED["orders"], "1": {**CANCELLED["orders"]["1"], "seen": "now"}}}
    gold = {"expected": {"changes": GOLD}, "before": BEFORE, "after": after}
    assert (await judge(final_state(ignore=(ignore,)), **gold)).score == score
    whole = {"expected": {"state": CANCELLED}, "before": BEFORE, "after": after}
    assert (await judge(final_state(ignore=(ignore,)), **whole)).score == score


async def test_what_is_ignored_is_not_asked_for_either():
    seen = {"table": "orders", "key": "1", "column": "seen", "before": None, "after": "Monday"}
    logged = {"table": "log", "key": "1", "column": "text", "after": "cancelled on Monday"}
    after = {"orders": {**CANCELLED["orders"], "1": {**CANCELLED["orders"]["1"], "seen": "Tuesday"}}}
    verifier = final_state(ignore=("log", "orders.seen"))
    gold = {"changes": [*GOLD, seen, logged]}
    verdict = await judge(verifier, expected=gold, before=BEFORE, after=after)
    assert (verdict.score, verdict.explanation) == (1, "the 1 expected changes and no others")
    assert (await judge(final_state(), expected=gold, before=BEFORE, after=after)).score == 0
    assert (await judge(verifier, expected=gold, before=BEFORE, after=BEFORE)).score == 0


@pytest.mark.parametrize("state", ["equals", "contains"])
async def test_what_is_ignored_does_not_matter_in_a_whole_state_either(state):
    one = CANCELLED["orders"]["1"]
    gold = {"orders": {**CANCELLED["orders"], "1": {**one, "seen": "Monday"}}, "log": {}}
    after = {"orders": {**CANCELLED["orders"], "1": {**one, "seen": "Tuesday"}}, "log": {"1": {"text": "cancelled"}}}
    verifier = final_state(state=state, ignore=("log", "orders.seen"))
    assert (await judge(verifier, expected={"state": gold}, after=after)).score == 1
    assert (await judge(final_state(state=state), expected={"state": gold}, after=after)).score == 0
    assert (await judge(verifier, expected={"state": gold}, after={**after, "orders": BEFORE["orders"]})).score == 0


async def test_the_final_state_equals_or_contains_the_expected_one():
    part = {"orders": {"1": {"status": "cancelled"}}}
    contains = final_state(state="contains")
    assert (await judge(final_state(), expected={"state": CANCELLED}, after=CANCELLED)).score == 1
    assert (await judge(final_state(), expected={"state": part}, after=CANCELLED)).score == 0
    assert (await judge(contains, expected={"state": part}, after=CANCELLED)).score == 1
    assert (await judge(contains, expected={"state": part}, after=BEFORE)).score == 0
    assert (await judge(contains, expected={"state": {"flag": True}}, after={"flag": 1})).score == 0
    both = {"state": part, "changes": GOLD}
    verdict = await judge(contains, expected=both, before=BEFORE, after=BOTH)
    assert (verdict.score, verdict.components) == (0, {"changes": 0.0, "state": 1.0})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expected": {"changes": GOLD}}, "has no initial state: the tools cannot tell their state"),
        ({"expected": {"changes": GOLD}, "before": BEFORE}, "has no final state"),
        ({"expected": {"state": {}}}, "has no final state"),
        ({"expected": {"answer": "x"}}, r"expects \['answer'\]; final_state compares"),
        ({"expected": {"changes": {"a": 1}}, "before": {}, "after": {}}, "it must be a list of"),
        ({"expected": {"changes": [{"table": "t"}]}, "before": {}, "after": {}}, "it must be a list of"),
        ({"expected": {"changes": [*GOLD, *GOLD]}, "before": {}, "after": {}}, "twice"),
        ({"expected": {"changes": []}, "before": {"n": 1}, "after": {"n": 2}}, "is not a table -> key"),
    ],
)
async def test_what_cannot_be_known_is_an_error_and_no_verdict(fields, message):
    with pytest.raises(VerifierError, match=message):
        await judge(final_state(), **fields)


async def test_an_expected_state_that_every_state_contains_is_an_error():
    with pytest.raises(VerifierError, match="which every state contains"):
        await judge(final_state(state="contains"), expected={"state": {}}, before=BEFORE, after=BEFORE)


states = st.dictionaries(
    st.sampled_from("tu"),
    st.dictionaries(st.sampled_from("123"), st.dictionaries(st.sampled_from("xy"), st.integers(0, 2), min_size=1)),
)


@given(states, states, states)
async def test_the_gold_changes_of_one_ending_accept_no_other_ending(before, after, other):
    expected = {"changes": diff(before, after)}
    assert (await judge(final_state(), expected=expected, before=before, after=after)).score == 1
    verdict = await judge(final_state(), expected=expected, before=before, after=other)
    assert verdict.score == float(not diff(after, other))


GET = {"name": "get_order", "arguments": {"order_id": 1}}
CANCEL = {"name": "cancel_order", "arguments": {"order_id": 1, "reason": "late"}}
MADE_GET = ("get_order", {"order_id": 1})
MADE_CANCEL = ("cancel_order", {"reason": "late", "order_id": 1})


@pytest.mark.parametrize(
    ("verifier", "calls", "score"),
    [
        (required_calls(), [MADE_GET, MADE_CANCEL], 1),
        (required_calls(), [MADE_CANCEL, ("find", {}), MADE_GET], 1),
        (required_calls(), [MADE_GET], 0),
        (required_calls(), [], 0),
        (required_calls(), [MADE_GET, (*MADE_CANCEL, "refused")], 0),
        (required_calls(), [MADE_GET, ("cancel_order", {"order_id": 1})], 0),
        (required_calls(), [MADE_GET, ("cancel_order", {"order_id": 1, "reason": "late", "force": True})], 0),
        (required_calls(), [("get_order", {"order_id": True}), MADE_CANCEL], 0),
        (required_calls(), [("get_order", {"order_id": "1"}), MADE_CANCEL], 0),
        (required_calls(ordered=True), [MADE_GET, ("find", {}), MADE_CANCEL], 1),
        (required_calls(ordered=True), [MADE_CANCEL, MADE_GET], 0),
        (required_calls(only=True), [MADE_GET, MADE_CANCEL], 1),
        (required_calls(only=True), [MADE_GET, MADE_CANCEL, MADE_GET], 0),
        (required_calls(only=True), [MADE_GET, ("find", {}, "refused"), MADE_CANCEL], 1),
        (required_calls(forbid=["refund"]), [MADE_GET, MADE_CANCEL], 1),
        (required_calls(forbid=["refund"]), [MADE_GET, MADE_CANCEL, ("refund", {})], 0),
        (required_calls(forbid=["refund"]), [("refund", {}, "refused"), MADE_GET, MADE_CANCEL], 0),
    ],
)
async def test_gold_calls_must_have_succeeded_with_equal_arguments(verifier, calls, score):
    assert (await judge(verifier, expected={"calls": [GET, CANCEL]}, calls=calls)).score == score


@pytest.mark.parametrize(("given", "score"), [("17", 0), (17, 0), (" 17 ", 0), (18, 1), ("17a", 1), (None, 1)])
async def test_a_forbidden_call_is_seen_whether_its_arguments_are_numbers_or_texts(given, score):
    expected = {"forbid": [{"name": "refund", "arguments": {"order": "17"}}]}
    assert (await judge(calls_match(), expected=expected, calls=[("refund", {"order": given})])).score == score


async def test_two_equal_gold_calls_need_two_calls():
    expected = {"calls": [GET, GET]}
    verdict = await judge(required_calls(), expected=expected, calls=[MADE_GET])
    assert (verdict.score, verdict.components["required"]) == (0, 0.5)
    assert (await judge(required_calls(), expected=expected, calls=[MADE_GET, MADE_GET])).score == 1


async def test_the_right_state_reached_with_a_forbidden_call_is_wrong():
    verifier = all_of(final_state(), required_calls())
    expected = {"changes": GOLD, "forbid": ["admin_reset"]}
    fields = {"expected": expected, "before": BEFORE, "after": CANCELLED}
    assert (await judge(verifier, calls=[MADE_CANCEL], **fields)).score == 1
    assert (await judge(verifier, calls=[MADE_CANCEL, ("admin_reset", {})], **fields)).score == 0


async def test_the_right_answer_with_a_wrong_act_besides_is_wrong():
    verifier = all_of(final_state(), answer_match())
    expected = {"changes": GOLD, "answer": "cancelled"}
    assert (await judge(verifier, answer="cancelled", expected=expected, before=BEFORE, after=CANCELLED)).score == 1
    verdict = await judge(verifier, answer="cancelled", expected=expected, before=BEFORE, after=BOTH)
    assert verdict.score == 0
    assert verdict.components == {
        "final_state": 0.0,
        "final_state.changes": 0.0,
        "answer_match": 1.0,
        "answer_match.answer": 1.0,
    }
    assert "not asked for" in verdict.explanation


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"answer": 1}, r"required_calls compares with expected\['calls'\]"),
        ({"calls": "get"}, "it must be a list"),
        ({"calls": [{"tool": "get"}]}, "it must be a list"),
        ({"calls": [], "forbid": "refund"}, "give a list of names"),
        ({"calls": [{"name": "get", "arguments": {"x": [{"$text": "chair"}]}}]}, r"use calls_match\(\)"),
        ({"calls": [{"name": "get", "arguments": {"x": {"$near": 1, "within": 1}}}]}, r"use calls_match\(\)"),
    ],
)
async def test_gold_calls_of_another_form_are_an_error(expected, message):
    with pytest.raises(VerifierError, match=message):
        await judge(required_calls(), expected=expected)


@pytest.mark.parametrize(
    "value", [{"$set": {"status": "open"}}, {"$text": {"$search": "chair"}}, {"$near": [1, 2]}, {"$gt": 1, "$lt": 2}]
)
async def test_arguments_of_apis_that_only_look_like_patterns_are_compared_as_they_are(value):
    expected = {"calls": [{"name": "update", "arguments": {"change": value}}]}
    assert (await judge(required_calls(), expected=expected, calls=[("update", {"change": value})])).score == 1
    assert (await judge(required_calls(), expected=expected, calls=[("update", {"change": {}})])).score == 0


def half(rollout):
    return 0.5


def right(rollout):
    return True


def broken(rollout):
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("verifier", "score"),
    [
        (all_of(right, right), 1),
        (all_of(right, half), 0),
        (any_of(right, half), 1),
        (any_of(half, half), 0),
        (weighted({right: 0.5, half: 1}), 1.0),
        (weighted({right: 1, half: -2}), 0.0),
        (all_of(any_of(half, right), right), 1),
    ],
)
async def test_combinations_give_the_scores_worked_out_by_hand(verifier, score):
    assert (await judge(verifier)).score == score


async def test_parts_of_one_name_stay_apart():
    verdict = await judge(all_of(right, right, right))
    assert verdict.components == {"right": 1.0, "right#2": 1.0, "right#3": 1.0}


async def test_a_broken_part_is_an_error_even_where_another_part_would_do():
    with pytest.raises(VerifierError, match=r"any_of\(right, broken\): the verifier broken raised OSError: no disk"):
        await judge(any_of(right, broken))


def test_combinations_of_nothing_or_of_nonsense_are_refused():
    for combine in (all_of, any_of):
        with pytest.raises(ConfigError, match="combines nothing"):
            combine()
        with pytest.raises(ConfigError, match="the verifier is 3"):
            combine(right, 3)
    with pytest.raises(ConfigError, match="the weight of right is nan"):
        weighted({right: float("nan")})
    with pytest.raises(ConfigError, match="is not a mapping"):
        weighted([right])
    with pytest.raises(ConfigError, match="forbid is 'refund'"):
        required_calls(forbid="refund")
    with pytest.raises(ConfigError, match="choose 'equals' or 'contains'"):
        final_state(state="like")


def test_a_verifier_shows_how_it_was_made():
    verifier = all_of(final_state(ignore=("log",)), required_calls(ordered=True, forbid=["refund"]), right)
    assert (
        repr(verifier)
        == "all_of(final_state(ignore=('log',)), required_calls(ordered=True, forbid=('refund',)), right)"
    )
    assert repr(weighted({right: 0.5})) == "weighted({right: 0.5})"
