"""A check against a JSON Schema takes a moment, whatever the schema and the value are."""

import sys
import time
import weakref
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult
from mcp_types import Tool as McpTool

from mcp_bridge import Tool, ToolFailure, connect, publish
from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_pattern, compiled_schema, schema_errors
from mcp_bridge.toolsets.validation import ArgumentChecker
from sandboxes.api import ApiTwin
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, Task, ToolCall
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.limits import Limits

EMAIL = r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3})|([a-z]{2,3}[.]{1}[a-z]{2,3}))$"
NO_EMAIL = "rosa.zimmer.from.the.customer.service.desk"
HEAVY = r"^(x+x+)+y$"
"""`regex` sees at once that `EMAIL` does not fit; here only its time limit ends it."""
LONG = "x" * 5000


def with_text(pattern: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"text": {"type": "string", "pattern": pattern}}}


def server(**tool: Any) -> Server[Any]:
    """With one tool, `send`, whose result has the text that it was sent."""

    async def list_tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[McpTool(name="send", **{"input_schema": {"type": "object"}, **tool})])

    async def call_tool(_: Any, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[], structured_content=dict(params.arguments or {}))

    return Server("mail", on_list_tools=list_tools, on_call_tool=call_tool)


@pytest.mark.parametrize(
    ("pattern", "text", "told"),
    [(EMAIL, NO_EMAIL, "expected a text that matches"), (HEAVY, LONG, "could not be checked in time")],
)
async def test_an_argument_that_a_pattern_takes_for_ever_on_is_refused_and_the_rollout_goes_on(
    pattern: str, text: str, told: str
) -> None:
    call = ToolCall(id="", name="send", arguments={"text": text})
    script = [Message(role="assistant", tool_calls=[call]), "I could not send it."]
    limits = Limits(max_seconds=60, call_timeout_s=2, max_turn_tokens=10_000, max_tokens=100_000)
    async with connect(server(input_schema=with_text(pattern))) as source:
        engine = RolloutEngine(agent=ScriptedAgent(script), source=source, verifier=lambda _: 1.0, limits=limits)
        rollout = (await engine.run([Job(id="r", task=Task(prompt="go"), seed=0)], sampling=Sampling()))[0]
    (record,) = rollout.calls
    assert record.result.error_kind == "invalid_arguments"
    assert told in record.result.text
    assert "nothing was called" in record.result.text
    assert (rollout.stop_reason, rollout.scored) == ("answered", True)


async def over_stdio(folder: Path) -> list[str]:
    file = folder / "mail.py"
    file.write_text(f"""
import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, Tool

async def list_tools(*_):
    tool = Tool(name="send", input_schema={{"type": "object"}}, output_schema={with_text(HEAVY)})
    return ListToolsResult(tools=[tool])

async def call_tool(_, params):
    return CallToolResult(content=[], structured_content=dict(params.arguments or {{}}))

async def main():
    server = Server("mail", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
""")
    return [sys.executable, str(file)]


@pytest.mark.parametrize("kind", ["stdio", "in process"])
async def test_a_result_that_its_output_schema_takes_for_ever_on_is_the_servers_failure(
    kind: str, tmp_path: Path
) -> None:
    source = await over_stdio(tmp_path) if kind == "stdio" else server(output_schema=with_text(HEAVY))
    async with connect(source) as toolset:
        with pytest.raises(ToolFailure, match="could not be checked in time: matching 'xxx") as raised:
            await toolset.call("send", {"text": LONG})
        assert raised.value.delivery == "answered"
        assert (await toolset.call("send", {"text": "xxy"})).structured == {"text": "xxy"}


async def test_a_client_of_served_tools_cannot_stop_the_server_by_an_argument() -> None:
    async with connect(server(input_schema=with_text(HEAVY))) as toolset, mcp.Client(publish(toolset)) as client:
        answer = await client.call_tool("send", {"text": LONG})
        assert answer.is_error
        assert (await client.call_tool("send", {"text": "xxy"})).structured_content == {"text": "xxy"}


API: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "mail", "version": "1"},
    "paths": {
        "/letters": {
            "post": {
                "operationId": "send",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Letter"}}}},
                "responses": {
                    "201": {
                        "description": "",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Letter"}}},
                    }
                },
            }
        },
        "/letters/{id}": {
            "get": {
                "operationId": "read",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {
                    "200": {
                        "description": "",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Letter"}}},
                    }
                },
            }
        },
    },
    "components": {
        "schemas": {
            "Letter": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "readOnly": True},
                    "more": {"type": "object", "additionalProperties": {"type": "string", "pattern": HEAVY}},
                },
            }
        }
    },
}


@pytest.mark.parametrize("is_twin", [True, False])
async def test_arguments_of_an_api_are_checked_in_a_moment(is_twin: bool) -> None:
    # Nothing listens there: the call must end before it is sent.
    live = {"mcpServers": {"mail": {"openapi": API, "base_url": "http://127.0.0.1:9"}}}
    async with connect(ApiTwin(API) if is_twin else live) as toolset:
        result = await toolset.call("send", {"more": {"a": LONG}})
        assert result.error_kind == "invalid_arguments"
        assert "could not be checked in time" in result.text


def doubling(levels: int, key: str = "anyOf") -> dict[str, Any]:
    """Each definition holds the next one twice: without a limit, a check of any value takes 2**levels steps."""
    definitions: dict[str, Any] = {
        f"d{level}": {key: [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(levels)
    }
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {**definitions, f"d{levels}": {"type": "string"}},
    }


def growing() -> dict[str, Any]:
    """Holds itself twice in one place: each level of a value doubles the steps."""
    node = {"type": "object", "properties": {"x": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (doubling(40), {"x": 1}),
        (doubling(40, "allOf"), {"x": 1}),
        (doubling(40, "allOf"), {"x": "fits"}),
        (growing(), nested(50)),
        ({**doubling(40), "$schema": "https://json-schema.org/draft/2020-12/schema"}, {"x": 1}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", **doubling(40)}, {"x": 1}),
    ],
)
async def test_a_schema_that_takes_exponential_time_is_given_up(schema: dict[str, Any], arguments: Any) -> None:
    async with connect(server(input_schema=schema)) as toolset:
        result = await toolset.call("send", arguments)
        assert result.error_kind == "invalid_arguments"
        assert "checking it against the schema took more than" in result.text


def test_a_long_chain_of_references_is_a_schema_like_any_other() -> None:
    chain: dict[str, Any] = {f"d{n}": {"properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(2000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": {"type": "string"}}}
    checker = ArgumentChecker([Tool(name="send", input_schema={"type": "object", **schema})])
    assert checker.problem("send", {"x": {"x": {}}}) is None


async def test_references_that_lead_too_far_cost_the_call_alone() -> None:
    chain: dict[str, Any] = {f"d{n}": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(500)}
    schema = {"type": "object", "properties": {"text": {"$ref": "#/$defs/d0"}}, "$defs": {**chain, "d500": {}}}
    async with connect(server(output_schema=schema)) as toolset:
        with pytest.raises(ToolFailure, match="could not be checked: it is nested too deeply") as raised:
            await toolset.call("send", {"text": "x"})
        assert raised.value.delivery == "answered"
    async with connect(server(input_schema=schema)) as toolset:
        refused = await toolset.call("send", {"text": "x"})
        assert refused.error_kind == "invalid_arguments"
        assert "nested too deeply to be checked" in refused.text


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {HEAVY: {"type": "string"}}},
        {"patternProperties": {HEAVY: {}}, "additionalProperties": False},
        {"propertyNames": {"pattern": HEAVY}},
        {"allOf": [{"patternProperties": {HEAVY: {}}}], "unevaluatedProperties": False},
        # A part with a dialect of its own is no way round the limit.
        {"allOf": [{"$schema": "https://json-schema.org/draft/2020-12/schema", "propertyNames": {"pattern": HEAVY}}]},
    ],
)
def test_names_of_properties_are_matched_in_a_moment(schema: dict[str, Any]) -> None:
    checker = ArgumentChecker([Tool(name="send", input_schema={"type": "object", **schema})])
    assert "could not be checked in time" in (checker.problem("send", {LONG: 1}) or "")


def test_names_that_fit_a_pattern_are_no_additional_ones() -> None:
    schema = {
        "patternProperties": {"^x-": {"type": "string"}, "^n": {"type": "integer"}},
        "additionalProperties": False,
    }
    validator = compiled_schema(schema)
    assert schema_errors(validator, {"x-a": "b", "n": 1}) == []
    assert [one.message for one in schema_errors(validator, {"x-a": "b", "y": 1})] == [
        "Additional properties are not allowed ('y' was unexpected)"
    ]
    assert [list(one.path) for one in schema_errors(validator, {"x-a": 1})] == [["x-a"]]


def test_items_are_told_apart_as_json_in_linear_time() -> None:
    validator = compiled_schema({"uniqueItems": True})
    assert schema_errors(validator, [1, True, "1", [1], [True], {"a": 1}, {"a": True}, {}, [], None, 0, False]) == []
    assert schema_errors(validator, [{"a": number} for number in range(50_000)]) == []
    assert schema_errors(validator, [{"a": [1, 2]}, {"a": [1.0, 2]}])
    assert schema_errors(validator, [1, 1.0])


def test_a_large_value_has_more_time() -> None:
    row = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z ]+$"}, "n": {"oneOf": [{}]}}}
    rows = [{"name": "a name " * 10, "n": number} for number in range(20_000)]
    assert schema_errors(compiled_schema({"items": row}), rows) == []
    with pytest.raises(SchemaTimeout, match=r"took more than 0\.5 s"):
        schema_errors(compiled_schema(doubling(40)), {"x": 1})


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [("^a{e}$", "a{e}", "ab"), ("^/users/{id}$", "/users/{id}", "/users/1"), ("^a{2}$", "aa", "a"), ("^{}$", "{}", "")],
)
def test_patterns_mean_what_they_mean_to_re(pattern: str, fits: str, fails: str) -> None:
    validator = compiled_schema({"pattern": pattern})
    assert schema_errors(validator, fits) == []
    assert schema_errors(validator, fails)


HUGE = ["(?:" * 16 + "a" + "){2}" * 16, "(?:a{50}){50}" * 60, "a" * 200_000, "(?i)" + "[a-\U0010ffff]" * 900]


@pytest.mark.parametrize("pattern", HUGE)
def test_a_pattern_that_takes_for_ever_to_compile_is_not_checked_and_said(pattern: str) -> None:
    told: list[str] = []
    began = time.thread_time()
    validator = compiled_schema({"properties": {"a": {"pattern": pattern}, "b": {"pattern": "^b$"}}}, told.append)
    assert time.thread_time() - began < 2
    assert told == [pattern]
    assert schema_errors(validator, {"a": "x", "b": "b"}) == []
    assert len(schema_errors(validator, {"a": "x", "b": "a"})) == 1


def test_all_patterns_of_a_schema_together_are_compiled_in_a_limited_time() -> None:
    told: list[str] = []
    many = {f"p{n}": {"pattern": f"{n}" + "(?:" * 8 + "a" + "){2}" * 8} for n in range(1000)}
    compiled_schema({"properties": many}, told.append)
    assert 900 < len(told) < 1000


@pytest.mark.parametrize("pattern", ["(?:a{50}){20}", "a" * 600])
def test_of_long_patterns_only_a_few_are_kept(pattern: str) -> None:
    kept = [weakref.ref(compiled_pattern(f"{pattern}{number}")) for number in range(100)]
    assert 0 < sum(one() is not None for one in kept) <= 32
    assert compiled_pattern(f"{pattern}99") is kept[-1]()


@pytest.mark.parametrize(
    "pattern", [r"^(?:\d{1,3}\.){3}\d{1,3}$", "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "a{1000}"]
)
def test_patterns_that_people_write_are_checked(pattern: str) -> None:
    told: list[str] = []
    assert len(schema_errors(compiled_schema({"pattern": pattern}, told.append), "no")) == 1
    assert told == []
