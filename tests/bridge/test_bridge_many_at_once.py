"""Many sessions and calls at once with a server behind a URL, written by hand so that it answers none before all have
come."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import pytest

import mcp_bridge

TOOL = {"name": "act", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
ABOUT = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
MOST_WAIT_S = 60


class Meeting(ThreadingHTTPServer):
    """An MCP server; requests of the method in `meets` are answered when as many have come as its barrier waits for."""

    request_queue_size = 512
    daemon_threads = True

    def __init__(self, protocol: str) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.protocol = protocol
        self.meets: tuple[str, threading.Barrier] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Meeting

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = asked["method"]
        if self.server.meets is not None and method == self.server.meets[0]:
            self.server.meets[1].wait(MOST_WAIT_S)
        status, told = self.answer(method)
        body = b"" if "id" not in asked else json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}).encode()
        self.send_response(202 if "id" not in asked else status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        if method == "initialize":
            self.send_header("Mcp-Session-Id", f"session-{threading.get_ident()}")
        self.end_headers()
        self.wfile.write(body)

    def answer(self, method: str) -> tuple[int, dict[str, Any]]:
        newest = self.server.protocol == "2026-07-28"
        if method == "server/discover" and newest:
            return 200, {
                "result": {"supportedVersions": [self.server.protocol], "ttlMs": 0, "cacheScope": "private", **ABOUT}
            }
        if method == "initialize" and not newest:
            return 200, {"result": {"protocolVersion": self.server.protocol, **ABOUT}}
        if method == "tools/list":
            return 200, {"result": {"tools": [TOOL], "ttlMs": 0, "cacheScope": "private"}}
        if method == "tools/call":
            # Without the kind of the result, which the newest revision asks for.
            return 200, {"result": {"content": [{"type": "text", "text": "done"}]}}
        return 404, {"error": {"code": -32601, "message": "no such method"}}

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(params=["2025-06-18", "2026-07-28"])
def server(request: pytest.FixtureRequest) -> Iterator[Meeting]:
    with Meeting(request.param) as meeting:
        thread = threading.Thread(target=meeting.serve_forever)
        thread.start()
        yield meeting
        meeting.shutdown()
        thread.join()


@pytest.mark.parametrize("way", ["shared connections", "a proxy"])
async def test_a_session_has_more_than_a_hundred_calls_in_flight_by_either_way_to_its_server(
    server: Meeting, way: str
) -> None:
    count, texts = 130, []
    # A proxy for http is asked for whole URLs, and this one answers itself.
    entry = {"url": server.url, "proxy": server.url if way == "a proxy" else False}
    async with mcp_bridge.connect({"mcpServers": {"s": {**entry, "toolbake": {"isolation": "shared"}}}}) as toolset:
        server.meets = "tools/call", threading.Barrier(count)

        async def call() -> None:
            texts.append((await toolset.call("act", {})).text)

        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(call)
    assert texts == ["done"] * count


@pytest.mark.parametrize("server", ["2025-06-18"], indirect=True)
async def test_worlds_behind_a_url_are_opened_at_once_however_few_processors_there_are(server: Meeting) -> None:
    count = 16
    async with mcp_bridge.connect({"mcpServers": {"s": {"url": server.url}}}) as toolset:
        server.meets = "initialize", threading.Barrier(count)

        async def use(number: int) -> None:
            async with toolset.open_world(f"world {number}") as world:
                assert (await world.call("act", {})).text == "done"

        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(use, number)
