"""The light channels give what the SDK's own client gives: for random tools, arguments, results and failures."""

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.abc
import httpx2
import jsonschema
import mcp_types as types
import pydantic
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import example, given, settings
from hypothesis import strategies as st
from listening_servers import serving
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from referencing.exceptions import Unresolvable
from servers import scripted

from mcp_bridge.channels.client import http_client, in_process_client
from mcp_bridge.channels.engine import Connections
from mcp_bridge.channels.in_process import InProcessSession
from mcp_bridge.channels.sharing import Shared
from mcp_bridge.toolsets.acceptance import compile_acceptance


@pytest.fixture(autouse=True)
def _quiet_logs() -> Iterator[None]:
    """Both clients log every oddity of a server; thousands of those would hide what failed."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# ---------------------------------------------------------------------------------------------------------------------
# What is compared


async def outcome(client: Client, name: str, arguments: Any, meta: Any, heard: list[Any]) -> tuple[Any, ...]:
    """All that a caller can tell of a call: the result with its fields that were set, or the error."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append(("progress", done, total, message))

    heard.clear()
    try:
        result = await client.call_tool(name, arguments, progress_callback=progress, meta=meta)
    except MCPError as error:
        return ("error", error.code, error.message, error.error.data, sorted(map(repr, heard)))
    except pydantic.ValidationError as error:
        return ("invalid", [(one["type"], one["loc"]) for one in error.errors()])
    except Exception as error:
        return (type(error).__name__, str(error))
    assert type(result) is types.CallToolResult
    told = result.model_dump(by_alias=True)
    return ("result", comparable(told), sorted(result.model_fields_set), sorted(map(repr, heard)))


def comparable(value: Any) -> Any:
    """A form in which NaN equals itself, and 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(inner) for inner in value]
    return (type(value).__name__, repr(value))


class Contenders:
    """The SDK's client and the light one, on servers that do the same."""

    def __init__(self, portal: BlockingPortal, clients: list[Client], heard: list[list[Any]]) -> None:
        self.portal, self.clients, self.heard = portal, clients, heard

    def compare(self, name: str, arguments: Any, meta: Any = None) -> tuple[Any, ...]:
        theirs, ours = self.portal.call(self._both, name, arguments, meta)
        assert ours == theirs
        return ours

    async def _both(self, name: str, arguments: Any, meta: Any) -> list[tuple[Any, ...]]:
        return [
            await outcome(client, name, arguments, meta, heard)
            for client, heard in zip(self.clients, self.heard, strict=True)
        ]

    def define(self, tools: list[dict[str, Any]]) -> list[Any]:
        """Both list the tools that the server has from now on; what they see is the same."""
        return self.portal.call(self._define, tools)

    async def _define(self, tools: list[dict[str, Any]]) -> list[Any]:
        listings = []
        for client in self.clients:
            await client.call_tool("define", {"tools": tools})
            listings.append((await client.list_tools(cache_mode="refresh")).model_dump())
        assert listings[0] == listings[1]
        return listings[1]["tools"]


def listening(heard: list[Any]) -> dict[str, Any]:
    """Options of a client that hears logs and answers questions."""

    async def log(entry: types.LoggingMessageNotificationParams) -> None:
        heard.append(("log", entry.level, entry.data, entry.logger))

    async def elicit(context: Any, parameters: Any) -> types.ElicitResult:
        heard.append(("asked", parameters.message))
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    return {"logging_callback": log, "elicitation_callback": elicit, "log_level": "debug"}


@contextlib.asynccontextmanager
async def in_process(make: Callable[[], Any]) -> AsyncIterator[tuple[list[Client], list[list[Any]]]]:
    heard: list[list[Any]] = [[], []]
    shared = Shared()
    async with (
        Client(make(), cache=None, **listening(heard[0])) as theirs,
        in_process_client(make(), shared, **listening(heard[1])) as ours,
    ):
        assert isinstance(ours.session, InProcessSession)
        yield [theirs, ours], heard


@contextlib.asynccontextmanager
async def over_http(port: int, mode: str, *, engine: bool) -> AsyncIterator[tuple[list[Client], list[list[Any]]]]:
    heard: list[list[Any]] = [[], []]
    url = f"http://127.0.0.1:{port}/mcp"
    connections = Connections(httpx2.create_ssl_context())
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(connections.used())
        plain = await stack.enter_async_context(httpx2.AsyncClient(timeout=30))
        options = {"transport": connections.transport()} if engine else {}
        quick = await stack.enter_async_context(httpx2.AsyncClient(timeout=30, **options))
        theirs = Client(streamable_http_client(url, http_client=plain), mode=mode, cache=None, **listening(heard[0]))
        given_connections = connections if engine else None
        ours = http_client(url, quick, Shared(), connections=given_connections, mode=mode, **listening(heard[1]))
        yield [await stack.enter_async_context(theirs), await stack.enter_async_context(ours)], heard


@contextlib.contextmanager
def contending(clients: Any) -> Iterator[Contenders]:
    raised: Exception | None = None
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(clients) as (opened, heard):
        try:
            yield Contenders(portal, opened, heard)
        except Exception as error:
            # Kept out of the clients' task groups, which would wrap it.
            raised = error
    if raised is not None:
        raise raised


@pytest.fixture(scope="module")
def scripted_ports() -> Iterator[dict[str, int]]:
    """The scripted server over HTTP, by how it answers. Each test defines the tools that it needs."""
    with serving(scripted.app()) as events, serving(scripted.app(json=True)) as json:
        yield {"events": events, "json": json}


@pytest.fixture
def scripted_port(scripted_ports: dict[str, int]) -> int:
    return scripted_ports["events"]


# ---------------------------------------------------------------------------------------------------------------------
# Random tools and calls

texts = st.text(max_size=8) | st.sampled_from(["", "é", "日本", "\U0001f600", "\x00", "\u2028", "a" * 300])
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-5, 5) | numbers | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(texts, json_values, max_size=4)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    """JSON Schemas, most of them valid, with keywords that the quick check knows and with others."""
    names = ["a", "b", "c"]
    small = schemas(depth=depth - 1) if depth else st.just({})
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(
            ["null", "boolean", "integer", "number", "string", "array", "object", ["string", "null"]]
        ),
        "enum": st.lists(scalars, min_size=1, max_size=3),
        "const": json_values,
        "minimum": st.integers(-3, 3) | st.floats(-3, 3),
        "exclusiveMaximum": st.integers(-3, 3),
        "multipleOf": st.sampled_from([2, 0.5]),  # of 0.1 the SDK's client thinks otherwise: see `toolsets.multiples`
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(0, 3),
        "pattern": st.sampled_from(["^a", r"^\d+$", "^.$"]),
        "format": st.sampled_from(["date", "email", "unheard-of"]),
        "properties": st.dictionaries(st.sampled_from(names), small, max_size=3),
        "required": st.lists(st.sampled_from(names), unique=True, max_size=2),
        "additionalProperties": st.booleans() | small,
        "items": small,
        "prefixItems": st.lists(small, min_size=1, max_size=2),
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "anyOf": st.lists(small, min_size=1, max_size=2),
        "allOf": st.lists(small, min_size=1, max_size=2),
        "oneOf": st.lists(small, min_size=1, max_size=2),
        "not": small,
        "$ref": st.sampled_from(["#", "#/$defs/d", "#/nowhere", "https://example.com/elsewhere"]),
        "$defs": st.fixed_dictionaries({"d": small}),
        "title": texts,
        "default": json_values,
        "x-note": json_values,
        "$schema": st.sampled_from(
            ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]
        ),
        "minProperties": st.just("three"),
    }
    usual = [name for name in keywords if name not in {"$ref", "minProperties", "$schema"}]
    chosen = draw(st.lists(st.sampled_from(usual), unique=True, max_size=3))
    chosen += draw(st.sampled_from([[]] * 12 + [["$ref"], ["$ref", "$defs"], ["$schema"], ["minProperties"]]))
    return {name: draw(keywords[name]) for name in dict.fromkeys(chosen)}


near_values = (
    json_values
    | st.sampled_from([1, 1.0, True, 0, False, "", "1", "a", None, [], {}, 2, -0.0, 1e300, 2**53, 2**53 + 1, 10**25])
    | st.dictionaries(st.sampled_from(["a", "b", "c", "z"]), scalars | st.lists(scalars, max_size=3), max_size=4)
    | st.lists(scalars, max_size=3)
)
output_schemas = schemas().map(lambda schema: {**schema, "type": "object"})

annotations = st.none() | st.just({"audience": ["user"], "priority": 0.5})
metas = st.none() | st.dictionaries(st.sampled_from(["k", "com.example/k"]), json_values, max_size=2)
base64s = st.sampled_from(["", "aGVsbG8="])
blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("text"), "text": texts, "annotations": annotations, "_meta": metas}),
    st.fixed_dictionaries({"type": st.just("image"), "data": base64s, "mimeType": st.just("image/png")}),
    st.fixed_dictionaries({"type": st.just("audio"), "data": base64s, "mimeType": st.just("audio/wav")}),
    st.fixed_dictionaries(
        {"type": st.just("resource"), "resource": st.just({"uri": "file:///a", "mimeType": "text/plain", "text": "é"})}
    ),
    st.fixed_dictionaries({"type": st.just("resource_link"), "uri": st.just("file:///b"), "name": texts}),
)
codes = st.sampled_from([-32602, -32603, -32601, -32600, -32001, -32000, 1, 7000])
errors = st.fixed_dictionaries({"code": codes, "message": texts, "data": json_values})
results = st.fixed_dictionaries(
    {"content": st.lists(blocks, max_size=3)},
    optional={"structured_content": near_values, "is_error": st.booleans(), "meta": metas},
)
raws = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(blocks, max_size=2) | json_values,
        "structuredContent": near_values,
        "isError": st.booleans() | st.just("yes"),
        "resultType": st.sampled_from(["complete", "com.example/other", 3]),
        "_meta": metas,
        "surplus": json_values,
    },
)
answers = st.one_of(
    results.map(lambda told: {"result": told}),
    results.map(lambda told: {"result": told}),
    raws.map(lambda told: {"raw": told}),
    json_values.map(lambda told: {"raw": told}),
    errors.map(lambda told: {"error_data": told}),
    errors.map(lambda told: {"protocol_error": told}),
    texts.map(lambda told: {"crash": told}),
    raws.map(lambda told: {"bad_record": told}),
    texts.map(lambda told: {"tell": told}),
    st.just({"ask": {}}),
)
call_metas = st.none() | st.dictionaries(st.sampled_from(["toolbake/call", "x", "é"]), json_values, max_size=2)
odd_arguments = st.sampled_from(
    [
        None,
        {"inf": math.inf, "nan": [math.nan]},
        {"tuple": (1, 2), "bytes": b"x"},
        {1: "a number as a name"},
        {"inner": {2: "a number as a name"}},
        {"set": {1}},
        {"record": types.TextContent(text="x")},
        {"object": object()},
    ]
)
named = st.sampled_from(["plain", "strict", "unlisted"])


no_unicode = st.sampled_from([{"surrogate": "\ud800"}, {"\ud800": 1}, {"inner": ["\udfff"]}])
"""Over HTTP the SDK's client does not survive them."""


def check_calls(contenders: Contenders, *, examples: int, arguments: Any = odd_arguments) -> None:
    """The properties that hold over every transport."""

    @settings(max_examples=examples, deadline=None)
    @given(schema=output_schemas, name=named, answer=answers, meta=call_metas, others=objects)
    def results_are_equal(schema: Any, name: str, answer: Any, meta: Any, others: Any) -> None:
        plain = {"name": "plain", "inputSchema": {"type": "object"}}
        contenders.define([plain, {**plain, "name": "strict", "outputSchema": schema}])
        contenders.compare(name, {**others, "answer": answer}, meta)

    @settings(max_examples=examples, deadline=None)
    @given(given_arguments=objects | arguments, meta=call_metas, name=texts)
    def arguments_arrive_equal(given_arguments: Any, meta: Any, name: str) -> None:
        contenders.compare("plain", given_arguments, meta)
        contenders.compare(name, given_arguments, meta)

    results_are_equal()
    arguments_arrive_equal()


def check_examples(contenders: Contenders) -> None:
    """Cases that must be among those that are compared, and what they must come to."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    plain = {"name": "plain", "inputSchema": {"type": "object"}}
    tools = contenders.define([plain, {**plain, "name": "strict", "outputSchema": schema}])
    assert [tool["name"] for tool in tools] == ["plain", "strict"]
    text = {"type": "text", "text": "é"}
    for _ in range(2):
        # Twice: the first answer of a tool is checked by the long way alone.
        good = contenders.compare("strict", {"answer": {"result": {"content": [text], "structured_content": {"n": 1}}}})
        assert good[0] == "result"
    for wrong in ({"n": "1"}, {}, {"n": True}):
        found = contenders.compare("strict", {"answer": {"result": {"content": [], "structured_content": wrong}}})
        assert found[0] == "RuntimeError"
    assert contenders.compare("strict", {"answer": {"result": {"content": []}}})[0] == "RuntimeError"
    failed = contenders.compare("strict", {"answer": {"result": {"content": [text], "is_error": True}}})
    assert failed[0] == "result"
    refused = contenders.compare("plain", {"answer": {"protocol_error": {"code": -32602, "message": "no"}}})
    assert refused[:3] == ("error", -32602, "no")
    told = contenders.compare("plain", {"answer": {"tell": {"n": 1}}})
    assert any("log" in heard for heard in told[-1])
    assert any("progress" in heard for heard in told[-1])
    asked = contenders.compare("plain", {"answer": {"ask": {}}})
    assert "Ada" in str(asked[1]["content"])


def test_in_process_every_call_comes_to_what_the_sdks_client_gives() -> None:
    with contending(in_process(scripted.scripted_server)) as contenders:
        check_examples(contenders)
        check_calls(contenders, examples=80, arguments=odd_arguments | no_unicode)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("style", ["events", "json"])
def test_over_http_every_call_comes_to_what_the_sdks_client_gives(
    mode: str, style: str, scripted_ports: dict[str, int]
) -> None:
    with contending(over_http(scripted_ports[style], mode, engine=True)) as contenders:
        if style == "events":
            check_examples(contenders)
        check_calls(contenders, examples=12)


def test_over_httpx2s_own_connections_calls_come_to_the_same(scripted_port: int) -> None:
    with contending(over_http(scripted_port, "auto", engine=False)) as contenders:
        check_examples(contenders)
        check_calls(contenders, examples=6)


@pytest.mark.parametrize("engine", [True, False])
def test_odd_responses_come_to_what_the_sdks_client_makes_of_them(engine: bool, scripted_port: int) -> None:
    kinds = ["202", "307", "302", "400", "401", "404", "500", "text", "no-json", "cut-events", "odd-event", "no-event"]
    with contending(over_http(scripted_port, "auto", engine=engine)) as contenders:
        found = {kind: contenders.compare(f"http-{kind}", {"a": 1})[:3] for kind in [*kinds, "list", "null"]}
    assert found["307"][0] == "result", "a redirect on the same server is followed"
    assert found["400"] == ("error", -32602, "no")
    assert {kind for kind, (outcome_of, *_) in found.items() if outcome_of != "error"} == {"307"}


@pytest.mark.parametrize("engine", [True, False])
def test_text_that_is_not_unicode_costs_the_call_and_not_the_session(engine: bool, scripted_port: int) -> None:
    with contending(over_http(scripted_port, "auto", engine=engine)) as contenders:
        ours = contenders.clients[1]
        found = contenders.portal.call(outcome, ours, "plain", {"surrogate": "\ud800"}, None, [])
        assert found[:2] == ("error", types.INVALID_PARAMS)
        assert "nothing was sent" in found[2]
        assert contenders.portal.call(outcome, ours, "plain", {}, None, [])[0] == "result"


# ---------------------------------------------------------------------------------------------------------------------
# The SDK's high-level server


class Order(pydantic.BaseModel):
    number: int
    lines: list[str] = []
    note: str | None = None


def shop() -> MCPServer:
    server = MCPServer("shop")

    @server.tool()
    async def order(number: int, lines: list[str] | None = None, note: str | None = None) -> Order:
        return Order(number=number, lines=lines or [], note=note)

    @server.tool()
    def count(words: list[str]) -> int:
        return len(words)

    @server.tool()
    async def fail(how: str) -> str:
        if how == "tool":
            raise ToolError("read this")
        if how == "protocol":
            raise MCPError(code=-32602, message="no such thing", data={"how": how})
        if how == "crash":
            raise RuntimeError("a secret of the server")
        return how

    @server.tool()
    async def whoami(context: Context) -> dict[str, Any]:
        await context.report_progress(1, 2)
        request = context.request_context
        return {"version": request.protocol_version, "client": request.session.client_params.client_info.name}

    @server.tool(structured_output=False)
    async def mixed() -> list[Any]:
        return ["a", {"b": 1}, types.ImageContent(data="aGVsbG8=", mime_type="image/png")]

    return server


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["order", "count", "fail", "whoami", "mixed", "nothing"]),
    arguments=st.fixed_dictionaries(
        {},
        optional={
            "number": json_values | st.integers(0, 9),
            "lines": st.lists(texts, max_size=2) | json_values,
            "words": st.lists(texts, max_size=2) | texts,
            "how": st.sampled_from(["tool", "protocol", "crash", "well"]),
            "note": texts,
        },
    ),
)
def test_an_mcp_servers_tools_come_to_what_the_sdks_client_gives(name: str, arguments: dict[str, Any]) -> None:
    async def both() -> None:
        async with in_process(shop) as (clients, _):
            for client in clients:
                await client.list_tools()
            found = [await outcome(client, name, arguments, None, []) for client in clients]
            assert found[0] == found[1]

    anyio.run(both)


# ---------------------------------------------------------------------------------------------------------------------
# The parts


@settings(max_examples=200, deadline=None)
@given(schema=schemas(), value=near_values)
@example(schema={"type": "integer"}, value=True)
@example(schema={"enum": [1]}, value=True)
@example(schema={"maximum": 2**53 - 1}, value=2**53)
@example(schema={"minLength": 2}, value="\U0001f600")
def test_what_the_quick_check_accepts_jsonschema_accepts(schema: dict[str, Any], value: Any) -> None:
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError:
        return
    accepts = compile_acceptance(schema)
    if accepts is None or not accepts(value):
        return
    try:
        assert jsonschema.Draft202012Validator(schema).is_valid(value)
    except Unresolvable:
        pytest.fail("a reference that leads nowhere was accepted")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": 1, "b": None}),
        ({"$defs": {"d": {"enum": ["x", None]}}, "items": {"$ref": "#/$defs/d"}}, ["x", None]),
        ({"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}], "title": "T", "default": None}, "é"),
    ],
)
def test_the_quick_check_accepts_what_is_plainly_right(schema: dict[str, Any], value: Any) -> None:
    accepts = compile_acceptance(schema)
    assert accepts is not None
    assert accepts(value)


@pytest.mark.parametrize("value", [(1,), {1: 2}, math.nan, "\ud800", {1}, b"x", type("S", (str,), {})("x")])
def test_the_quick_check_leaves_values_that_are_not_json_to_jsonschema(value: Any) -> None:
    accepts = compile_acceptance({})
    assert accepts is not None
    assert not accepts(value)


# ---------------------------------------------------------------------------------------------------------------------
# What must not change with the short way


def test_middleware_of_the_users_sees_every_call() -> None:
    seen: list[str] = []
    server = shop()

    async def watch(context: Any, call_next: Any) -> Any:
        seen.append(context.method)
        return await call_next(context)

    async def call() -> None:
        async with in_process_client(server, Shared()) as client:
            await client.call_tool("fail", {"how": "well"})
            server.middleware.append(watch)
            await client.call_tool("fail", {"how": "well"})

    anyio.run(call)
    assert seen.count("tools/call") == 1


async def no_list(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[])


def test_neither_side_can_change_what_the_other_holds() -> None:
    kept: dict[str, Any] = {"list": [1]}

    async def take(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        assert params.arguments is not None
        params.arguments["inner"]["list"].append("the handler was here")
        return types.CallToolResult(content=[], structured_content=kept)

    async def call() -> None:
        server = Server("keeper", on_call_tool=take, on_list_tools=no_list)
        async with in_process_client(server, Shared()) as client:
            arguments = {"inner": {"list": []}}
            result = await client.call_tool("take", arguments)
            result.structured_content["list"].append("the caller was here")
            assert arguments == {"inner": {"list": []}}
            assert kept == {"list": [1]}

    anyio.run(call)


def test_a_listing_that_changed_is_seen_although_the_handler_returns_the_same_record() -> None:
    listing = types.ListToolsResult(tools=[types.Tool(name="one", input_schema={"type": "object"})])

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def look() -> None:
        shared = Shared()
        server = Server("changing", on_list_tools=list_tools)
        async with in_process_client(server, shared) as first, in_process_client(server, shared) as second:
            await first.list_tools()
            listing.tools.append(types.Tool(name="two", input_schema={"type": "object"}))
            assert [tool.name for tool in (await second.list_tools()).tools] == ["one", "two"]

    anyio.run(look)


def test_a_session_has_its_own_lifespan_and_its_requests_their_own_cleanup() -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[dict[str, int]]:
        events.append("begin")
        yield {"n": len(events)}
        events.append("end")

    async def clean(context: Any, params: Any) -> types.CallToolResult:
        context.session._connection.exit_stack.callback(events.append, "cleaned")
        return types.CallToolResult(content=[types.TextContent(text=str(context.lifespan_context["n"]))])

    async def call() -> None:
        server = Server("living", on_call_tool=clean, on_list_tools=no_list, lifespan=lifespan)
        shared = Shared()
        async with in_process_client(server, shared) as first, in_process_client(server, shared) as second:
            texts_of = [(await client.call_tool("clean", {})).content[0].text for client in (first, second)]
            assert texts_of == ["1", "2"]

    anyio.run(call)
    assert events == ["begin", "begin", "cleaned", "cleaned", "end", "end"]


def test_after_its_end_a_session_refuses_calls_and_a_cancelled_call_leaves_it_usable() -> None:
    entered: list[anyio.Event] = []

    async def act(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "hang":
            entered[0].set()
            await anyio.sleep_forever()
        return types.CallToolResult(content=[])

    async def call() -> None:
        entered.append(anyio.Event())
        server = Server("hanging", on_call_tool=act, on_list_tools=no_list)
        async with in_process_client(server, Shared()) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "hang", {})
                await entered[0].wait()
                group.cancel_scope.cancel()
            assert not (await client.call_tool("go", {})).is_error
            session = client.session
        with pytest.raises(MCPError, match="Connection closed") as closed:
            await session.call_tool("go", {})
        assert closed.value.code == types.CONNECTION_CLOSED

    anyio.run(call)


def test_with_another_release_of_the_sdk_its_own_client_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_bridge.channels.client.is_known_release", lambda: False)
    assert type(in_process_client(shop(), Shared())) is Client
    assert type(in_process_client(shop(), Shared(), mode="legacy")) is Client


# ---------------------------------------------------------------------------------------------------------------------
# The connections


async def answer_http(stream: Any, reply: bytes) -> None:
    """Read one request and reply, as a server of a test's own."""
    async with stream:
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive()
        await stream.send(reply)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", httpx2.RemoteProtocolError),
        (b"no HTTP at all\r\n\r\n", httpx2.RemoteProtocolError),
        (None, httpx2.ConnectError),
    ],
)
def test_errors_of_the_network_are_httpx2s(reply: bytes | None, error: type[Exception]) -> None:
    async def post() -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        connections = Connections(httpx2.create_ssl_context())
        async with listener, anyio.create_task_group() as group, connections.used():
            if reply is None:
                await listener.aclose()
            else:
                group.start_soon(listener.serve, lambda stream: answer_http(stream, reply))
            async with httpx2.AsyncClient(transport=connections.transport(), timeout=10) as http:
                with pytest.raises(error):
                    await http.post(f"http://127.0.0.1:{port}/", content=b"x")
            group.cancel_scope.cancel()

    anyio.run(post)


def test_each_client_has_its_own_cookies_on_shared_connections() -> None:
    async def post() -> None:
        got: list[bytes] = []

        async def serve(stream: Any) -> None:
            async with stream:
                with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        got.append(await stream.receive())
                        cookie = b"Set-Cookie: who=%d\r\n" % len(got)
                        await stream.send(b"HTTP/1.1 200 OK\r\n" + cookie + b"Content-Length: 0\r\n\r\n")

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        # By name: cookies of bare addresses are dropped by some.
        url = f"http://localhost:{listener.extra(anyio.abc.SocketAttribute.local_port)}/"
        connections = Connections(httpx2.create_ssl_context())
        async with listener, anyio.create_task_group() as group, connections.used():
            group.start_soon(listener.serve, serve)
            async with (
                httpx2.AsyncClient(transport=connections.transport()) as one,
                httpx2.AsyncClient(transport=connections.transport()) as two,
            ):
                for client in (one, two, one, two):
                    await client.get(url)
            group.cancel_scope.cancel()
        assert [b"who=" in request for request in got] == [False, False, True, True]
        assert b"who=1" in got[2]
        assert b"who=2" in got[3]

    anyio.run(post)
