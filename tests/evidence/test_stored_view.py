"""What a verifier sees of a rollout is what a run folder gives back, however odd its numbers, texts and values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from mcp_bridge.ledger import LedgerLine
from mcp_bridge.records import ToolResult
from sdk.records import CallRecord, Failure, Message, Rollout, Task, TokenRow, ToolCall
from sdk.traces.json_text import dump_json, stored_view

logprobs = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 0) | st.sampled_from([float("nan"), -0.0])
sampled = st.tuples(st.integers(0, 2**31), st.booleans(), logprobs, st.integers(-1, 9))
rows = st.lists(st.tuples(st.lists(st.integers(0, 2**31), max_size=4), st.lists(sampled, max_size=5)), max_size=3)


def rollout_of(given_rows: list[Any]) -> Rollout:
    made = Rollout(id="r", task=Task(prompt="Hi"))
    for prompt, tokens in given_rows:
        columns = [list(column) for column in zip(*tokens, strict=True)] or [[], [], [], []]
        made.rows.append(
            TokenRow.model_construct(
                prompt_ids=prompt,
                completion_ids=columns[0],
                sampled=columns[1],
                logprobs=columns[2],
                versions=columns[3],
            )
        )
    return made


@given(given_rows=rows)
def test_a_view_has_the_tokens_that_a_folder_gives_back_and_shares_none_with_the_rollout(given_rows: list[Any]) -> None:
    rollout = rollout_of(given_rows)
    back = Rollout.model_validate(json.loads(dump_json(rollout)))
    view = stored_view(rollout)
    assert view.model_dump_json() == back.model_dump_json()
    for row in view.rows:
        row.completion_ids.append(7)
    assert [len(row.completion_ids) for row in rollout.rows] == [len(tokens) for _, tokens in given_rows]


def test_rows_that_no_folder_would_give_back_are_refused() -> None:
    rollout = rollout_of([([1], [(2, True, -0.5, 0)])])
    rollout.rows[0].versions.clear()
    with pytest.raises(ValueError, match="differ in length"):
        stored_view(rollout)


text = st.text(st.characters(exclude_categories=[]), max_size=3) | st.sampled_from(["\ud83d\ude00", "\ud83d", "", "a"])
odd = st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=2)
plain_keys = text | st.integers(0, 3) | st.booleans()
states = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(plain_keys, inner, max_size=2)
)


@given(said=text, structured=states, state=st.none() | st.dictionaries(text, states, max_size=2), notes=st.lists(text))
def test_a_view_has_the_texts_and_values_that_a_folder_gives_back(
    said: str, structured: Any, state: dict[str, Any] | None, notes: list[str]
) -> None:
    rollout = rollout_of([([1], [(2, True, -0.5, 0)])])
    call = ToolCall(id="c", name="f", arguments={"x": said})
    result = ToolResult.model_construct(text=said, structured=structured, notes=tuple(notes))
    rollout.messages.append(Message(role="assistant", content=said, tool_calls=[call]))
    rollout.calls.append(CallRecord(turn=1, call=call, result=result))
    rollout.ledger.append(
        LedgerLine(rollout="r", call="c", key="k", event="answered", tool=said, attempt=1, time=1.5, note=said)
    )
    rollout.final_state = state
    assert told(lambda: stored_view(rollout)) == told(lambda: Rollout.model_validate(json.loads(dump_json(rollout))))


def told(view: Callable[[], Rollout]) -> str:
    """All of it, types included."""
    try:
        return repr(view().model_dump())
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def test_a_number_that_nobody_can_write_down_is_refused() -> None:
    rollout = rollout_of([])
    rollout.final_state = {"count": 10**5000}
    with pytest.raises(ValueError, match="digits"):
        stored_view(rollout)


def test_what_a_verifier_changes_in_a_view_is_not_changed_in_the_rollout() -> None:
    rollout = rollout_of([])
    call = ToolCall(id="c", name="f", arguments={"x": [1]})
    result = ToolResult(text="1", structured={"rows": [{"id": 1}]})
    rollout.messages.append(Message(role="assistant", tool_calls=[call]))
    rollout.calls.append(CallRecord(turn=1, call=call, result=result))
    rollout.task.expected["state"] = {"x": 1}
    before = rollout.model_dump_json()
    view = stored_view(rollout)
    view.calls[0].result.structured["rows"][0]["id"] = 2
    view.calls[0].call.arguments["x"].append(2)
    view.messages[0].tool_calls[0].arguments["x"].append(2)
    view.messages.clear()
    view.task.expected["state"]["x"] = 2
    view.calls.clear()
    assert rollout.model_dump_json() == before


def full_rollout() -> Rollout:
    call = ToolCall(id="c", name="f", arguments={"x": [1, {"y": "é"}]})
    ask = Message(role="user", content="Hi")
    task = Task(
        prompt=[ask],
        later_turns=["more"],
        setup={"a": 1},
        expected={"answer": 2.5},
        demonstration=[ask],
        tags={"t": "1"},
    )
    made = rollout_of([([1], [(2, True, -0.5, 0)])])
    made.task, made.failure = task, Failure(boundary="verifier", kind="VerifierError", message="broke")
    made.messages = [ask, Message(role="assistant", tool_calls=[call], reasoning="so")]
    result = ToolResult(text="1", structured={"rows": [{"id": 1}]}, notes=("nearest",))
    made.calls = [CallRecord(turn=1, call=call, result=result)]
    made.ledger = [LedgerLine(rollout="r", call="c", key="k", event="answered", tool="f", attempt=1, time=1.5)]
    made.shown_tools, made.initial_state, made.final_state = ["f"], {"n": None}, {"n": [1.5]}
    return made


ODD: tuple[Any, ...] = (
    None,
    "",
    " ",
    "é",
    "\ud83d",
    "Text",
    True,
    0,
    7,
    2**70,
    2.0,
    -0.0,
    float("nan"),
    b"b",
    (),
    ("a",),
    [],
    ["a"],
    {},
    {"a": "b"},
    [Message(role="user")],
)


def records_in(rollout: Rollout) -> dict[str, BaseModel]:
    call = rollout.calls[0]
    return {
        "rollout": rollout,
        "task": rollout.task,
        "message": rollout.messages[1],
        "wanted": rollout.task.demonstration[0],
        "call": rollout.messages[1].tool_calls[0],
        "record": call,
        "result": call.result,
        "row": rollout.rows[0],
        "failure": rollout.failure or rollout,
    }


FIELDS = [(name, field) for name, record in records_in(full_rollout()).items() for field in type(record).model_fields]


@pytest.mark.parametrize(("name", "field"), FIELDS)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_whatever_stands_in_a_field_a_view_has_what_a_folder_gives_back(name: str, field: str) -> None:
    if field == "verdict":
        return
    for value in ODD:
        rollout = full_rollout()
        records_in(rollout)[name].__dict__[field] = value
        assert refused_or_told(stored_view, rollout) == refused_or_told(read_back, rollout), value


def read_back(rollout: Rollout) -> Rollout:
    return Rollout.model_validate(json.loads(dump_json(rollout)))


def refused_or_told(view: Callable[[Rollout], Rollout], rollout: Rollout) -> str:
    try:
        return repr(view(rollout).model_dump())
    except (TypeError, ValueError, AttributeError):
        return "refused"


def test_a_view_of_a_full_rollout_shares_nothing_that_can_be_changed() -> None:
    rollout = full_rollout()
    view = stored_view(rollout)
    assert view == rollout
    assert not changeable_in(view) & changeable_in(rollout)


def changeable_in(value: Any) -> set[int]:
    """The ids of all lists, dicts and records that are not frozen."""
    if isinstance(value, BaseModel):
        inner = set().union(*map(changeable_in, value.__dict__.values()))
        return inner if value.model_config.get("frozen") else inner | {id(value)}
    if isinstance(value, dict | list | tuple):
        parts = list(value.values()) if isinstance(value, dict) else value
        found = set().union(*map(changeable_in, parts)) if parts else set[int]()
        return found | (set() if isinstance(value, tuple) else {id(value)})
    return set()
