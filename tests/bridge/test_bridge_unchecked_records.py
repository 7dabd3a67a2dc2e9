"""Records made without being checked are those that checking would have made."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mcp_bridge.ledger.lines import Ledger, LedgerLine
from mcp_bridge.records import ToolAnnotations, ToolResult
from mcp_bridge.toolsets.unchecked import unchecked
from sdk.records import Message, ToolCall

CALL = {"id": "c", "name": "f", "arguments": {"x": [1]}, "error": None}
MESSAGE: dict[str, Any] = {
    "role": "tool",
    "content": "1",
    "tool_calls": [],
    "tool_call_id": "c",
    "name": "f",
    "reasoning": None,
}


@pytest.mark.parametrize(("kind", "fields"), [(ToolCall, CALL), (Message, MESSAGE)])
def test_a_record_is_equal_to_a_checked_one_and_is_written_copied_and_changed_as_that_is(
    kind: type[Any], fields: dict[str, Any]
) -> None:
    made, other, checked = unchecked(kind)(dict(fields)), unchecked(kind)(dict(fields)), kind(**fields)
    assert made == checked
    assert made.model_dump_json(exclude_unset=True) == checked.model_dump_json(exclude_unset=True)
    made.name = "g"
    copied = made.model_copy(update={"name": "h"}, deep=True)
    assert (copied.name, made.name, other.name) == ("h", "g", "f")
    assert made.model_fields_set == other.model_fields_set == set(kind.model_fields)
    assert repr(other) == repr(checked)


def test_a_frozen_record_stays_frozen_and_can_be_a_key() -> None:
    fields = {"read_only": True, "destructive": None, "idempotent": None, "open_world": None}
    made = unchecked(ToolAnnotations)(dict(fields))
    assert {made: 1}[ToolAnnotations(read_only=True)] == 1
    with pytest.raises(ValidationError, match="frozen"):
        made.read_only = False


def test_lines_of_a_ledger_are_those_that_checking_gives_back() -> None:
    ledger = Ledger("world")
    entry = ledger.open("f", {"x": "é" * 2_000}, None)
    entry.started()
    entry.answered(ToolResult(text="done"))
    ledger.open("f", {"x": 1}, "mine").refused(ToolResult(text="no", is_error=True, error_kind="unknown_tool"))
    assert [line.event for line in ledger.lines] == ["started", "answered", "refused"]
    for line in ledger.lines:
        assert LedgerLine.model_validate_json(line.model_dump_json()) == line
        assert list(line.__dict__) == list(LedgerLine.model_fields)


def test_a_world_whose_name_is_no_text_is_refused_by_its_ledger() -> None:
    ledger = Ledger(7)  # type: ignore[arg-type]
    ledger.open("f", {}, None).started()
    with pytest.raises(ValidationError, match="rollout"):
        ledger.lines  # noqa: B018 - a property
