"""A task's own fields decide, each by the check that is made for it."""

from __future__ import annotations

import pytest

from sdk import ConfigError, Rollout, Task, ToolCall, VerifierError
from sdk.records import CallRecord
from sdk.verifiers import as_expected, check_verifier, run_verifier, verifier_identity

BOOKED = [{"table": "rooms", "key": "2", "column": "guest", "before": None, "after": "Ann"}]


def rollout_of(expected: dict, **fields) -> Rollout:
    return Rollout(id="one", task=Task(prompt="Book room 2 for Ann.", expected=expected), **fields)


def called(name: str, **arguments) -> CallRecord:
    return CallRecord(turn=1, call=ToolCall(id="c", name=name, arguments=arguments), result={"text": "done"})


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        ({"answer": "28"}, {"answer": "It costs 28."}, {"answer": "It costs 27."}),
        (
            {"calls": [{"name": "book", "arguments": {"room": "2"}}]},
            {"calls": [called("book", room="2")]},
            {"calls": [called("book", room="3")]},
        ),
        (
            {"changes": BOOKED},
            {"initial_state": {"rooms": {"2": {"guest": None}}}, "final_state": {"rooms": {"2": {"guest": "Ann"}}}},
            {"initial_state": {"rooms": {"2": {"guest": None}}}, "final_state": {"rooms": {"2": {"guest": None}}}},
        ),
        ({"answer_json": {"price": 28}}, {"answer": '{"price": 28}'}, {"answer": '{"price": 29}'}),
        ({"answer_pattern": "B-[0-9]+"}, {"answer": "B-12"}, {"answer": "C-12"}),
    ],
    ids=["answer", "calls", "changes", "answer_json", "answer_pattern"],
)
async def test_each_field_is_compared_by_its_check(expected, right, wrong):
    assert (await run_verifier(as_expected(), rollout_of(expected, **right))).score == 1
    assert (await run_verifier(as_expected(), rollout_of(expected, **wrong))).score == 0


async def test_half_of_what_is_expected_earns_nothing_and_the_parts_are_shown():
    expected = {"answer": "28", "calls": [{"name": "price", "arguments": {"room": "2"}}]}
    verdict = await run_verifier(as_expected(), rollout_of(expected, answer="It costs 28."))
    assert verdict.score == 0
    assert (verdict.components["answer_match"], verdict.components["calls_match"]) == (1, 0)


async def test_without_an_answer_calling_every_tool_is_not_right():
    calls = {"calls": [{"name": "book", "arguments": {"room": "2"}}]}
    made = [called("read", room="2"), called("book", room="2")]
    assert (await run_verifier(as_expected(), rollout_of(calls, calls=made, answer="Done."))).score == 0
    with_answer = {**calls, "answer": "28"}
    assert (await run_verifier(as_expected(), rollout_of(with_answer, calls=made, answer="It costs 28."))).score == 1


@pytest.mark.parametrize("expected", [{}, {"options": ["a", "b"]}, {"answer": "28", "tests": "assert f() == 1"}])
async def test_a_task_that_its_fields_cannot_judge_is_unscored_and_refused_before_a_run(expected):
    with pytest.raises(VerifierError, match="give a verifier of your own"):
        await run_verifier(as_expected(), rollout_of(expected, answer="It costs 28."))
    with pytest.raises(ConfigError, match="2 of 3 tasks"):
        as_expected().require_fields(
            [Task(prompt="one", expected=expected)] * 2 + [Task(prompt="b", expected={"answer": "1"})]
        )


def test_a_mistyped_field_is_named_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"'t' expects 'anwser', which no ready-made .*did you mean 'answer'\?"):
        as_expected().require_fields([Task(id="t", prompt="one", expected={"anwser": "28"})])


def test_it_is_the_same_verifier_in_every_run():
    assert verifier_identity(as_expected()) == verifier_identity(as_expected())
    assert verifier_identity(as_expected())["name"] == "as_expected()"


def test_a_word_in_place_of_a_verifier_is_told_of_it():
    with pytest.raises(ConfigError, match=r"the verifier is 'expected' .*as_expected"):
        check_verifier("expected")


LOOKED_UP = {
    "answer": "shipped",
    "calls": [{"name": "get_order", "arguments": {"order_id": "4417"}}],
    "calls_may_differ": True,
    "changes": [],
}
ORDERS = {"orders": {"4417": {"status": "shipped"}, "4418": {"status": "shipped"}}}


def record(name: str, arguments: dict, result: dict) -> CallRecord:
    return CallRecord(turn=1, call=ToolCall(id="c", name=name, arguments=arguments), result=result)


GET = record("get_order", {"order_id": "4417"}, {"text": '{"status": "shipped"}'})
LIST = record("list_orders", {}, {"text": "", "structured": ORDERS})


def asking(expected: dict, calls: list[CallRecord], **fields) -> Rollout:
    task = Task(prompt="What is the status of order 4417?", expected=expected)
    same = {"initial_state": {"orders": {}}, "final_state": {"orders": {}}}
    return Rollout(id="one", task=task, calls=calls, **{"answer": "It is shipped.", **same, **fields})


@pytest.mark.parametrize(
    ("calls", "score", "told"),
    [
        ([GET], 1, "all 1 required calls"),
        ([LIST], 1, "other calls looked it up"),
        ([record("track", {"order": "4417"}, {"text": "on its way: shipped"})], 1, "other calls looked it up"),
        ([], 0, "no other call succeeded"),
        ([record("list_orders", {}, {"text": "4417: shipped", "is_error": True})], 0, "no other call succeeded"),
        ([record("get_customer", {"order": "4417"}, {"text": "Ann"})], 0, "no other call returned the answer"),
        (
            [record("get_order", {"order_id": "4418"}, {"text": '{"status": "shipped"}'})],
            0,
            "no other call dealt with get_order.order_id='4417', which the request names",
        ),
        (
            [record("search", {"query": "4417 shipped"}, {"text": "nothing found for '4417 shipped'"})],
            0,
            "no other call returned the answer",
        ),
    ],
    ids=["expected", "listing", "by key", "no call", "refused", "answer not returned", "another thing", "echo"],
)
async def test_where_calls_may_differ_others_that_looked_it_up_are_right_and_guesses_are_not(calls, score, told):
    verdict = await run_verifier(as_expected(), asking(LOOKED_UP, calls))
    assert (verdict.score, told in verdict.explanation) == (score, True), verdict.explanation
    strict = await run_verifier(as_expected(), asking({**LOOKED_UP, "calls_may_differ": False}, calls))
    assert strict.score == (calls == [GET])


async def test_where_calls_may_differ_the_answer_the_state_and_what_is_forbidden_still_count():
    changed = {"final_state": {"orders": {"4417": {"status": "lost"}}}}
    assert (await run_verifier(as_expected(), asking(LOOKED_UP, [LIST], **changed))).score == 0
    assert (await run_verifier(as_expected(), asking({**LOOKED_UP, "answer": "open"}, [LIST]))).score == 0
    assert (await run_verifier(as_expected(), asking({**LOOKED_UP, "forbid": ["list_orders"]}, [LIST]))).score == 0


@pytest.mark.parametrize("gold", [True, "Yes"])
async def test_where_calls_may_differ_yes_and_no_are_looked_for_as_results_have_them(gold):
    expected = {**LOOKED_UP, "answer": gold}
    for shipped, score in ((True, 1), (False, 0)):
        read = record("track", {"order": "4417"}, {"text": "", "structured": {"shipped": shipped}})
        assert (await run_verifier(as_expected(), asking(expected, [read], answer="Yes."))).score == score
    unrelated = record("get_customer", {"order": "4417"}, {"text": "Ann"})
    assert (await run_verifier(as_expected(), asking(expected, [unrelated], answer="Yes."))).score == 0


async def test_where_calls_may_differ_any_that_lead_to_the_expected_changes_are_right():
    expected = {"changes": BOOKED, "calls": [{"name": "book", "arguments": {"room": "2"}}], "calls_may_differ": True}
    states = {"initial_state": {"rooms": {"2": {"guest": None}}}, "final_state": {"rooms": {"2": {"guest": "Ann"}}}}
    other = [called("update_room", room="2", guest="Ann")]
    assert (await run_verifier(as_expected(), rollout_of(expected, calls=other, **states))).score == 1
    unchanged = {**states, "final_state": states["initial_state"]}
    assert (await run_verifier(as_expected(), rollout_of(expected, calls=other, **unchanged))).score == 0


async def test_where_calls_may_differ_a_change_without_a_look_at_what_the_request_names_is_a_guess():
    gold = [{"name": "find_guest", "arguments": {"name": "Ann"}}, {"name": "book", "arguments": {"guest_id": "G-7"}}]
    expected = {"changes": BOOKED, "calls": gold, "calls_may_differ": True}
    states = {"initial_state": {"rooms": {"2": {"guest": None}}}, "final_state": {"rooms": {"2": {"guest": "Ann"}}}}
    remembered = [called("assign", guest_id="G-7")]
    verdict = await run_verifier(as_expected(), rollout_of(expected, calls=remembered, **states))
    assert verdict.score == 0
    assert "no other call dealt with find_guest.name='Ann', which the request names" in verdict.explanation
    listed = record("list_guests", {}, {"text": '[{"id": "G-7", "name": "Ann"}]'})
    assert (await run_verifier(as_expected(), rollout_of(expected, calls=[listed, *remembered], **states))).score == 1


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        ({**LOOKED_UP, "calls_may_differ": "yes"}, "calls_may_differ 'yes'; give true or false, in lower case"),
        ({"answer": "1", "calls_may_differ": True}, "give calls and one of answer"),
        ({"calls": [], "changes": [], "calls_may_differ": True}, "give calls and one of answer"),
        ({"calls": [], "answer": "1", "calls_may_differ": True}, "give calls and one of answer"),
        (
            {"calls": LOOKED_UP["calls"], "answer_pattern": "[a-z]+", "calls_may_differ": True},
            "give calls and one of answer and changes",
        ),
    ],
)
def test_calls_that_may_differ_need_an_end_to_lead_to(expected, told):
    with pytest.raises(ConfigError, match=told):
        as_expected().require_fields([Task(prompt="one", expected=expected)])
