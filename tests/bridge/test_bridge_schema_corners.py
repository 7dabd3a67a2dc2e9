"""Schemas and arguments at which checking itself might fail: another dialect's patterns, steps, depth, huge numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult
from mcp_types import Tool as McpTool
from one_world import OneWorld

from mcp_bridge import SourceError, Tool, ToolFailure, ToolResult, connect
from mcp_bridge.toolsets.schema_checks import exact_multiple, schema_problem, with_readable_patterns
from mcp_bridge.toolsets.validation import ArgumentChecker


class Taking(OneWorld):
    """One tool that takes whatever its schema lets through."""

    def __init__(self, **properties: Any) -> None:
        definitions = properties.pop("defs", {})
        schema = {"type": "object", "properties": properties, "additionalProperties": False, "$defs": definitions}
        self.tools = [Tool(name="take", input_schema=schema, source="the depot")]

    async def call(self, name: str, arguments: Mapping[str, Any], **_: Any) -> ToolResult:
        return ToolResult(text="taken")


async def taken(source: Taking, value: Any) -> ToolResult:
    async with connect(source) as toolset:
        return await toolset.call("take", {"it": value})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": r"^\p{L}+$"},
        {"type": "string", "pattern": r"^(?<year>\d{4})$"},
        {"anyOf": [{"type": "string", "pattern": r"^\p{L}+$"}, {"type": "null"}]},
        {"type": "object", "patternProperties": {r"^\p{L}": {"type": "string"}}, "additionalProperties": False},
    ],
)
async def test_a_pattern_of_javascript_that_python_cannot_read_is_not_checked_and_said(
    schema: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    source = Taking(it=schema)
    assert (await taken(source, {"a": "x"} if "patternProperties" in schema else "x")).text == "taken"
    assert (await taken(source, 7)).error_kind == "invalid_arguments", "the rest is checked"
    assert "'take' (the depot): arguments are not checked against" in caplog.text
    assert source.tools[0].input_schema["properties"]["it"] is schema, "the policy sees all of it"


def test_only_patterns_in_the_place_of_patterns_are_left_out() -> None:
    odd = r"\p{L}"
    schema = {
        "properties": {"pattern": {"type": "string"}, odd: {"pattern": "^a"}},
        "default": {"pattern": odd},
        "enum": [{"pattern": odd}],
        "$defs": {"a": {"items": {"pattern": odd, "minLength": 2}}},
    }
    told: list[str] = []
    found = with_readable_patterns(schema, told.append)
    assert found == {**schema, "$defs": {"a": {"items": {"minLength": 2}}}}
    assert told == [odd]
    plain = {"properties": {"a": {"pattern": "^a"}}, "items": [{"pattern": "b"}, True]}
    assert with_readable_patterns(plain, told.append) is plain


async def test_results_are_judged_by_their_output_schema_but_for_patterns_that_python_cannot_read() -> None:
    properties = {"name": {"type": "string", "pattern": r"^\p{L}+$"}, "price": {"type": "number", "multipleOf": 0.01}}
    output = {"type": "object", "properties": properties, "required": ["name"]}
    structured: dict[str, Any] = {"name": "Bo", "price": 0.57}

    async def list_tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[McpTool(name="get", input_schema={"type": "object"}, output_schema=output)])

    async def call_tool(_: Any, __: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[], structured_content=structured)

    async with connect(Server("depot", on_list_tools=list_tools, on_call_tool=call_tool)) as toolset:
        assert (await toolset.call("get", {})).structured == {"name": "Bo", "price": 0.57}
        structured = {"price": 0.57}
        with pytest.raises(ToolFailure, match="'name' is a required property"):
            await toolset.call("get", {})


@given(st.integers(-100_000, 100_000), st.sampled_from([0.01, 0.1, 0.05, 0.001, 2.5]))
def test_each_multiple_of_a_step_is_one_as_it_is_written(times: int, step: float) -> None:
    schema = {"type": "object", "properties": {"it": {"type": "number", "multipleOf": step}}}
    checker = ArgumentChecker([Tool(name="take", input_schema=schema)])
    value = exact_multiple(step, times)
    assert jsonschema_rs.Draft202012Validator({"multipleOf": step}).is_valid(value)
    assert checker.problem("take", {"it": value}) is None
    between = float(f"{value:.3f}5")
    assert f"it is {between}; expected a multiple of {step}" in (checker.problem("take", {"it": between}) or "")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [nested(400), nested(900), [10**5000], [[math.nan, 10**5000]]], ids=["deep", "deeper", "long", "both"]
)
async def test_arguments_that_cannot_be_checked_are_the_policys_mistake(value: Any) -> None:
    tree = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/tree"}}, {"type": "integer", "maximum": 9}]}
    result = await taken(Taking(it={"$ref": "#/$defs/tree"}, defs={"tree": tree}), value)
    assert result.error_kind == "invalid_arguments"
    assert "nothing was called" in result.text
    assert len(result.text) < 1000


@pytest.mark.parametrize("value", [10**400, math.inf, math.nan])
async def test_a_number_beyond_all_others_is_judged_by_its_step(value: Any) -> None:
    result = await taken(Taking(it={"type": "number", "multipleOf": 0.01}), value)
    assert result.is_error == (value != 10**400)


async def test_arguments_that_are_a_number_of_thousands_of_digits_are_told_in_short() -> None:
    async with connect(Taking(it={})) as toolset:
        result = await toolset.call("take", 10**5000)  # type: ignore[arg-type]
    assert "must be one JSON object, not an int" in result.text


IN_A = {"type": "object", "properties": {"a": {"$ref": "x"}}}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$schema": 5}, "is not a valid JSON Schema: 5 is not of type 'string'"),
        ({**IN_A, "$id": "http://["}, "leads nowhere: 'x'"),
        ({**IN_A, "$id": "http://[", "properties": {"a": {"$id": "b"}}}, "cannot be read: Invalid IPv6 URL"),
        ({**IN_A, "properties": {"a": {"$dynamicRef": "#x"}}}, "leads nowhere: '#x'"),
        ({**IN_A, "properties": {"a": {"$ref": "#/allOf/x"}}, "allOf": [{}]}, "leads nowhere: '#/allOf/x'"),
        ({**IN_A, "properties": {"a": {"$ref": "#/type"}}}, "leads to no schema: '#/type'"),
    ],
)
def test_names_and_references_that_lead_to_no_schema_are_its_problem(schema: dict[str, Any], problem: str) -> None:
    assert problem in (schema_problem(schema) or "")


def test_a_reference_by_a_keyword_that_the_draft_does_not_have_is_none() -> None:
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$dynamicRef": "#x"}}}
    assert schema_problem(older) is None
    assert schema_problem({"$dynamicAnchor": "node", "properties": {"next": {"$dynamicRef": "#node"}}}) is None
    assert schema_problem({"$schema": "http://["}) is None, "what is unknown is the default"


@pytest.mark.parametrize("circle", [{"$ref": "#/$defs/a"}, {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}])
async def test_a_schema_that_refers_only_to_itself_is_found_before_a_call(circle: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"'take' \(its input schema has a reference that leads back to itself"):
        await taken(Taking(it={"$ref": "#/$defs/a"}, defs={"a": circle}), 1)
