"""Schemas that no value satisfies are reported when a source is connected, and not enforced."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.lowlevel import Server

import mcp_bridge
from mcp_bridge.toolsets.schema_checks import compiled_pattern, fits_nothing
from sandboxes.api import ApiTwin

LABEL = {"type": "string", "minLength": 3, "maxLength": 64, "pattern": "^[a-zA-Z]((?!--|__|..)[a-zA-Z0-9-_.])+$"}
"""Linode's: of any place in it two further characters may not follow, and so three never fit."""


def server(schema: Any) -> Server[Any]:
    properties = {"a": schema, "b": {"type": "integer"}}
    tool = types.Tool(name="take", input_schema={"type": "object", "properties": properties})

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=str(params.arguments))])

    return Server("odd", on_list_tools=list_tools, on_call_tool=call_tool)


async def test_a_pattern_that_python_warns_of_is_read_without_a_word() -> None:
    async with mcp_bridge.connect(server({"type": "string", "pattern": "^[[a-z]+$"})) as toolset:
        assert not (await toolset.call("take", {"a": "a[b"})).is_error
        refused = await toolset.call("take", {"a": "A"})
    assert refused.is_error
    assert 'expected a text that matches "^[[a-z]+$"' in refused.text


CLOSED = {"type": "object", "properties": {"x": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        (LABEL, "web-1", "pattern '^[a-zA-Z]((?!--|__|..)[a-zA-Z0-9-_.])+$' and minLength 3"),
        ({"items": LABEL}, ["web-1"], "pattern '^[a-zA-Z]"),
        ({"type": "string", "pattern": "^a(?=b)c"}, "a", "pattern '^a(?=b)c'"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "four", "minLength 5 and maxLength 3"),
        ({"exclusiveMinimum": 1, "maximum": 1}, 1, "exclusiveMinimum 1 and maximum 1"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, [1], "minItems 2 and maxItems 1"),
        ({"type": "string", "enum": [True, False]}, True, "type 'string' and enum [True, False]"),
        ({"type": "array", "enum": ["x", "y"]}, ["x"], "type 'array' and enum ['x', 'y']"),
        ({"enum": []}, 1, "enum []"),
        ({**CLOSED, "required": ["x", "y"]}, {"x": 1}, "required 'y', which the same schema does not allow"),
    ],
)
async def test_what_nothing_satisfies_is_named_and_not_enforced(
    schema: Any, value: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with mcp_bridge.connect(server(schema)) as toolset:
            assert f"nothing satisfies {told}" in caplog.text
            assert toolset.tools[0].input_schema["properties"]["a"] == schema, "shown as published"
            assert not (await toolset.call("take", {"a": value})).is_error
            assert (await toolset.call("take", {"a": value, "b": []})).error_kind == "invalid_arguments"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 2, "maxLength": 2, "pattern": LABEL["pattern"]},
        {"type": "string", "minLength": 3, "pattern": r"^[a-z](?!--)[a-z-]+$"},
        {"type": "number", "minimum": 1, "maximum": 1},
        {"type": ["string", "null"], "enum": [None, "x"]},
        {"type": "integer", "enum": [1.0, 2.0]},
        {**CLOSED, "required": ["x"]},
        {**CLOSED, "required": ["y"], "patternProperties": {"^y": {}}},
    ],
)
async def test_what_something_satisfies_is_enforced_without_a_word(
    schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with mcp_bridge.connect(server(schema)) as toolset:
            assert caplog.text == ""
            assert (await toolset.call("take", {"a": {"z": []}})).error_kind == "invalid_arguments"


async def test_a_twin_of_a_document_takes_what_its_impossible_pattern_forbids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = {
        "type": "object",
        "required": ["label"],
        "properties": {"label": LABEL, "kind": {"enum": [], "type": "string"}},
    }
    item = {"type": "object", "properties": {"id": {"type": "integer"}, "label": LABEL}}
    content = {"application/json": {"schema": item}}
    answers = {"200": {"description": "", "content": content}}
    paths = {
        "/hosts": {
            "post": {
                "operationId": "make",
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": answers,
            }
        },
        "/hosts/{id}": {
            "get": {
                "operationId": "get",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                "responses": answers,
            }
        },
    }
    with caplog.at_level(logging.WARNING):
        twin = ApiTwin({"openapi": "3.0.3", "info": {"title": "Hosts", "version": "1"}, "paths": paths})
    assert "nothing satisfies pattern" in caplog.text
    made = twin.call_now("make", {"label": "web-1"})
    assert (made.is_error, made.structured["label"]) == (False, "web-1")
    assert twin.call_now("make", {"label": "no"}).error_kind == "invalid_arguments", "its length is checked"


PARTS = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    r"\d",
    "-",
    "$",
    "^",
    "(?!",
    "(?=",
    "(?<!",
    "(",
    ")",
    "|",
    "*",
    "+",
    "{2}",
    r"\b",
]


@given(st.lists(st.sampled_from(PARTS), max_size=8), st.sampled_from([0, 1, 3]), st.sampled_from([None, 4]))
def test_no_pattern_that_fits_something_is_said_to_fit_nothing(parts: list[str], low: int, high: int | None) -> None:
    pattern = "".join(parts)
    compiled = compiled_pattern(pattern)
    if compiled is None or not fits_nothing(pattern, low, high):
        return
    texts = ("".join(letters) for size in range(low, 5) for letters in itertools.product("ab1-", repeat=size))
    assert not any(compiled.search(text) for text in texts)
