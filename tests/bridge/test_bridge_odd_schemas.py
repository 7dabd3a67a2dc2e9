"""A tool whose schema cannot be used is left out with the reason; the other tools of its server are used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import mcp_types as types
import pytest
from mcp.server.lowlevel import Server

import mcp_bridge
from mcp_bridge import SourceError, Toolset
from sandboxes.api import ApiTwin

ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}


def of_argument(schema: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": {"a": schema}}}


USABLE: dict[str, Any] = {
    "plain": of_argument({"type": "string"}),
    "empty": {"inputSchema": {}},
    "null": {"inputSchema": None},
    "none": {},
    "recursive_anchor": {"inputSchema": {"type": "object", "$recursiveAnchor": True}},
    "annotations": of_argument({"type": "string", "title": 5, "description": None, "deprecated": "yes"}),
    "named_as_annotations": of_argument({"type": "object", "properties": {"title": {"type": "string"}}}),
    "older": {"inputSchema": {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"}},
    "referring": {"inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}},
    "itself": of_argument({"$ref": "#"}),
    "tree": {
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/tree"}},
            "$defs": {"tree": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/tree"}}]}},
        }
    },
    "answers_any": {**of_argument({}), "outputSchema": {"type": "object", "properties": {"a": {"type": "any"}}}},
    "answers_dangling": {**of_argument({}), "outputSchema": {"type": "object", "properties": {"a": {"$ref": "#/b"}}}},
    "answers_circling": {**of_argument({}), "outputSchema": {"type": "object", "allOf": [{"$ref": "#"}]}},
    "answers_list": {**of_argument({}), "outputSchema": []},
    "answers_array": {**of_argument({}), "outputSchema": {"type": "array", "items": {"type": "string"}}},
    "answers_short": {**of_argument({}), "outputSchema": {"type": "object", "properties": {"a": "string"}}},
    "answers_required": {**of_argument({}), "outputSchema": {"type": "object", "required": "a"}},
    "of_php": {"inputSchema": {"type": "object", "properties": []}},
    "untyped_answers": {**of_argument({}), "outputSchema": {"properties": {"a": {"type": "string"}}}},
}
REASONS: dict[str, tuple[Any, str]] = {
    "any": (of_argument({"type": "any"}), "'any' is not valid under any of the given schemas at $.properties.a.type"),
    "items": (of_argument({"items": [{}]}), "is not of type 'object', 'boolean' at $.properties.a.items"),
    "exclusive": (of_argument({"exclusiveMinimum": True}), "not of type 'number' at $.properties.a.exclusiveMinimum"),
    "required": (of_argument({"required": True}), "True is not of type 'array' at $.properties.a.required"),
    "title": (of_argument({"properties": {"title": "text"}}), "'text' is not of type 'object', 'boolean'"),
    "dangling": (of_argument({"$ref": "#/$defs/b"}), "has a reference that leads nowhere: '#/$defs/b'"),
    "remote": (of_argument({"$ref": "https://example.com/a.json"}), "has a reference that leads nowhere: 'https://"),
    "circle": (of_argument({"$ref": "#/properties/a"}), "leads back to itself: '#/properties/a'"),
    "two": (of_argument({"anyOf": [{"type": "null"}, {"$ref": "#/properties/a"}]}), "leads back to itself"),
    "deep": ({"inputSchema": {"type": "object", "properties": {"a": "DEEP"}}}, "a schema of more than 190 levels"),
    "list": ({"inputSchema": []}, "its input schema is [], and must be an object"),
    "string": ({"inputSchema": {"type": "string"}}, "its input schema has the type 'string', and must have \"object\""),
    "short": (of_argument("string"), "inputSchema.properties.a"),
    "true": ({"inputSchema": {"type": "object", "properties": True}}, "inputSchema.properties: Input should be"),
    "one": ({"inputSchema": {"type": "object", "required": "a"}}, "inputSchema.required: Input should be"),
    "dialect": ({"inputSchema": {"type": "object", "$schema": 7}}, "inputSchema.$schema: Input should be"),
    "described": ({**of_argument({}), "description": 7}, "in a form that MCP does not have: description:"),
}
TOOLS = [{"name": name, **rest} for name, rest in [*USABLE.items(), *((n, rest) for n, (rest, _) in REASONS.items())]]

STDIO = """
import json, sys

ABOUT, TOOLS, LEVELS = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "server/discover":
        answer["error"] = {"code": -32601, "message": "no such method"}
    else:
        called = {"content": [{"type": "text", "text": "called"}]}
        answer["result"] = {"initialize": ABOUT, "tools/list": {"tools": TOOLS}}.get(method, called)
    print(json.dumps(answer).replace('"DEEP"', '{"items": ' * LEVELS + "{}" + "}" * LEVELS), flush=True)
"""


class Listing(BaseHTTPRequestHandler):
    """The same tools over streamable HTTP, as JSON or as events."""

    protocol_version = "HTTP/1.1"
    events: ClassVar[bool] = False

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        called = {"content": [{"type": "text", "text": "called"}]}
        result = {"initialize": ABOUT, "tools/list": {"tools": TOOLS}}.get(asked["method"], called)
        body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": result})
        body = body.replace('"DEEP"', '{"items": ' * 3000 + "{}" + "}" * 3000)
        if asked.get("id") is None:
            self.answer(202, "application/json", "")
        elif self.events:
            log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "listing"}}
            self.answer(200, "text/event-stream", f"data: {json.dumps(log)}\n\nevent: message\r\ndata: {body}\r\n\r\n")
        else:
            self.answer(200, "application/json", body)

    def answer(self, status: int, kind: str, body: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self.answer(405, "text/plain", "")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    monkeypatch.setattr(Listing, "events", request.param)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Listing)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    server.server_close()


async def require_all(toolset: Toolset, log: str) -> None:
    assert [tool.name for tool in toolset.tools] == list(USABLE)
    left_out = {one.tool: one.reason for one in toolset.left_out}
    assert set(left_out) == set(REASONS)
    for name, (_, reason) in REASONS.items():
        assert reason in left_out[name]
        assert f"tool {name!r} of " in log
    for tool in toolset.tools:
        if tool.name.startswith("answers_"):
            assert f"tool {tool.name!r}" in log
            assert "its results are not checked" in log
            assert tool.output_schema is None
        elif tool.name == "untyped_answers":
            assert tool.output_schema == {"type": "object", "properties": {"a": {"type": "string"}}}
    for name in USABLE.keys() - {"untyped_answers"}:
        assert (await toolset.call(name, {})).text == "called"


@pytest.mark.parametrize("levels", [200, 3000, 100_000])
async def test_odd_schemas_cost_their_own_tools_alone_over_stdio(
    script: Callable[[str], list[str]], levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with mcp_bridge.connect([*script(STDIO), json.dumps([ABOUT, TOOLS, levels])]) as toolset:
        await require_all(toolset, caplog.text)


@pytest.mark.parametrize("listing", [False, True], indirect=True)
async def test_odd_schemas_cost_their_own_tools_alone_over_http(listing: str, caplog: pytest.LogCaptureFixture) -> None:
    config = {"mcpServers": {"s": {"url": listing, "toolbake": {"protocol": "2025-06-18"}}}}
    async with mcp_bridge.connect(config) as toolset:
        await require_all(toolset, caplog.text)


async def test_a_server_object_with_an_odd_schema_is_used_without_that_tool() -> None:
    schemas = {name: tool["inputSchema"] for tool in TOOLS if (name := tool["name"]) in ("plain", "any", "circle")}
    listed = [types.Tool(name=name, input_schema=schema) for name, schema in schemas.items()]
    listed.append(types.Tool(name="answers", input_schema={"type": "object"}, output_schema={"type": "any"}))

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async with mcp_bridge.connect(Server("odd", on_list_tools=list_tools)) as toolset:
        assert [tool.name for tool in toolset.tools] == ["plain", "answers"]
        assert [one.tool for one in toolset.left_out] == ["any", "circle"]


async def test_a_server_of_odd_schemas_alone_is_refused_with_all_reasons(script: Callable[[str], list[str]]) -> None:
    odd = [tool for tool in TOOLS if tool["name"] in ("any", "list")]
    with pytest.raises(SourceError, match=r"offers no tools|no tool is left") as raised:
        async with mcp_bridge.connect([*script(STDIO), json.dumps([ABOUT, odd, 1])]):
            pass
    assert "'any' is not valid" in str(raised.value)
    assert "and must be an object" in str(raised.value)


def json_body(schema: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def operation(**more: Any) -> dict[str, Any]:
    return {"responses": {"200": {"description": "fine"}}, **more}


ODD_PART = {"$ref": "#/components/schemas/Odd"}
API = {
    "openapi": "3.1.0",
    "info": {"title": "Odd", "version": "1"},
    "servers": [{"url": "http://127.0.0.1:9"}],
    "components": {
        "schemas": {
            "Odd": {"type": "object", "properties": {"$ref": "#/components/schemas/Fine"}},
            "Around": {"type": "object", "properties": {"odd": ODD_PART}},
            "Fine": {"type": "object", "$recursiveAnchor": True, "properties": {"name": {"type": "string"}}},
        }
    },
    "paths": {
        "/fine": {"post": operation(operationId="fine", requestBody=json_body({"$ref": "#/components/schemas/Fine"}))},
        "/answer": {
            "get": operation(operationId="answer", responses={"200": {"description": "", **json_body(ODD_PART)}})
        },
        "/body": {
            "post": operation(operationId="body", requestBody=json_body({"$ref": "#/components/schemas/Around"}))
        },
        "/place": {"get": operation(parameters=[{"name": "a", "in": "query", "schema": {"type": "date"}}])},
        "/dangling": {
            "get": operation(
                operationId="dangling", parameters=[{"name": "a", "in": "query", "schema": {"$ref": "#/b"}}]
            )
        },
        "/limit": {
            "get": operation(
                operationId="limit", parameters=[{"name": "a", "in": "query", "schema": {"minLength": "three"}}]
            )
        },
    },
}
OUT = {
    "body": "#/components/schemas/Odd/properties/$ref: a schema must be an object",
    "get_place": "type is 'date'",
    "dangling": "$ref '#/b' leads nowhere",
    "limit": "'three' is not of type 'integer' at $.properties.a.minLength",
}


async def test_odd_schemas_of_a_document_cost_their_own_operations_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with mcp_bridge.connect(API) as toolset:
        assert [tool.name for tool in toolset.tools] == ["fine", "answer"]
        left_out = {one.tool: one.reason for one in toolset.left_out}
    assert left_out.keys() == OUT.keys()
    assert all(reason in left_out[name] and reason in caplog.text for name, reason in OUT.items())


def test_odd_schemas_of_a_document_cost_a_twin_their_own_operations_alone(caplog: pytest.LogCaptureFixture) -> None:
    twin = ApiTwin(API)
    assert [tool.name for tool in twin.tools] == ["fine", "answer"]
    assert {one.tool for one in twin.left_out} == OUT.keys()
    assert all(reason in caplog.text for reason in OUT.values())
    assert not twin.call_now("fine", {"name": "Ann"}).is_error


def test_a_document_of_odd_operations_alone_is_refused_with_all_reasons() -> None:
    alone = {**API, "paths": {path: API["paths"][path] for path in ("/body", "/place")}}
    with pytest.raises(SourceError, match=r"(?s)no operation.*type is 'date'.*a schema must be an object"):
        ApiTwin(alone)
