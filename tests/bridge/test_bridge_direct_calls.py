"""What a server may do with a call over HTTP beside answering it: each call reaches it once, whichever way it takes."""

from __future__ import annotations

import gc
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import aiohttp.connector
import anyio
import pytest

import mcp_bridge
from mcp_bridge import ServerDied, ToolFailure
from mcp_bridge.sessions import transports

ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
TOOLS = [
    "plain",
    "chunked",
    "packed",
    "moved",
    "cookie",
    "large",
    "held",
    "event",
    "events",
    "pieces",
    "lasting",
    "torn",
    "halved",
    "halved_events",
]

LOGGED = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "at work"}}'
EVENTS = {
    "event": lambda answer: [f"event: message\r\ndata: {answer}\r\n\r\n"],
    "events": lambda answer: [f"data: {LOGGED}\n\n", f"data: {answer}\n\n"],
    "pieces": lambda answer: [f"data: {answer[:20]}", f"{answer[20:]}\n\n"],
    "lasting": lambda answer: [f"data: {answer}\n\n"],
    "halved_events": lambda answer: [f"data: {LOGGED}\n\n", f"data: {answer}\n\n"],
}
"""From a tool to the pieces in which the stream with its answer comes."""


class Desk(BaseHTTPRequestHandler):
    """An MCP server over streamable HTTP, of the years with a handshake, that notes the calls that reach it."""

    protocol_version = "HTTP/1.1"
    calls: ClassVar[list[tuple[str, str, dict[str, str]]]] = []
    """Path, tool and headers."""
    asked: ClassVar[threading.Event]
    let_go: ClassVar[threading.Event]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        it, method = asked.get("id"), asked["method"]
        if it is None:
            self.answer(b"", status=202)
        elif method == "initialize":
            self.result(it, ABOUT, **{"Mcp-Session-Id": "of-the-handshake"})
        elif method == "tools/list":
            self.result(it, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]})
        elif method == "tools/call":
            self.call(it, asked["params"]["name"])
        else:  # what the newest revision begins with
            body = {"jsonrpc": "2.0", "id": it, "error": {"code": -32601, "message": "Method not found"}}
            self.answer(json.dumps(body).encode(), **{"Mcp-Session-Id": "of-nothing"})

    def call(self, it: Any, name: str) -> None:
        self.calls.append((self.path, name, dict(self.headers.items())))
        text = "a\ud83d" if name.startswith("halved") else name
        done = {"content": [{"type": "text", "text": text}]}
        if name == "moved" and self.path == "/mcp":
            self.answer(b"", status=307, Location="/moved")
        elif name == "chunked":
            body = json.dumps({"jsonrpc": "2.0", "id": it, "result": done}).encode()
            self.answer(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), **{"Transfer-Encoding": "chunked"})
        elif name == "packed":
            body = json.dumps({"jsonrpc": "2.0", "id": it, "result": done}).encode()
            self.answer(gzip.compress(body), **{"Content-Encoding": "gzip"})
        elif name == "cookie":
            self.result(it, done, **{"Set-Cookie": "who=me"})
        elif name == "torn":  # the head of a stream, and the connection ends before its first event
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
        elif name in EVENTS:
            self.stream(EVENTS[name](json.dumps({"jsonrpc": "2.0", "id": it, "result": done})), lasts=name == "lasting")
        elif name == "large":
            self.result(it, {"content": [{"type": "text", "text": "x" * 2_000_000}]})
        else:
            if name == "held":
                self.asked.set()
                self.let_go.wait()
            self.result(it, done)

    def stream(self, chunks: list[str], *, lasts: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk.encode()))
            self.wfile.flush()
        if lasts:
            self.let_go.wait()
        self.wfile.write(b"0\r\n\r\n")

    def result(self, it: Any, result: dict[str, Any], **headers: str) -> None:
        self.answer(json.dumps({"jsonrpc": "2.0", "id": it, "result": result}).encode(), **headers)

    def answer(self, body: bytes, *, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        if "Transfer-Encoding" not in headers:
            headers["Content-Length"] = str(len(body))
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(b"", status=405)

    def do_DELETE(self) -> None:
        self.answer(b"")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def desk() -> Iterator[dict[str, Any]]:
    Desk.calls.clear()
    Desk.asked, Desk.let_go = threading.Event(), threading.Event()
    server = ThreadingHTTPServer(("localhost", 0), Desk)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    # By name: cookies of bare addresses are dropped by some.
    url = f"http://localhost:{server.server_port}/mcp"
    yield {"mcpServers": {"desk": {"url": url, "headers": {"X-Key": "k-1"}, "toolbake": {"max_answer_mb": 1}}}}
    Desk.let_go.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("tool", ["plain", "chunked", "packed", "cookie", *EVENTS])
async def test_a_call_reaches_its_server_once_with_what_the_session_has_to_say(desk: dict[str, Any], tool: str) -> None:
    async with mcp_bridge.connect(desk) as toolset:
        assert (await toolset.call(tool, {})).text == ("a\ufffd" if tool == "halved_events" else tool)
    ((path, name, headers),) = Desk.calls
    assert (path, name) == ("/mcp", tool)
    told = {key.lower(): value for key, value in headers.items()}
    assert told["mcp-session-id"] == "of-the-handshake"
    assert told["mcp-protocol-version"] == "2025-06-18"
    assert told["x-key"] == "k-1"
    assert told["accept"] == "application/json, text/event-stream"
    assert not [key for key in told if "toolbake" in key]


async def test_a_call_follows_a_redirect_on_its_host_and_reaches_each_place_once(desk: dict[str, Any]) -> None:
    async with mcp_bridge.connect(desk) as toolset:
        assert (await toolset.call("moved", {})).text == "moved"
    assert [(path, name) for path, name, _ in Desk.calls] == [("/mcp", "moved"), ("/moved", "moved")]
    assert not [key for *_, headers in Desk.calls for key in headers if "toolbake" in key.lower()]


@pytest.mark.parametrize("own_connections", [True, False], ids=["our connections", "those of httpx2"])
async def test_odd_answers_are_read_whichever_client_posts_the_call(
    desk: dict[str, Any], own_connections: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of httpx2 are used through a proxy, and in trio."""
    monkeypatch.setattr(transports, "_on_asyncio", lambda: own_connections)
    async with mcp_bridge.connect(desk) as toolset:
        told = [(await toolset.call(name, {})).text for name in ("moved", "halved", "halved_events", "plain")]
    assert told == ["moved", "a\ufffd", "a\ufffd", "plain"]


async def test_calls_after_one_that_brought_a_cookie_give_it_back(desk: dict[str, Any]) -> None:
    async with mcp_bridge.connect(desk) as toolset:
        for tool in ("plain", "cookie", "plain"):
            await toolset.call(tool, {})
    assert [headers.get("Cookie", headers.get("cookie")) for *_, headers in Desk.calls] == [None, None, "who=me"]


async def test_an_answer_above_the_limit_is_told_with_its_size_and_the_session_goes_on(desk: dict[str, Any]) -> None:
    async with mcp_bridge.connect(desk) as toolset:
        result = await toolset.call("large", {})
        assert result.is_error
        assert "2.0 MB" in result.text
        assert (await toolset.call("plain", {})).text == "plain"
    assert len(Desk.calls) == 2


async def test_a_call_under_way_ends_with_its_session(desk: dict[str, Any]) -> None:
    failures: list[ToolFailure] = []

    async def call(toolset: mcp_bridge.Toolset) -> None:
        with pytest.raises(ToolFailure) as failure:
            await toolset.call("held", {})
        failures.append(failure.value)

    async with anyio.create_task_group() as group:
        async with mcp_bridge.connect(desk) as toolset:
            group.start_soon(call, toolset)
            await anyio.to_thread.run_sync(Desk.asked.wait)
    (failure,) = failures
    assert failure.delivery == "unknown"


async def test_a_stream_that_ends_before_its_first_event_leaves_no_connection_behind(desk: dict[str, Any]) -> None:
    async with mcp_bridge.connect(desk) as toolset:
        with pytest.raises(ServerDied) as kept:  # with its traceback, and all that this refers to
            await toolset.call("torn", {})
        connections = [one for one in gc.get_objects() if type(one) is aiohttp.connector.Connection]
        assert [one for one in connections if one.protocol is not None] == [], kept.value
        assert (await toolset.call("plain", {})).text == "plain"
    assert [name for _, name, _ in Desk.calls] == ["torn", "plain"]
