"""Answers over HTTP that cannot be used: the call may have done its work, so it is not made again."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, ClassVar

import mcp_types as types
import pytest
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

import mcp_bridge
from mcp_bridge import OutcomeUnknown, SourceError, ToolFailure

ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
FINE: dict[str, Any] = {"content": [{"type": "text", "text": "charged"}]}


def message(request_id: Any, **rest: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, **rest})


def half(request_id: Any) -> str:
    """The answer with half of a surrogate pair: servers cut texts between the halves."""
    return message(request_id, result=FINE).replace("charged", "charged \\ud83d")


def error(request_id: Any, code: int, told: str = "raised after the work was done") -> str:
    return message(request_id, error={"code": code, "message": told})


# Name of a tool -> status, content type and body of the answer to a call of it.
ANSWERS: dict[str, Any] = {
    "fine": lambda it: (200, "application/json", message(it, result=FINE)),
    "another_id": lambda it: (200, "application/json", message(777, result=FINE)),
    "plain_text": lambda it: (200, "text/plain", "charged"),
    "a_page": lambda it: (200, "application/json", "<html>"),
    "nothing": lambda it: (200, "application/json", ""),
    "half_a_letter": lambda it: (200, "application/json", half(it)),
    "an_event_of_half_a_letter": lambda it: (200, "text/event-stream", f"data: {half(it)}\n\n"),
    "no_result": lambda it: (200, "application/json", message(it, result=None)),
    "no_content": lambda it: (200, "application/json", message(it, result={"content": "charged"})),
    "no_event": lambda it: (200, "text/event-stream", "\n"),
    "an_event_of_text": lambda it: (200, "text/event-stream", "data: charged\n\n"),
    "taken": lambda it: (202, "application/json", ""),
    "a_redirect": lambda it: (307, "application/json", ""),
    "an_unread_request": lambda it: (400, "application/json", error(None, -32600)),
    "a_result_that_failed": lambda it: (500, "application/json", message(it, result=FINE)),
    "a_failing_gateway": lambda it: (502, "text/html", "<h1>Bad Gateway</h1>"),
}
ERRORS: dict[str, Any] = {
    "invalid_request": lambda it: (200, "application/json", error(it, -32600)),
    "method_not_found": lambda it: (200, "application/json", error(it, -32601)),
    "no_such_session": lambda it: (200, "application/json", error(it, -32600, "no session at the bank")),
    "internal_error": lambda it: (200, "application/json", error(it, -32603)),
    "an_event_of_error": lambda it: (200, "text/event-stream", f"data: {error(it, -32603)}\n\n"),
    "an_invalid_request": lambda it: (400, "application/json", error(it, -32600)),
    "an_expired_checkout": lambda it: (400, "application/json", error(it, -32603, "no session at the bank")),
    "not_found": lambda it: (404, "application/json", error(it, -32601)),
    "a_status": lambda it: (500, "application/json", error(it, -32603)),
}
"""The same where the server answers with an error."""

LIMIT = {
    "a_limit": lambda it: (429, "application/json", error(it, -32000, "not so fast")),
    "a_limit_for_an_hour": lambda it: (429, "application/json", "", {"retry-after": "3600"}),
    "a_limit_for_a_second": lambda it: (
        (200, "application/json", message(it, result=FINE))
        if Charging.calls["a_limit_for_a_second"] > 1
        else (429, "text/plain", "not so fast", {"retry-after": "1"})
    ),
}
BATCHES: dict[str, Any] = {
    "a_batch": lambda it: (200, "application/json", f"[{LOGGED}, {message(it, result=FINE)}]"),
    "a_batch_for_another": lambda it: (200, "application/json", f"[{message(777, result=FINE)}]"),
    "an_empty_batch": lambda it: (200, "application/json", "[]"),
    "a_mark": lambda it: (200, "application/json", "\ufeff" + message(it, result=FINE)),
}
LOGGED = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "at work"}}'
TOOLS = ANSWERS | ERRORS | LIMIT | BATCHES


class Charging(BaseHTTPRequestHandler):
    """An MCP server over streamable HTTP that counts the calls which reach it."""

    protocol_version = "HTTP/1.1"
    calls: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        it, method = asked.get("id"), asked["method"]
        if it is None:
            self.answer(202, "application/json", "")
        elif method == "initialize":
            self.answer(200, "application/json", message(it, result=ABOUT))
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            self.answer(200, "application/json", message(it, result={"tools": tools}))
        else:
            name = asked["params"]["name"]
            self.calls[name] += 1
            self.answer(*TOOLS[name](it))

    def answer(self, status: int, kind: str, body: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for header in headers.items():
            self.send_header(*header)
        self.send_header("mcp-session-id", "one")
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self.answer(405, "text/plain", "")

    do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Endless(Charging):
    """Lists its tools in an event that does not end."""

    def answer(self, status: int, kind: str, body: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        if '"tools":' not in body.replace('"tools": {}', ""):
            super().answer(status, kind, body)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"data: ")
            while True:
                self.wfile.write(b"x" * 65_536)


class Events(BaseHTTPRequestHandler):
    """The same tools over HTTP with SSE: answers are events of the one stream that a session has."""

    protocol_version = "HTTP/1.1"
    waiting: ClassVar[queue.Queue[str]] = queue.Queue()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while (body := self.waiting.get()) != "":
            self.wfile.write(f"event: message\ndata: {body}\n\n".encode())
        self.close_connection = True

    def do_POST(self) -> None:
        self.take(self.rfile.read(int(self.headers["content-length"])))

    def take(self, body: bytes) -> None:
        asked = json.loads(body)
        it, method = asked.get("id"), asked["method"]
        if method == "tools/call":
            self.waiting.put(ANSWERS[asked["params"]["name"]](it)[2])
        elif it is not None:
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ANSWERS | ERRORS]
            self.waiting.put(message(it, result=ABOUT if method == "initialize" else {"tools": tools}))
        self.reply(202)

    def reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class GuardedEvents(Events):
    """The same for who has a token. It is good until a tool is called, and there is only one."""

    waiting: ClassVar[queue.Queue[str]] = queue.Queue()
    tokens: ClassVar[list[bytes]] = [b'{"access_token": "only-one", "token_type": "bearer", "expires_in": 3600}']
    calls = 0

    def do_GET(self) -> None:
        if "authorization" in self.headers:
            super().do_GET()
        else:
            self.reply(401)

    def take(self, body: bytes) -> None:
        if self.path == "/token":
            self.reply(200, self.tokens.pop()) if self.tokens else self.reply(400, b'{"error": "invalid_client"}')
        elif b'"tools/call"' in body:
            GuardedEvents.calls += 1
            self.reply(401)
        else:
            super().take(body)


@contextlib.contextmanager
def serving(handler: type[Charging] | type[Events], path: str) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}{path}"
    if issubclass(handler, Events):
        handler.waiting.put("")
    server.shutdown()
    server.server_close()


@pytest.fixture
def events() -> Iterator[str]:
    with serving(Events, "/sse") as url:
        yield url


@pytest.fixture(scope="module")
def charging() -> Iterator[str]:
    with serving(Charging, "/mcp") as url:
        yield url


async def test_an_answer_that_cannot_be_used_ends_its_call_and_nobody_calls_again(charging: str) -> None:
    entry = {"url": charging, "toolbake": {"protocol": "2025-06-18"}}
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}) as toolset, toolset.open_world("w") as world:
        for name in ANSWERS:
            before = Charging.calls[name]
            if name == "fine":
                assert (await world.call(name, {})).text == "charged"
            elif name.endswith("half_a_letter"):
                assert (await world.call(name, {})).text == "charged \ufffd"
            else:
                with pytest.raises(ToolFailure) as raised:
                    await world.call(name, {})
                # A status of a server error tells nothing of the call; all else came from whoever was called.
                unknown = name in {"no_event", "a_failing_gateway", "a_result_that_failed"}
                assert isinstance(raised.value, OutcomeUnknown) == unknown
                assert world.ledger.lines[-1].event == ("unknown" if unknown else "failed")
            assert Charging.calls[name] - before == 1
        assert (await world.call("fine", {})).text == "charged"


async def test_an_error_that_a_server_answers_with_over_http_is_what_the_tool_said(charging: str) -> None:
    entry = {"url": charging, "toolbake": {"protocol": "2025-06-18"}}
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}) as toolset, toolset.open_world("w") as world:
        for name in ERRORS:
            before = Charging.calls[name]
            result = await world.call(name, {})
            assert result.error_kind == "tool_error"
            assert result.text in ("raised after the work was done", "no session at the bank")
            assert world.ledger.lines[-1].event == "answered"
            assert Charging.calls[name] - before == 1


async def test_a_limit_of_requests_is_no_answer_of_the_tool_and_the_call_is_sent_again(charging: str) -> None:
    entry = {"url": charging, "toolbake": {"protocol": "2025-06-18", "retries": 1}}
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}) as toolset:
        with pytest.raises(ToolFailure, match="HTTP 429: not so fast"):
            await toolset.call("a_limit", {})
    assert Charging.calls["a_limit"] == 2


async def test_a_call_waits_for_as_long_as_a_limit_of_requests_asks_or_fails_where_that_is_too_long(
    charging: str,
) -> None:
    entry = {"url": charging, "toolbake": {"protocol": "2025-06-18", "retries": 1}}
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}) as toolset, toolset.open_world("w") as world:
        began = time.monotonic()
        assert (await world.call("a_limit_for_a_second", {})).text == "charged"
        assert time.monotonic() - began >= 1.0
        with pytest.raises(ToolFailure, match=r"HTTP 429, and asks to wait 3600 s \(Retry-After\)") as raised:
            await world.call("a_limit_for_an_hour", {}, timeout_s=60)
        assert raised.value.retry_after_s == 3600
    assert Charging.calls["a_limit_for_an_hour"] == 1


async def test_several_messages_in_one_answer_over_http_are_read(charging: str) -> None:
    logged = []
    entry = {"url": charging, "toolbake": {"protocol": "2025-06-18"}}
    handlers = mcp_bridge.Handlers(log=logged.append)
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}, handlers=handlers, call_timeout_s=600) as toolset:
        assert (await toolset.call("a_batch", {})).text == "charged"
        assert [entry.data for entry in logged] == ["at work"]
        assert (await toolset.call("a_mark", {})).text == "charged"
        for name in ("a_batch_for_another", "an_empty_batch"):
            with pytest.raises(ToolFailure, match="something else than the answer to this request"):
                await toolset.call(name, {})


async def test_a_listing_without_an_end_is_given_up_at_the_limit_of_an_answer() -> None:
    with serving(Endless, "/mcp") as url:
        entry = {"url": url, "toolbake": {"protocol": "2025-06-18"}}
        with pytest.raises(SourceError, match=r"more than the 8 MB that are read \(max_answer_mb"):
            async with mcp_bridge.connect({"mcpServers": {"s": entry}}):
                pass


async def test_an_event_that_is_no_message_ends_its_call_at_once(events: str) -> None:
    entry = {"url": events, "type": "sse"}
    # No call waits for its limit: that is longer than this test may take.
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}, call_timeout_s=600) as toolset:
        assert (await toolset.call("half_a_letter", {})).text == "charged \ufffd"
        with pytest.raises(ToolFailure, match="the answer is not a message of MCP") as raised:
            await toolset.call("no_result", {})
        assert raised.value.delivery == "answered"
        assert (await toolset.call("fine", {})).text == "charged"


async def test_a_call_over_sse_whose_login_fails_was_refused_and_not_made() -> None:
    with serving(GuardedEvents, "/sse") as url:
        token_url = url.replace("/sse", "/token")
        auth = {"type": "client_credentials", "client_id": "c", "client_secret": "s3cr3t-987", "token_url": token_url}
        entry = {"url": url, "type": "sse", "auth": auth, "toolbake": {"retries": 0}}
        async with mcp_bridge.connect({"mcpServers": {"s": entry}}) as toolset, toolset.open_world("w") as world:
            with pytest.raises(ToolFailure, match="gave no token") as raised:
                await world.call("fine", {})
            assert (raised.value.delivery, raised.value.world_lost) == ("refused", False)
            assert world.ledger.lines[-1].event == "failed"
            assert "s3cr3t" not in str(raised.value)
    assert GuardedEvents.calls == 1


@pytest.mark.parametrize("code", [types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.INTERNAL_ERROR])
async def test_a_tool_that_raises_an_error_of_the_protocol_after_its_work_is_not_called_again(code: int) -> None:
    """Nor is its world lost: a session that a tool speaks of is not MCP's."""
    charged = 0

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="charge", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        nonlocal charged
        charged += 1
        raise MCPError(code, "the session of the printer has expired")

    async with mcp_bridge.connect(Server("bank", on_list_tools=list_tools, on_call_tool=call_tool)) as toolset:
        for calls in (1, 2):
            result = await toolset.call("charge", {})
            assert (result.text, result.error_kind) == ("the session of the printer has expired", "tool_error")
            assert charged == calls
