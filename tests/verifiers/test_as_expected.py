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
