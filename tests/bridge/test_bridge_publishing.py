"""Tools served to other MCP clients: the same tools, results and errors, and a world for each session."""

import contextlib
import dataclasses
import functools
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.text import TextReceiveStream
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from mcp_bridge import SourceError, Tool, ToolFailure, ToolResult, connect, publish, serve_tools
from mcp_bridge.control_tools import WORLD_META
from mcp_bridge.publishing.listener import serve_app

KEY = "a-key-that-nobody-guesses"
IDLE_S = 5.0
"""Longer than a machine that others use too stands still."""
IN_W: Any = {WORLD_META: "w"}

TOOLS = '''
from typing import Annotated, TypedDict

from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from pydantic import BaseModel

from mcp_bridge import Handlers

KEPT = []

class Total(TypedDict):
    total: int

def keep(text: str) -> str:
    """Keep a text."""
    KEPT.append(text)
    return f"{len(KEPT)} kept"

def add(a: int, b: int) -> Total:
    """Add two numbers."""
    return {"total": a + b}

def several(count: int) -> list[int]:
    """Numbers up to count."""
    return list(range(count))

def fail(why: str) -> str:
    """Fail."""
    raise ValueError(f"no: {why}")

def long() -> str:
    """A long text."""
    return "x" * 20_000

class Colour(BaseModel):
    colour: str

def ask() -> Elicit[Colour]:
    return Elicit("Which colour?", Colour)

server = MCPServer("asking", log_level="ERROR")

@server.tool()
async def paint(answer: Annotated[Colour, Resolve(ask)]) -> str:
    """Paint a door."""
    return f"painted {answer.colour}"

tools = [keep, add, several, fail, long, server]
handlers = Handlers(elicitation=lambda question: {"colour": "blue"})
'''

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 2, "b": 3}),
    ("several", {"count": 3}),
    ("fail", {"why": "grüße"}),
    ("long", {}),
    ("add", {"a": "two", "b": 3}),
    ("ad", {"a": 2, "b": 3}),
    ("paint", {}),
]


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "served.py"
    path.write_text(TOOLS)
    return path


def serve_command(path: Path, *more: str) -> list[str]:
    words = ["serve-tools", f"{path}:tools", "--handlers", f"{path}:handlers"]
    return [sys.executable, "-m", "toolbake", *words, *more]


@contextlib.asynccontextmanager
async def served(command: list[str], env: Mapping[str, str] | None = None) -> AsyncIterator[list[str]]:
    """The command while it serves; what it wrote to stderr is in the list once it has ended."""
    told: list[str] = []
    async with await anyio.open_process(command, env={**os.environ, **(env or {})}, stdin=-3, stdout=-3) as process:
        assert process.stderr is not None
        stream = TextReceiveStream(process.stderr)
        while not re.search(r"^serving .*\n", "".join(told), re.MULTILINE):
            told.append(await stream.receive())
        try:
            yield told
        finally:
            process.terminate()
            told += [text async for text in stream]


def answer(result: ToolResult) -> tuple[Any, ...]:
    return (result.text, result.structured, result.is_error, result.error_kind, result.truncated_chars)


def load(path: Path) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "served"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space


@pytest.mark.parametrize("way", ["in process", "stdio", "http"])
async def test_a_served_toolset_gives_what_the_toolset_gives(way: str, tools_file: Path, unused_tcp_port: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        loaded = load(tools_file)
        real = await stack.enter_async_context(
            connect(loaded["tools"], max_result_chars=50_000, handlers=loaded["handlers"])
        )
        source: Any = publish(real)
        if way == "stdio":
            program, *arguments = serve_command(tools_file)
            # With the revision given, a slow start is not taken for an old server, which has no lists in its results.
            entry = {"command": program, "args": arguments, "toolbake": {"protocol": "2026-07-28"}}
            source = {"mcpServers": {"served": entry}}
        elif way == "http":
            await stack.enter_async_context(served(serve_command(tools_file, "--http", str(unused_tcp_port))))
            source = f"http://127.0.0.1:{unused_tcp_port}/mcp"
        again = await stack.enter_async_context(connect(source, max_result_chars=50_000))
        fields = {"name", "description", "input_schema", "output_schema", "annotations"}
        assert [one.model_dump(include=fields) for one in again.tools] == [
            one.model_dump(include=fields) for one in real.tools
        ]
        for name, arguments in CALLS:
            assert answer(await again.call(name, arguments)) == answer(await real.call(name, arguments))
        # What the served tools ask is answered where they are served.
        assert (await again.call("paint", {})).text == "painted blue"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_own_client_uses_served_tools_over_stdio(mode: Any, tools_file: Path) -> None:
    program, *arguments = serve_command(tools_file)
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
    async with Client(stdio_client(parameters), mode=mode) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["keep", "add", "several", "fail", "long", "paint"]
        added = await client.call_tool("add", {"a": 2, "b": 3})
        assert added.structured_content == {"total": 5}
        assert len(text_of(await client.call_tool("long", {}))) == 20_000
        failed = await client.call_tool("fail", {"why": "late"})
        assert failed.is_error
        assert "no: late" in text_of(failed)


class Counting:
    """A source whose worlds count their calls."""

    simulated = True

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.opened = 0
        self.changed = anyio.Event()
        self.tools = [Tool(name="count", description="Count on.")]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
        self.open.add(world_id)
        self.opened += 1
        try:
            yield _CountingWorld(self, (setup or {}).get("start", 0))
        finally:
            self.open.remove(world_id)
            self.changed.set()
            self.changed = anyio.Event()

    async def until_open(self, count: int) -> None:
        while len(self.open) != count:
            await self.changed.wait()


class _CountingWorld:
    def __init__(self, source: Counting, start: int) -> None:
        self.tools = source.tools
        self._count = start

    async def call(self, name: str, arguments: Mapping[str, Any], **_: Any) -> ToolResult:
        self._count += 1
        return ToolResult(text=str(self._count))

    async def state(self) -> dict[str, Any]:
        return {"count": self._count}


@contextlib.asynccontextmanager
async def over_http(source: Any, port: int, **options: Any) -> AsyncIterator[str]:
    async with anyio.create_task_group() as group:
        ready = anyio.Event()
        group.start_soon(functools.partial(serve_tools, source, port=port, ready=lambda *_: ready.set(), **options))
        await ready.wait()
        yield f"http://127.0.0.1:{port}/mcp"
        group.cancel_scope.cancel()


async def count(client: Client) -> str:
    return text_of(await client.call_tool("count", {}))


def text_of(result: Any) -> str:
    text: str = result.content[0].text
    return text


async def test_each_session_has_a_world_that_ends_with_it(unused_tcp_port: int) -> None:
    source = Counting()
    async with over_http(source, unused_tcp_port) as url:
        async with Client(url, mode="legacy") as one:
            assert [await count(one), await count(one)] == ["1", "2"]
            async with Client(url, mode="legacy") as two:
                assert await count(two) == "1"
                assert len(source.open) == 2
            await source.until_open(1)
            assert await count(one) == "3"
        await source.until_open(0)


async def test_a_session_that_is_idle_ends_and_its_world_with_it(unused_tcp_port: int) -> None:
    source = Counting()
    async with over_http(source, unused_tcp_port, idle_s=IDLE_S) as url:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        headers = {"accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(headers=headers) as http:
            begun = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
            http.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
            await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "count", "arguments": {}}}
            assert (await http.post(url, json=call)).status_code == 200
            assert source.opened == 1
            await source.until_open(0)
            assert (await http.post(url, json=call)).status_code == 404


class Waiting(Counting):
    """Its worlds answer when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end, self.ended = anyio.Event(), anyio.Event(), anyio.Event()

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
        yield SimpleNamespace(tools=self.tools, call=self.call)

    async def call(self, name: str, arguments: Mapping[str, Any], **_: Any) -> ToolResult:
        self.begun.set()
        try:
            await self.may_end.wait()
        finally:
            self.ended.set()
        return ToolResult(text="done")


async def leave_without_a_word(url: str) -> None:
    """Call in a session of 2025-11-25, in which a connection that is lost ends no call."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    async with httpx2.AsyncClient(headers={"accept": "application/json, text/event-stream"}) as http:
        begun = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        http.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "count", "arguments": {}}}
        await http.post(url, json=call)


async def leave_by_giving_up(url: str) -> None:
    async with Client(url, mode="2026-07-28") as client:
        await client.call_tool("count", {})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (leave_without_a_word, "a call of count was carried out, but its client had left"),
        (leave_by_giving_up, "a call of count was cancelled: its client gave it up or left, or the server ends"),
    ],
)
async def test_the_log_tells_of_a_client_that_left_in_the_midst_of_a_call(
    call: Any, said: str, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = Waiting()
    async with over_http(source, unused_tcp_port) as url:
        async with anyio.create_task_group() as group:
            group.start_soon(call, url)
            await source.begun.wait()
            group.cancel_scope.cancel()
        async with httpx2.AsyncClient() as http:  # when this is answered, the server has heard of the lost connection
            await http.delete(url)
        if call is leave_without_a_word:
            source.may_end.set()
        await source.ended.wait()
        while not caplog.messages:
            await anyio.lowlevel.checkpoint()
        assert said in caplog.messages


async def test_sessions_have_worlds_of_their_own_also_where_the_sdk_hides_its_connections(unused_tcp_port: int) -> None:
    source = Counting()
    server = publish(source, idle_s=IDLE_S)

    async def hide(context: Any, call_next: Any) -> Any:
        shown = SimpleNamespace(protocol_version=context.session.protocol_version)
        return await call_next(dataclasses.replace(context, session=shown))

    server.middleware.append(hide)
    async with anyio.create_task_group() as group:
        ready = anyio.Event()
        app = server.streamable_http_app()
        group.start_soon(functools.partial(serve_app, app, port=unused_tcp_port, listening=ready.set))
        await ready.wait()
        url = f"http://127.0.0.1:{unused_tcp_port}/mcp"
        async with Client(url, mode="legacy") as one, Client(url, mode="legacy") as two:
            assert [await count(one), await count(one), await count(two)] == ["1", "2", "1"]
            await source.until_open(0)
            with pytest.raises(MCPError, match=r"idle for more than 5 s"):
                await count(one)
        group.cancel_scope.cancel()
    async with Client(server, mode="legacy") as alone:
        assert [await count(alone), await count(alone)] == ["1", "2"]
    assert source.open == set()


async def test_more_worlds_than_allowed_are_refused_until_one_ends(unused_tcp_port: int) -> None:
    source = Counting()
    async with over_http(source, unused_tcp_port, max_worlds=2, control=True) as url, connect(url) as toolset:
        async with toolset.open_world("a", {"start": 4}) as one, toolset.open_world("b") as two:
            assert (await one.call("count", {})).text == "5"
            assert (await two.call("count", {})).text == "1"
            assert await one.state() == {"count": 5}
            with pytest.raises((SourceError, ToolFailure), match="2 worlds are open, the most"):
                async with toolset.open_world("c"):
                    pass
        async with toolset.open_world("c") as three:
            assert (await three.call("count", {})).text == "1"
    assert source.open == set()


@pytest.mark.virtual_clock
async def test_a_named_world_that_nobody_uses_is_closed_and_says_so() -> None:
    source = Counting()
    async with Client(publish(source, control=True, idle_s=IDLE_S)) as client:
        await client.call_tool("toolbake_open_world", {"world": "w"})
        await client.call_tool("count", {}, meta=IN_W)
        await source.until_open(0)
        with pytest.raises(MCPError, match=r"idle for more than 5 s"):
            await client.call_tool("count", {}, meta=IN_W)


@pytest.mark.virtual_clock
async def test_a_connection_that_a_client_leaves_idle_takes_its_next_request(unused_tcp_port: int) -> None:
    async with over_http(Counting(), unused_tcp_port):
        connection = await anyio.connect_tcp("127.0.0.1", unused_tcp_port)
        async with BufferedByteReceiveStream(connection) as received:
            for _ in range(2):
                await connection.send(b"GET /elsewhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                head = (await received.receive_until(b"\r\n\r\n", 10_000)).decode().lower()
                assert head.startswith("http/1.1 404")
                await received.receive_exactly(int(head.split("content-length: ")[1].split()[0]))
                await anyio.sleep(60)


async def test_without_sessions_http_clients_share_one_world_and_others_are_refused(unused_tcp_port: int) -> None:
    source = Counting()
    async with over_http(source, unused_tcp_port) as url:
        async with Client(url) as one, Client(url) as two:
            assert [await count(one), await count(two)] == ["1", "2"]
        async with connect(url) as toolset, toolset.open_world("mine") as world:
            with pytest.raises(ToolFailure, match="share one world"):
                await world.call("count", {})
        config = {"mcpServers": {"counting": {"url": url, "toolbake": {"protocol": "2025-11-25"}}}}
        async with connect(config) as toolset, toolset.open_world("a") as a, toolset.open_world("b") as b:
            assert [(await a.call("count", {})).text, (await b.call("count", {})).text] == ["1", "1"]


async def test_the_guard_of_the_served_source_holds_for_its_clients(tools_file: Path, unused_tcp_port: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(over_http(load(tools_file)["tools"], unused_tcp_port))
        entry = {"url": url, "toolbake": {"deny": ["keep"]}}
        toolset = await stack.enter_async_context(connect({"mcpServers": {"kept": entry}}))
        again = await stack.enter_async_context(connect(publish(toolset)))
        assert "keep" not in [tool.name for tool in again.tools]
        assert (await again.call("keep", {"text": "x"})).error_kind == "unknown_tool"


async def test_a_key_is_asked_of_every_request_and_shown_nowhere(tools_file: Path, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/mcp"
    command = serve_command(tools_file, "--http", str(unused_tcp_port), "--api-key-env", "SERVED_KEY")
    async with served(command, {"SERVED_KEY": KEY}) as told:
        for headers in ({}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Basic {KEY}"}):
            async with httpx2.AsyncClient(headers=headers) as http:
                for method in ("GET", "POST", "DELETE"):
                    refused = await http.request(method, url)
                    assert refused.status_code == 401
                    assert KEY not in refused.text
        with pytest.raises(SourceError, match="refused us"):
            async with connect(url):
                pass
        keyed = {"mcpServers": {"served": {"url": url, "headers": {"Authorization": f"Bearer {KEY}"}}}}
        async with connect(keyed) as toolset:
            assert (await toolset.call("add", {"a": 1, "b": 1})).structured == {"total": 2}
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as http:
            async with Client(streamable_http_client(url, http_client=http)) as client:
                assert (await client.call_tool("several", {"count": 2})).is_error is False
    assert KEY not in "".join(told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"port": 1, "host": "0.0.0.0"}, "which other machines can reach"),
        ({"port": 1, "key": " "}, "the key is empty"),
        ({"key": KEY}, "give a port as well"),
        ({"max_worlds": 0}, "max_worlds is 0"),
        ({"idle_s": -1}, "`idle_s` is -1"),
    ],
)
async def test_what_cannot_be_served_is_refused_before_anybody_connects(options: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError, match=told) as raised:
        await serve_tools(Counting(), **options)
    assert KEY not in str(raised.value)


def test_only_sources_of_worlds_can_be_published() -> None:
    with pytest.raises(SourceError, match="cannot publish a str"):
        publish("mcp.json")  # type: ignore[arg-type]


async def test_what_breaks_behind_published_tools_is_no_answer_of_a_tool_for_another_bridge() -> None:
    def look(where: str) -> str:
        """Look."""
        if where == "away":
            raise ToolFailure("the shelf is not reachable")
        raise ValueError(f"there is no {where}")

    async with connect(look) as inner, connect(publish(inner)) as outer:
        assert (await outer.call("look", {"where": "shelf"})).error_kind == "tool_error"
        with pytest.raises(ToolFailure, match="the shelf is not reachable"):
            await outer.call("look", {"where": "away"})
