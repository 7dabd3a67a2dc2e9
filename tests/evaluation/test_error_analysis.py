"""What went wrong first: every rule by a rollout that shows it, and what groups say of them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.records import Tool, ToolAnnotations, ToolResult
from sdk.evaluation import build_report
from sdk.evaluation.faults import Fault, find_fault, find_faults, group_errors, judged_faults
from sdk.evaluation.report_text import render_errors
from sdk.records import CallRecord, Failure, Message, Rollout, Task, ToolCall, Verdict

SHIPPED = ToolResult(text='{"order_id": "4417", "status": "shipped"}')
MISSING = ToolResult(text="there is no order 9999", is_error=True, error_kind="tool_error")
UNKNOWN = ToolResult(text="there is no tool", is_error=True, error_kind="unknown_tool")
INVALID = ToolResult(text="order_id is missing", is_error=True, error_kind="invalid_arguments")
GOLD = {"calls": [{"name": "get_order", "arguments": {"order_id": "4417"}}], "answer": "shipped"}
RIGHT = ("get_order", {"order_id": "4417"}, SHIPPED)
READS = Tool(name="list_orders", annotations=ToolAnnotations(read_only=True))

Step = tuple[str, dict[str, Any], ToolResult]


def played(*steps: Step, answer: str = "It is lost.", expected: dict[str, Any] | None = None, **fields: Any) -> Rollout:
    """A rollout that failed: one call a turn, then the answer."""
    task = Task(
        prompt="Where is order 4417?", id=fields.pop("task", "t"), expected=GOLD if expected is None else expected
    )
    messages, calls = task.opening(), []
    for turn, (name, arguments, result) in enumerate(steps, start=1):
        call = ToolCall(id=f"c{turn}", name=name, arguments=arguments)
        messages += [Message(role="assistant", tool_calls=[call]), Message(role="tool", content=result.text)]
        calls.append(CallRecord(turn=turn, call=call, result=result))
    messages.append(Message(role="assistant", content=answer))
    base: dict[str, Any] = {
        "id": f"{task.id}-0",
        "task": task,
        "messages": messages,
        "calls": calls,
        "turns": len(steps) + 1,
        "answer": answer,
        "verdict": Verdict(score=0, explanation="the verifier said no"),
    }
    return Rollout(**{**base, **fields})


def broken(boundary: str) -> Rollout:
    failure = Failure(boundary=boundary, kind="Died", message="it died")  # type: ignore[arg-type]
    return played(failure=failure, verdict=None)


def unreadable() -> Rollout:
    call = ToolCall(id="c1", name="get_order", error="no JSON")
    return played(
        messages=[Message(role="assistant", tool_calls=[call]), Message(role="assistant", content="?")], turns=2
    )


def delegated() -> Rollout:
    """A sub-agent's conversation, which comes after the whole of its agent's, though its call was made in turn 2."""
    call = ToolCall(id="c1", name="get_order", arguments={"order_id": "9999"})
    agents = [
        Message(role="user", content="Where is my order?"),
        Message(role="assistant", content="I ask the desk."),
        Message(role="user", content="The desk found nothing."),
        Message(role="assistant", content="It is lost."),
    ]
    sub_agents = [
        Message(role="user", content="Look for order 9999."),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content=MISSING.text, tool_call_id="c1"),
        Message(role="assistant", content="Nothing."),
    ]
    calls = [CallRecord(turn=2, call=call, result=MISSING)]
    return played(messages=[*agents, *sub_agents], calls=calls, turns=4, expected={})


FAULTY = ToolResult(text='{"order_id": "4417"}', notes=("fault PartialAnswer: two of three fields are gone",))
PATTERN = {
    "name": "get_order",
    "arguments": {"order_id": {"$one_of": ["4417", "A-4417"]}, "days": {"$optional": {"$near": 5, "within": 1}}},
}
CASES = {
    "a server that died": (broken("tools"), "broken_tool", 1, ""),
    "a world that broke": (broken("world"), "broken_tool", 1, ""),
    "an engine that failed": (broken("policy"), "broken_policy", 1, ""),
    "a verifier that raised": (broken("verifier"), "verifier_doubt", 1, ""),
    "no verdict at all": (played(RIGHT, verdict=None), "verifier_doubt", 2, ""),
    "the right call refused": (
        played(("get_order", {"order_id": "4417"}, MISSING)), "broken_tool", 1, "get_order"
    ),
    "a fault put into the answer": (played(("get_order", {"order_id": "4417"}, FAULTY)), "broken_tool", 1, "get_order"),
    "a call nobody can read": (unreadable(), "unreadable_call", 1, "get_order"),
    "a tool that is not there": (played(("find", {}, UNKNOWN)), "wrong_tool", 1, "find"),
    "a tool nobody needed": (
        played(("cancel_order", {"order_id": "4417"}, ToolResult(text="cancelled"))), "wrong_tool", 1, "cancel_order"
    ),
    "a tool nobody needed that refused": (
        played(("cancel_order", {"order_id": "4417"}, MISSING)), "wrong_tool", 1, "cancel_order"
    ),
    "reading in the wrong place": (played(("list_orders", {"of": "4417"}, MISSING)), "wrong_tool", 1, "list_orders"),
    "reading elsewhere with an invented order": (
        played(("list_orders", {"of": "9999"}, MISSING)), "ungrounded_argument", 1, "list_orders.of"
    ),
    "reading in the wrong place with arguments it does not have": (
        played(("list_orders", {}, INVALID)), "wrong_tool", 1, "list_orders"
    ),
    "something done besides": (
        played(RIGHT, ("cancel_order", {"order_id": "4417"}, ToolResult(text="cancelled")), answer="It is shipped."),
        *("wrong_tool", 2, "cancel_order"),
    ),
    "an argument against the schema": (played(("get_order", {}, INVALID)), "wrong_argument", 1, "get_order"),
    "an invented order": (
        played(("get_order", {"order_id": "9999"}, MISSING)), "ungrounded_argument", 1, "get_order.order_id"
    ),
    "an invented order that is there": (
        played(("get_order", {"order_id": "9999"}, SHIPPED)), "ungrounded_argument", 1, "get_order.order_id"
    ),
    "an invented order without gold calls": (
        played(("get_order", {"order_id": "9999"}, SHIPPED), expected={}),
        *("ungrounded_argument", 1, "get_order.order_id"),
    ),
    "an order that a sub-agent was told": (delegated(), "wrong_argument", 2, "get_order"),
    "another argument from the prompt": (
        played(("get_order", {"order_id": "order"}, SHIPPED)), "wrong_argument", 1, "get_order.order_id"
    ),
    "the same call three times": (
        played(RIGHT, RIGHT, RIGHT, stop_reason="turn_limit", answer=""), "loop", 3, "get_order"
    ),
    "done twice": (played(RIGHT, ("get_order", {"order_id": "4417"}, MISSING)), "loop", 2, "get_order"),
    "the same words over and over": (played(RIGHT, answer="the order is " * 20), "loop", 2, ""),
    "a limit": (played(RIGHT, stop_reason="token_limit", answer=""), "ran_out", 2, ""),
    "no call at all": (played(), "gave_up", 1, "get_order"),
    "an empty answer": (played(RIGHT, answer=" "), "gave_up", 2, ""),
    "a refusal": (played(RIGHT, answer="I'm sorry, I cannot help."), "gave_up", 2, ""),
    "a result that is not heeded": (played(RIGHT), "ignored_result", 2, "get_order"),
    "an error that is not heeded": (
        played(("list_orders", {}, MISSING), expected={}), "wrong_argument", 1, "list_orders"
    ),
    "a wrong answer": (
        played(("get_order", {"order_id": "4417"}, ToolResult(text="{}"))), "wrong_answer", 2, ""
    ),
    "a call within its pattern": (
        played(("get_order", {"order_id": "4417"}, SHIPPED), expected={"calls": [PATTERN]}), "verifier_doubt", 2, ""
    ),
    "a call that the wider of two patterns could use up": (
        played(
            ("get_order", {"order_id": "4417"}, SHIPPED),
            ("get_order", {"order_id": "A-4417"}, SHIPPED),
            expected={"calls": [PATTERN, {"name": "get_order", "arguments": {"order_id": "4417"}}]},
        ),
        *("verifier_doubt", 3, ""),
    ),
    "a call outside of its pattern": (
        played(("get_order", {"order_id": "4417", "days": 9}, SHIPPED), expected={"calls": [PATTERN]}),
        *("ungrounded_argument", 1, "get_order.days"),
    ),
    "a pattern in a policy's own arguments": (
        played(*[("get_order", {"order_id": {"$any": True}}, SHIPPED)] * 2, expected={"calls": [PATTERN]}),
        *("wrong_argument", 1, "get_order.order_id"),
    ),
    "no where yes is right": (played(answer="No.", expected={"answer": True}), "wrong_answer", 1, ""),
    "all looks right": (played(RIGHT, answer="It is shipped."), "verifier_doubt", 2, ""),
    "nothing to compare with": (played(RIGHT, expected={}), "unexplained", 2, ""),
}  # fmt: skip


@pytest.mark.parametrize(("rollout", "kind", "turn", "where"), CASES.values(), ids=CASES)
def test_the_first_fault_is_found(rollout: Rollout, kind: str, turn: int, where: str) -> None:
    fault = find_fault(rollout, tools=[READS])
    assert (fault.kind, fault.turn, fault.signature, fault.by) == (kind, turn, where, "rule")


def test_what_was_needed_is_said_in_words_and_what_was_called_as_it_was() -> None:
    asked = {"calls": [{"name": "find", "arguments": {"query": {"$text": "chair"}, "days": {"$near": 5, "within": 1}}}]}
    found = ToolResult(text="nothing")
    called = played(("find", {"query": {"$text": "chair"}, "days": 5}, found), expected=asked)
    words = 'find(query≈"chair", days=5±1)'
    assert find_fault(called).detail == f'find(query={{"$text": "chair"}}, days=5) in place of {words}'
    assert find_fault(played(expected=asked)).detail == f"answered without {words}"
    unknown = {"calls": [{"name": "find", "arguments": {"query": {"$like": "chair"}}}]}
    assert find_fault(played(expected=unknown)).detail == 'answered without find(query={"$like": "chair"})'


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("\ud83d", '"\\ud83d"'),
        (10**5000, "(int that is not JSON)"),
        ({("a", "b"): 1}, '{["a", "b"]: 1}'),
        (Decimal("1.5"), '"1.5"'),
    ],
    ids=["half a pair", "huge", "keys", "decimal"],
)
def test_values_that_no_report_can_hold_are_said_otherwise(value: Any, written: str) -> None:
    fault = find_fault(played(expected={"calls": [{"name": "find", "arguments": {"query": value}}]}))
    assert fault.detail == f"answered without find(query={written})"
    assert fault.model_dump_json()


def test_a_pattern_nested_too_deeply_to_be_read_is_one_that_no_call_fits() -> None:
    deep: Any = "4417"
    for _ in range(5_000):
        deep = {"$optional": deep}
    fault = find_fault(played(RIGHT, expected={"calls": [{"name": "get_order", "arguments": {"order_id": deep}}]}))
    assert (fault.kind, fault.signature) == ("wrong_argument", "get_order.order_id")
    assert "in place of get_order(order_id=((((((…, or not given)" in fault.detail


def test_a_mistake_that_was_mended_is_not_to_blame() -> None:
    mended = played(("get_order", {}, INVALID), ("find", {}, UNKNOWN), RIGHT)
    assert (find_fault(mended).kind, find_fault(mended).turn) == ("ignored_result", 4)


def test_a_tool_nobody_needed_that_broke_is_a_broken_tool_and_one_tried_first_is_not_to_blame() -> None:
    died = MISSING.model_copy(update={"notes": ("fault Outage: the server is away",)})
    assert find_fault(played(("list_orders", {}, died)), tools=[READS]).kind == "broken_tool"
    tried = played(("list_orders", {}, MISSING), RIGHT)
    assert (find_fault(tried).kind, find_fault(tried).turn) == ("ignored_result", 3)
    after = played(RIGHT, ("list_orders", {}, MISSING), RIGHT, answer="It is lost.")
    assert (find_fault(after, tools=[READS]).kind, find_fault(after, tools=[READS]).turn) == ("ignored_result", 4)


def test_reading_around_is_no_wrong_tool_where_the_tools_say_that_it_only_reads() -> None:
    rollout = played(("list_orders", {}, ToolResult(text="4417")))
    assert find_fault(rollout).kind == "wrong_tool"
    assert find_fault(rollout, tools=[READS]).kind == "gave_up"


def test_an_argument_from_the_schema_or_an_earlier_result_is_grounded() -> None:
    schema = {"type": "object", "properties": {"reason": {"enum": ["damaged7"]}, "id": {"type": "string"}}}
    refund = Tool(name="refund", input_schema=schema)
    found = ("get_order", {"order_id": "4417"}, ToolResult(text="customer C-77"))
    rollout = played(found, ("refund", {"reason": "damaged7", "id": "C-77"}, SHIPPED), expected={})
    assert find_fault(rollout, tools=[refund]).kind == "unexplained"
    assert find_fault(rollout).signature == "refund.reason"


def test_only_rollouts_that_are_no_success_have_a_fault() -> None:
    good = played(RIGHT, answer="shipped", verdict=Verdict(score=1))
    assert find_faults([good, played(task="u")]).keys() == {"u-0"}
    assert find_faults([played(verdict=Verdict(score=0.5))], threshold=0.5) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["get_order", "find", ""]),
            st.dictionaries(st.text(max_size=3), st.text(max_size=5) | st.integers() | st.none(), max_size=2),
            st.sampled_from([SHIPPED, MISSING, UNKNOWN, INVALID]),
        ),
        max_size=4,
    ),
    st.text(max_size=80),
    st.dictionaries(st.sampled_from(["calls", "answer"]), st.none() | st.text() | st.lists(st.integers()), max_size=2),
)
def test_any_rollout_has_one_fault_that_lies_within_it(
    steps: list[Step], answer: str, expected: dict[str, Any]
) -> None:
    rollout = played(*steps, answer=answer, expected=expected)
    fault = find_fault(rollout)
    assert fault == find_fault(rollout)
    assert 1 <= fault.turn <= rollout.turns


def test_groups_say_how_many_where_and_what_changed_against_the_baseline() -> None:
    invented = ("get_order", {"order_id": "9999"}, MISSING)

    def good(task: str) -> Rollout:
        return played(RIGHT, task=task, answer="shipped", verdict=Verdict(score=1))

    before = [good("a"), played(task="b"), played(task="c"), played(invented, task="d"), good("e")]
    after = [played(invented, task="a"), good("b"), played(task="c"), played(task="d"), good("e")]
    faults = {"before": find_faults(before), "after": find_faults(after)}
    found = group_errors(after, faults["after"], baseline=("before", before, faults["before"]))
    assert (found.rollouts, found.failed, found.baseline) == (5, 3, "before")
    assert found.faults == faults["after"]
    assert [(g.kind, g.rollouts, g.tasks, g.signatures) for g in found.groups] == [
        ("gave_up", 2, 2, {"get_order": 2}),
        ("ungrounded_argument", 1, 1, {"get_order.order_id": 1}),
    ]
    assert found.groups[0].share == pytest.approx(2 / 3)
    changes = {kind: c.model_dump() for kind, c in found.changes.items()}
    assert changes["gave_up"] == {"new": 0, "moved": 1, "stayed": 1, "fixed": 1, "before": 2}
    assert changes["ungrounded_argument"] == {"new": 1, "moved": 0, "stayed": 0, "fixed": 0, "before": 1}
    assert [t.newly_failing for t in found.groups[1].telling] == [True]


def test_the_most_telling_rollouts_are_those_the_baseline_solved_then_the_commonest_then_the_shortest() -> None:
    solved = played(RIGHT, task="z", answer="shipped", verdict=Verdict(score=1))
    longer = played(("find", {}, UNKNOWN), ("find", {"a": 1}, UNKNOWN), task="a")
    rollouts = [longer, played(("find", {}, UNKNOWN), task="b"), played(("seek", {}, UNKNOWN), task="c")]
    rollouts.append(played(("seek", {"a": 1}, UNKNOWN), task="z"))
    rollouts += [played(("find", {"b": 1}, UNKNOWN), task="d")]
    group = group_errors(rollouts, find_faults(rollouts), baseline=("before", [solved], find_faults([solved]))).groups[
        0
    ]
    assert [t.rollout.task.id for t in group.telling] == ["z", "b", "d"]


class Judge:
    """Blames the verifier for one task, has no word on another, and is broken for a third."""

    async def judge(self, rollout: Rollout, found: Fault, /) -> Fault | None:
        if rollout.task.id == "broken":
            raise RuntimeError("the endpoint is down")
        return Fault(kind="verifier_doubt", turn=1, detail="it is right") if rollout.task.id == "right" else None


async def test_a_judge_goes_before_the_rules_and_where_it_fails_they_stand_and_it_is_said() -> None:
    rollouts = [played(task=task) for task in ("right", "quiet", "broken")]
    found = await judged_faults(Judge(), rollouts, find_faults(rollouts))
    assert {name: (fault.kind, fault.by) for name, fault in found.items()} == {
        "right-0": ("verifier_doubt", "judge"),
        "quiet-0": ("gave_up", "rule"),
        "broken-0": ("gave_up", "rule"),
    }
    assert found["broken-0"].judge_error == "RuntimeError: the endpoint is down"
    report = build_report({"only": rollouts}, faults={"only": found})
    assert report.errors["only"].judge_errors == 1
    assert "The judge failed for 1 rollouts" in report.markdown()


def test_the_report_shows_groups_changes_and_rollouts_and_keeps_them_in_its_json() -> None:
    attack = "</pre><script>alert(1)</script>\n# Heading"
    before = [played(task="a", answer=attack)]
    report = build_report({"before": before, "after": [played(("find", {}, UNKNOWN), task="a", answer=attack)]})
    markdown = report.markdown()
    for said in (
        "## What went wrong first",
        "- *wrong tool*: a tool that does not exist, or one that the task did not need",
        "#### Wrong tool (find): task a",
        "after, turn 1: there is no tool",
    ):
        assert said in markdown
    row = next(line for line in markdown.splitlines() if "before → after" in line and "| gave up" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "before → after",
        "gave up",
        "1",
        "0",
        "0",
        "0",
        "0",
    ]
    kept = json.loads(report.model_dump_json())["errors"]["after"]["groups"][0]
    assert kept["telling"][0]["fault"]["tool"] == "find"
    assert build_report({"only": [played(verdict=Verdict(score=1))]}).markdown().count("What went wrong first") == 0


def test_the_terminal_gets_what_went_wrong_without_the_escapes_of_markdown() -> None:
    expected = {"calls": [{"name": "get_order", "arguments": {"ids": ["<4417>", "_all_"]}}]}
    errors = build_report({"v1 *new*": [played(expected=expected, task="order_"), broken("policy")]}).errors
    shown, markdown = render_errors(errors, for_terminal=True), render_errors(errors)
    assert "task order_" in shown
    assert "v1 *new*, turn 1: answered without get_order(ids=[" in shown
    assert "\\" not in shown
    assert markdown.count("\\") > 4
    rules = [line for line in shown.splitlines() if line.startswith("|")]
    assert len({len(line) for line in rules[:3]}) == 1
