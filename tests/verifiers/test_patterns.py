"""Calls with arguments that may be right in more than one way, and states that meet a condition."""

import numpy as np
import pytest
from rollouts_for_verifiers import rollout

from sdk.errors import ConfigError, VerifierError
from sdk.verifiers import calls_match, run_verifier, state_where

REFUND = {"name": "refund", "arguments": {"order": "17", "amount": {"$near": 12.5, "within": 0.01}}}
LOOK = {"name": "look", "arguments": {"query": {"$says": "late parcel"}, "limit": {"$optional": {"$any": True}}}}


async def judge(verifier, **fields):
    return await run_verifier(verifier, rollout(**fields))


async def test_arguments_within_their_tolerance_are_right():
    calls = [("look", {"query": "the Late Parcel!", "limit": 3}), ("refund", {"order": "17", "amount": 12.509})]
    for verifier in (calls_match(), calls_match(order="in_order"), calls_match(order="exact", most_mistakes=0)):
        verdict = await judge(verifier, expected={"calls": [LOOK, REFUND]}, calls=calls)
        assert verdict.score == 1, verdict.explanation


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([("look", {"query": "late parcel"})], "missing: refund"),
        ([("look", {"query": "late parcel"}), ("refund", {"order": "17", "amount": 12.52})], "missing: refund"),
        ([("look", {"query": "late parcel"}), ("refund", {"order": "17", "amount": True})], "missing: refund"),
        (
            [("look", {"query": "late parcel"}), ("refund", {"order": "17", "amount": 12.5}, "refused")],
            "missing: refund",
        ),
        ([("look", {"query": "late parcel"}), ("refund", {"order": "17", "amount": 12.5, "all": True})], "missing"),
        ([("look", {"query": "late post parcel"}), ("refund", {"order": "17", "amount": 12.5})], "missing: look"),
        ([("look", {}), ("refund", {"order": "17", "amount": 12.5})], "missing: look"),
    ],
)
async def test_a_call_that_is_missing_or_out_of_tolerance_is_not(calls, reason):
    verdict = await judge(calls_match(), expected={"calls": [LOOK, REFUND]}, calls=calls)
    assert verdict.score == 0
    assert reason in verdict.explanation


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({"start": "2026-04-01 10:00"}, True),
        ({"start": "2026-04-01T10:00:00", "note": None}, True),
        ({"start": "2026-04-01T10:00", "note": "late"}, False),
        ({"start": "2026-04-01T10:01"}, False),
        ({"start": "2026-04-01T10:00+02:00"}, False),
        ({"start": "2026-04-01T99:00"}, False),
        ({"start": None}, False),
        ({}, False),
    ],
)
async def test_a_time_in_another_spelling_and_an_argument_that_is_left_open_with_null_are_the_same(given, right):
    expected = {"calls": [{"name": "move", "arguments": {"start": "2026-04-01T10:00"}}]}
    assert (await judge(calls_match(), expected=expected, calls=[("move", given)])).score == right


A, B = ("do", {"x": 1}), ("do", {"x": 2})


@pytest.mark.parametrize(
    ("verifier", "calls", "right"),
    [
        (calls_match(), [B, A], True),
        (calls_match(order="in_order"), [B, A], False),
        (calls_match(order="in_order"), [A, A, B], True),
        (calls_match(order="exact"), [A, A, B], False),
        (calls_match(only=True), [A, B, A], False),
        (calls_match(most_mistakes=0), [A, ("do", {"x": 3}, "refused"), B], False),
        (calls_match(most_mistakes=1), [A, ("do", {"x": 3}, "refused"), B], True),
        (calls_match(), [A, A], False),
    ],
)
async def test_order_others_and_mistakes_count_as_asked(verifier, calls, right):
    gold = {"calls": [{"name": "do", "arguments": {"x": 1}}, {"name": "do", "arguments": {"x": 2}}]}
    assert (await judge(verifier, expected=gold, calls=calls)).score == right


async def test_patterns_that_overlap_are_paired_so_that_each_has_a_call():
    # Taking the first call that fits would give the only 1 to the pattern that takes anything.
    gold = [{"name": "do", "arguments": {"x": {"$any": True}}}, {"name": "do", "arguments": {"x": 1}}]
    assert (await judge(calls_match(), expected={"calls": gold}, calls=[A, B])).score == 1
    assert (await judge(calls_match(), expected={"calls": gold}, calls=[B, B])).score == 0


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ({"$one_of": ["a", {"$near": 1, "within": 0}]}, ["a", 1, 1.0], ["b", 2, True]),
        ({"$near": 12.5, "within": 0.5}, [12, 13.0], [12 - 10**400, 10**400, -(10**4000), True]),
        ({"$text": "Late parcel"}, ["late  PARCEL."], ["late", "late parcel today", 5]),
        ({"$pattern": "[A-Z]-[0-9]+"}, ["A-17"], ["A-17x", "a-17", 17]),
        ({"$set": [1, {"$any": True}]}, [[1, 2], [2, 1]], [[2, 3], [1], [1, 2, 3], "12"]),
        ({"$absent": True}, [None], ["", 0]),
        (
            {"in": [{"$says": "tea"}]},
            [{"in": ["green tea"]}],
            [{"in": ["coffee"]}, {}, {"in": []}, {"in": ["tea"], "y": 1}],
        ),
        (1, [1.0], [True, "1"]),
    ],
)
async def test_each_pattern_takes_what_it_names_and_nothing_else(pattern, right, wrong):
    gold = {"calls": [{"name": "do", "arguments": {"x": pattern}}]}
    for value in right:
        assert (await judge(calls_match(), expected=gold, calls=[("do", {"x": value})])).score == 1, value
    for value in wrong:
        assert (await judge(calls_match(), expected=gold, calls=[("do", {"x": value})])).score == 0, value
    absent = (await judge(calls_match(), expected=gold, calls=[("do", {})])).score
    assert absent == (pattern == {"$absent": True})


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ({"$any": True}, "x=(any value)"),
        ({"$absent": True}, "x=(not given)"),
        ({"$optional": {"$near": 5, "within": 1}}, "x=(5±1, or not given)"),
        ({"$one_of": ["17", {"$text": "a 17"}]}, 'x=("17" or ≈"a 17")'),
        ({"$text": "chair"}, 'x≈"chair"'),
        ({"$says": "late"}, 'x=(a text with "late")'),
        ({"$pattern": "[A-Z]-\\d+"}, 'x=(a text like "[A-Z]-\\\\d+")'),
        ({"$set": [1, {"$text": "chair"}]}, 'x=([1, ≈"chair"] in any order)'),
        ({"of": [{"$text": "chair"}, None]}, 'x={"of": [≈"chair", null]}'),
        ("late\n\u202eeht", 'x="late\\n\\u202eeht"'),
        ("=≈", 'x="=≈"'),
        ("a" * 100, 'x="' + "a" * 59 + "... (102 characters)"),
        ([[[[[[[[{"$any": True}]]]]]]]], "x=[[[[[[…]]]]]]"),
    ],
)
async def test_what_is_missing_is_said_in_words(pattern, words):
    gold = {"calls": [{"name": "do", "arguments": {"x": pattern}}]}
    verdict = await judge(calls_match(), expected=gold, calls=[])
    assert verdict.explanation == f"missing: do({words})"


async def test_what_a_policy_wrote_like_a_pattern_is_said_as_it_is():
    gold = {"calls": [], "forbid": ["do"]}
    verdict = await judge(calls_match(), expected=gold, calls=[("do", {"x": {"$text": "chair"}})])
    assert verdict.explanation == 'forbidden: do(x={"$text": "chair"})'


async def test_a_forbidden_call_counts_when_it_was_only_tried():
    gold = {"calls": [], "forbid": [{"name": "refund", "arguments": {"amount": {"$one_of": [99, 100]}}}, "wipe"]}
    assert (await judge(calls_match(), expected=gold, calls=[("refund", {"amount": 5})])).score == 1
    for call in (("refund", {"amount": 99, "order": "1"}, "refused"), ("wipe", {}, "refused")):
        assert (await judge(calls_match(), expected=gold, calls=[call])).score == 0


@pytest.mark.parametrize(
    ("pattern", "forbidden", "allowed"),
    [
        ({"limit": {"$absent": True}}, [{}, {"query": "chair"}], [{"limit": 5}]),
        ({"limit": {"$optional": 5}}, [{}, {"limit": 5}, {"limit": "5"}], [{"limit": 6}]),
        ({"limit": {"$one_of": [5, {"$absent": True}]}}, [{}, {"limit": 5}, {"limit": "5"}], [{"limit": 6}]),
        ({"order": {"id": "17"}}, [{"order": {"id": 17}}, {"order": {"id": "17"}}], [{"order": {"id": 18}}, {}]),
        ({"order": "17"}, [{"order": 17.0}, {"order": "17 "}], [{"order": 17.5}, {"order": "A-17"}]),
        ({"like": "%"}, [{"like": "%"}], [{"like": "*"}]),
        ({"orders": [17, "A"]}, [{"orders": ["17", "a"]}], [{"orders": [17]}, {"orders": [17, "B"]}]),
        ({"orders": {"$set": [17, 18]}}, [{"orders": ["18", 17]}], [{"orders": [17, 19]}]),
        ({"order": {"sum": {"$near": 5, "within": 1}}}, [{"order": {"sum": 5.5}}], [{"order": {"sum": 7}}]),
    ],
)
async def test_a_forbidden_call_is_seen_without_the_argument_and_in_other_spellings_at_any_depth(
    pattern, forbidden, allowed
):
    gold = {"forbid": [{"name": "find", "arguments": pattern}]}
    for arguments in (*forbidden, *allowed):
        verdict = await judge(calls_match(), expected=gold, calls=[("find", {"query": "chair", **arguments})])
        assert verdict.score == float(arguments in allowed), arguments


@pytest.mark.parametrize(("pattern", "earns"), [(None, 1), ({"$absent": True}, 1), ({"$optional": 5}, 1), (5, 0)])
async def test_a_null_and_an_argument_that_is_left_out_are_the_same(pattern, earns):
    gold = {"calls": [{"name": "find", "arguments": {"limit": pattern}}]}
    for arguments in ({}, {"limit": None}):
        assert (await judge(calls_match(), expected=gold, calls=[("find", arguments)])).score == earns, arguments
    assert (await judge(calls_match(), expected=gold, calls=[("find", {"limit": 6})])).score == 0


@pytest.mark.parametrize(
    "own", [{"$set": {"status": "shipped"}}, {"$gt": 1}, {"$in": [1, 2], "$ne": 3}, {"$text": {"$search": "lamp"}}]
)
async def test_what_an_api_writes_with_a_dollar_is_a_value_like_others(own):
    gold = {"calls": [{"name": "find", "arguments": {"filter": {"n": own}}}]}
    assert (await judge(calls_match(), expected=gold, calls=[("find", {"filter": {"n": own}})])).score == 1
    assert (await judge(calls_match(), expected=gold, calls=[("find", {"filter": {"n": {"$lt": 1}}})])).score == 0


async def test_an_expected_call_is_not_taken_in_other_spellings():
    gold = {"calls": [{"name": "find", "arguments": {"order": {"id": "17"}}}]}
    assert (await judge(calls_match(), expected=gold, calls=[("find", {"order": {"id": 17}})])).score == 0


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"forbid": [{"name": "do", "argumnets": {"x": "2"}}]}, "holds .*argumnets.*give names of tools, or a list"),
        ({"forbid": [{"name": "do", "arguments": ["x"]}]}, "give names of tools, or a list"),
        ({"answer": "x"}, r"calls_match compares with expected\['calls'\]"),
        ({"calls": [{"tool": "do"}]}, "it must be a list of"),
        ({"calls": [{"name": "do", "arguments": {"x": {"$patern": "1"}}}]}, "a pattern has one of the keys"),
        ({"calls": [{"name": "do", "arguments": {"x": {"$near": 1}}}]}, "'within': 0.01"),
        ({"calls": [{"name": "do", "arguments": {"x": {"$says": "?"}}}]}, "a text with at least one word"),
        ({"calls": [{"name": "do", "arguments": {"x": {"$any": True, "$absent": True}}}]}, "and no other"),
        ({"calls": [], "forbid": "do"}, "must be a list of names"),
    ],
)
async def test_patterns_that_say_nothing_leave_the_rollout_unscored(expected, message):
    with pytest.raises(VerifierError, match=message):
        await judge(calls_match(), expected=expected, calls=[("do", {"x": "1"})])


OPEN = {"orders": {"1": {"status": "open", "total": 5}, "2": {"status": "open", "total": 9}}}
ONE = {"orders": {"1": {"status": "closed", "total": 5}, "2": {"status": "open", "total": 9}}}
MORE = {"orders": {"1": {"status": "closed", "total": 0}, "2": {"status": "open", "total": 9}}}


def one_is_closed(state, task):
    return any(order["status"] == "closed" for order in state["orders"].values())


SCHEMA = {"properties": {"orders": {"properties": {"1": {"properties": {"status": {"const": "closed"}}}}}}}


async def test_a_condition_that_came_true_is_right_where_nothing_else_changed():
    verifier = state_where(one_is_closed, may_change=("orders.status",))
    assert (await judge(verifier, before=OPEN, after=ONE)).score == 1
    assert (await judge(verifier, before=OPEN, after=OPEN)).score == 0
    more = await judge(verifier, before=OPEN, after=MORE)
    assert (more.score, more.components) == (0, {"state": 1.0, "nothing_else": 0.0})
    assert "changed besides: orders.total" in more.explanation
    of_numpy = state_where(lambda state, task: np.bool_(one_is_closed(state, task)), may_change=("orders.status",))
    assert [(await judge(of_numpy, before=OPEN, after=end)).score for end in (ONE, OPEN)] == [1, 0]
    for wider in (("orders",), "anything"):
        assert (await judge(state_where(one_is_closed, may_change=wider), before=OPEN, after=MORE)).score == 1


async def test_a_table_with_a_dot_in_its_name_is_another_table():
    old = {"orders.old": {"1": {"status": "closed"}}}
    verifier = state_where(one_is_closed, may_change=("orders",))
    assert (await judge(verifier, before=OPEN | old, after=ONE | old)).score == 1
    assert (await judge(verifier, before=OPEN | old, after=ONE | {"orders.old": {}})).score == 0
    both = state_where(one_is_closed, may_change=("orders", "orders.old"))
    assert (await judge(both, before=OPEN | old, after=ONE | {"orders.old": {}})).score == 1


async def test_the_condition_may_be_a_schema_in_the_task():
    verifier = state_where(may_change=("orders",))
    assert (await judge(verifier, expected={"state_schema": SCHEMA}, before=OPEN, after=ONE)).score == 1
    verdict = await judge(verifier, expected={"state_schema": SCHEMA}, before=OPEN, after=OPEN)
    assert (verdict.score, "at orders/1/status" in verdict.explanation) == (0, True)


@pytest.mark.parametrize(
    ("verifier", "fields", "message"),
    [
        (state_where(one_is_closed, may_change=()), {"before": ONE, "after": ONE}, "doing nothing would be right"),
        (state_where(one_is_closed, may_change=()), {"before": OPEN}, "has no final state"),
        (state_where(one_is_closed, may_change=()), {"after": OPEN}, "has no initial state"),
        (
            state_where(lambda state, task: 1, may_change=()),
            {"before": OPEN, "after": ONE},
            "must return True or False",
        ),
        (state_where(may_change=()), {"before": OPEN, "after": ONE}, "JSON Schema in expected"),
    ],
)
async def test_a_condition_that_cannot_be_judged_leaves_the_rollout_unscored(verifier, fields, message):
    with pytest.raises(VerifierError, match=message):
        await judge(verifier, **fields)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: calls_match(order="sorted"), "order is 'sorted'; choose one of any, in_order, exact"),
        (lambda: calls_match(most_mistakes=-1), "most_mistakes is -1"),
        (lambda: state_where("closed", may_change=()), "the condition is 'closed'"),
        (lambda: state_where(one_is_closed, may_change="orders"), "may_change is 'orders'; give names"),
    ],
)
def test_options_that_cannot_work_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
