"""A small real backend for recordings: notes with identifiers that differ from world to world."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from mcp_bridge.records import Tool, ToolAnnotations, ToolResult, compact_json
from sandboxes.recorded import record

_TEXT = {"type": "string"}
_OUT = {"type": "object", "properties": {"note_id": _TEXT}, "required": ["note_id"]}


def _tool(name: str, *, reads: bool, output: dict[str, Any] | None = None, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    annotations = ToolAnnotations(read_only=reads)
    return Tool(name=name, input_schema=schema, output_schema=output, annotations=annotations)


class Notes:
    """Notes can be added, read, changed and listed; `tick` gives another number each time it is asked."""

    name = "notes"

    def __init__(self, first_id: int = 100, spoil: Mapping[str, Any] | None = None) -> None:
        """`spoil`: the note with this text is answered otherwise, as a twin that is wrong would."""
        self._ids = itertools.count(first_id)
        self._spoil = dict(spoil or {})
        self.tools = [
            _tool("add_note", reads=False, output=_OUT, text=_TEXT),
            _tool("get_note", reads=True, note_id=_TEXT),
            _tool("change_note", reads=False, note_id=_TEXT, text=_TEXT),
            _tool("list_notes", reads=True),
            _tool("tick", reads=True),
        ]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Mapping[str, Any] | None = None) -> AsyncIterator[_Desk]:
        yield _Desk(self, dict((setup or {}).get("notes", {})))

    def next_id(self) -> str:
        return f"n-{next(self._ids)}"

    def spoiled(self, text: str) -> Any:
        return self._spoil.get(text, text)


class _Desk:
    def __init__(self, backend: Notes, notes: dict[str, str]) -> None:
        self._backend = backend
        self._notes = notes
        self._ticks = 0
        self.tools = backend.tools

    async def call(self, name: str, arguments: Mapping[str, Any], **more: Any) -> ToolResult:
        found = getattr(self, f"_{name}")(**arguments)
        if isinstance(found, ToolResult):
            return found
        return ToolResult(text=compact_json(found), structured=found)

    async def state(self) -> dict[str, Any] | None:
        return {"notes": {key: {"text": text} for key, text in self._notes.items()}}

    def _add_note(self, text: str) -> Any:
        note_id = self._backend.next_id()
        self._notes[note_id] = text
        return {"note_id": note_id}

    def _get_note(self, note_id: str) -> Any:
        if note_id not in self._notes:
            return ToolResult(text=f"There is no note {note_id}.", is_error=True, error_kind="tool_error")
        return {"note_id": note_id, "text": self._backend.spoiled(self._notes[note_id])}

    def _change_note(self, note_id: str, text: str) -> Any:
        if note_id not in self._notes:
            return ToolResult(text=f"There is no note {note_id}.", is_error=True, error_kind="tool_error")
        self._notes[note_id] = text
        return {"note_id": note_id, "state": self._backend.spoiled("saved")}

    def _list_notes(self) -> Any:
        return {"notes": [{"note_id": key, "text": text} for key, text in self._notes.items()]}

    def _tick(self) -> Any:
        self._ticks += 1
        return {"tick": self._ticks}


async def record_notes(
    path: Path, *sessions: list[tuple[str, dict[str, Any]]], setup: Any = None, backend: Any = None
) -> None:
    """Each session in a world of its own; `$0` in an argument is the first note_id that a call created."""
    recording = record(backend or Notes(), path)
    for number, calls in enumerate(sessions):
        async with recording.open_world(f"w{number}", setup) as world:
            results: list[ToolResult] = []
            for name, arguments in calls:
                results.append(await world.call(name, _filled(arguments, results)))


def _filled(arguments: dict[str, Any], results: list[ToolResult]) -> dict[str, Any]:
    text = json.dumps(arguments)
    created = [
        r.structured["note_id"] for r in results if isinstance(r.structured, dict) and [*r.structured] == ["note_id"]
    ]
    for number, note_id in enumerate(created):
        text = text.replace(f"${number}", note_id)
    found: dict[str, Any] = json.loads(text)
    return found
