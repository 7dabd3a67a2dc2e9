"""Documents whose operations have most of their schemas in common: what they take grows with the document alone."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mcp_bridge
from mcp_bridge import Tool, ToolResult
from mcp_bridge.openapi.document import read_document
from mcp_bridge.openapi.tools import ToolMaker
from mcp_bridge.toolsets.schema_checks import split_usable
from mcp_bridge.toolsets.validation import ArgumentChecker

sys.path.insert(0, str(Path(__file__).parents[1]))
from one_world import OneWorld

FIELDS, SHARED = 40, 12
OK = {"200": {"description": "ok", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Part0"}}}}}


def document(operations: int) -> dict[str, Any]:
    """Each operation sends and returns a ring of definitions, of which each has many fields."""
    parts = {
        f"Part{number}": {
            "type": "object",
            "properties": {
                **{f"field{each}": {"type": "string", "minLength": each} for each in range(FIELDS)},
                "next": {"$ref": f"#/components/schemas/Part{(number + 1) % SHARED}"},
                "first": {"$ref": "#/components/schemas/Part0"},
            },
        }
        for number in range(SHARED)
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Part1"}}}}
    paths = {
        f"/things{number}": {"post": {"operationId": f"make{number}", "requestBody": body, "responses": OK}}
        for number in range(operations)
    }
    info = {"title": "Parts", "version": "1"}
    return {"openapi": "3.0.3", "info": info, "paths": paths, "components": {"schemas": parts}}


def tools_of(operations: int) -> list[Tool]:
    made, _ = ToolMaker(read_document(document(operations)), source="api").make(lambda _: None)
    return [one.tool for one in made]


def objects(value: Any, seen: dict[int, Any]) -> dict[int, Any]:
    """The lists and objects in a value, each once."""
    if isinstance(value, dict | list) and id(value) not in seen:
        seen[id(value)] = value
        for one in value.values() if isinstance(value, dict) else value:
            objects(one, seen)
    return seen


def held(tools: Sequence[Tool]) -> int:
    seen: dict[int, Any] = {}
    for tool in tools:
        objects(tool.input_schema, seen)
        objects(tool.output_schema, seen)
    return len(seen)


def work(do: Callable[[], object]) -> int:
    """How many calls of Python functions it takes: the same on every machine."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(before)
    return calls


def test_operations_hold_what_their_schemas_share_once() -> None:
    few, many = tools_of(2), tools_of(102)
    # Beside each operation's own few objects. Written out, each would hold FIELDS * SHARED more, twice.
    assert held(many) - held(few) < 100 * 20 < 100 * FIELDS * SHARED
    assert few == many[:2]
    assert len(json.dumps(many[-1].output_schema)) > FIELDS * SHARED * 10, "each is whole when it is written"


def test_schemas_that_share_parts_are_checked_in_the_time_of_the_parts() -> None:
    def check(tools: list[Tool]) -> None:
        usable, left_out = split_usable(tools, "api")
        assert (len(usable), left_out) == (len(tools), [])
        ArgumentChecker(usable)

    def make(operations: int) -> Callable[[], object]:
        read = read_document(document(operations))
        return lambda: ToolMaker(read, source="api").make(lambda _: None)

    check(tools_of(1))  # what is loaded and compiled at the first use counts for neither
    assert work(lambda: check(tools_of(100))) < 10 * work(lambda: check(tools_of(1)))
    assert work(make(100)) < 10 * work(make(1))


def test_a_shared_part_that_cannot_be_used_costs_all_tools_that_have_it() -> None:
    broken = {"type": "object", "properties": {"a": {"minimum": "low"}}}
    lost = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Lost"}}}
    schemas = [broken, {"type": "object", "properties": {"b": broken}}, lost, {**lost, "$defs": {"Lost": True}}]
    tools = [Tool(name=f"t{number}", input_schema=schema) for number, schema in enumerate(schemas)]
    usable, left_out = split_usable(tools, "api")
    assert [tool.name for tool in usable] == ["t3"]
    assert [one.reason for one in left_out] == [
        "its input schema is not a valid JSON Schema: 'low' is not of type 'number' at $.properties.a.minimum",
        "its input schema is not a valid JSON Schema: 'low' is not of type 'number' at "
        "$.properties.b.properties.a.minimum",
        "its input schema has a reference that leads nowhere: '#/$defs/Lost'",
    ]


class Watched(dict[str, Any]):
    """A part of a schema. Who first looks into it waits until another task of the event loop has gone on."""

    def __init__(self, schema: dict[str, Any], looked: Callable[[], object], went_on: threading.Event) -> None:
        super().__init__(schema)
        self._looked, self._went_on = looked, went_on
        self.was_waited_for: bool | None = None

    def items(self) -> Any:
        if self.was_waited_for is None:
            self._looked()
            self.was_waited_for = self._went_on.wait(20)
        return super().items()


class Source(OneWorld):
    def __init__(self, tool: Tool) -> None:
        self.tools = [tool]

    async def call(self, name: str, arguments: Any, **_: Any) -> ToolResult:
        return ToolResult(text="done")


async def test_other_tasks_go_on_while_the_schemas_of_tools_are_checked() -> None:
    looked, went_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    part = Watched({"type": "string"}, lambda: loop.call_soon_threadsafe(looked.set), went_on)
    schema = {"type": "object", "properties": {"a": part}}

    async def go_on() -> None:
        await looked.wait()
        went_on.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        async with mcp_bridge.connect(Source(Tool(name="look", input_schema=schema))) as toolset:
            assert [tool.name for tool in toolset.tools] == ["look"]
    assert part.was_waited_for is True


def test_definitions_in_all_of_beside_a_reference_are_written_where_they_are_used() -> None:
    refers = {"$ref": "#/components/schemas/A", "allOf": [{"$ref": "#/components/schemas/B"}], "minProperties": 1}
    made = read_document(
        {
            "openapi": "3.1.0",
            "info": {"title": "t", "version": "1"},
            "paths": {},
            "components": {"schemas": {"It": refers, "A": {"type": "object"}, "B": {"required": ["b"]}}},
        }
    )
    assert made.closed({"$ref": "#/$defs/It"}) == {
        "minProperties": 1,
        "allOf": [{"type": "object"}, {"required": ["b"]}],
    }
