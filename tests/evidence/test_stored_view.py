"""What a verifier sees of a rollout is what a run folder gives back, however odd its numbers, texts and values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.ledger.lines import LedgerLine
from mcp_bridge.records import ToolResult
from sdk.evidence.view import stored_view
from sdk.records import CallRecord, Message, Rollout, Task, TokenRow, ToolCall
from sdk.traces.json_text import dump_json

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
