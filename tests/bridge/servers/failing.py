"""An MCP server whose tools break things. Over stdio, or `--http PORT [--handshake] [--json]`.

With `--grandchild FILE` it also starts a process that ignores the end of its input and SIGTERM, and writes both ids
to FILE.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
STDOUT = os.dup(1)
"""The SDK keeps the original to itself."""
READS = types.ToolAnnotations(read_only_hint=True)
NUMBER = {"type": "object", "properties": {"megabytes": {"type": "number"}}}


def tool(name: str, annotations: types.ToolAnnotations | None = None) -> types.Tool:
    return types.Tool(name=name, description=name, input_schema=NUMBER, annotations=annotations)


TOOLS = [
    tool("echo"),
    tool("read", READS),
    tool("big"),
    tool("hang"),
    tool("freeze"),
    tool("cut"),
    tool("die"),
    tool("noise"),
    tool("pid", READS),
]


class Failing:
    def __init__(self) -> None:
        self.cuts = False
        self.echoes = 0

    async def list_tools(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=TOOLS)

    async def call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = str(self.echoes)
        match params.name:
            case "echo":
                self.echoes += 1
                text = str(self.echoes)
            case "big":
                text = "x" * round(float((params.arguments or {}).get("megabytes", 20)) * 1_000_000)
            case "hang":
                await anyio.sleep_forever()
            case "freeze":
                time.sleep(600)  # noqa: ASYNC251 - that is its fault
            case "cut":
                self.cuts = True
            case "die":
                print("the disk is full", file=sys.stderr, flush=True)
                os._exit(1)
            case "noise":
                while True:
                    os.write(STDOUT, b"y" * 65_536)
            case "pid":
                text = str(os.getpid())
        return types.CallToolResult(content=[types.TextContent(text=text)])


class Mischief:
    """Cuts the answer to `cut`; plays a server of the era before 2026-07-28."""

    def __init__(self, app: Any, failing: Failing, handshake: bool) -> None:
        self.app = app
        self.failing = failing
        self.handshake = handshake

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method = dict(scope.get("headers", [])).get(b"mcp-method", b"")
        if self.handshake and method == b"server/discover":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return

        async def maybe_cut(message: Any) -> None:
            if self.failing.cuts and message["type"] == "http.response.body" and message.get("body"):
                self.failing.cuts = False
                message = {**message, "body": message["body"][:20], "more_body": False}
            await send(message)

        await self.app(scope, receive, maybe_cut)


def serve_http(server: Server[Any], failing: Failing, options: argparse.Namespace) -> None:
    import uvicorn

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", options.http))
    listening.listen(256)
    app = server.streamable_http_app(json_response=options.json)
    app.add_middleware(Mischief, failing=failing, handshake=options.handshake)
    uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on")).run(sockets=[listening])


async def serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    parser.add_argument("--handshake", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--grandchild", type=Path)
    parser.add_argument("--started", type=Path, help="a folder that gets a file named by each process")
    options = parser.parse_args()
    if options.grandchild:
        command = [sys.executable, "-c", STUBBORN]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        with options.grandchild.open("a") as file:
            file.write(f"{os.getpid()}\n{child.pid}\n")
    if options.started:
        (options.started / str(os.getpid())).touch()
    failing = Failing()
    server = Server("failing", on_list_tools=failing.list_tools, on_call_tool=failing.call_tool)
    if options.http is not None:
        serve_http(server, failing, options)
    else:
        anyio.run(serve_stdio, server)


if __name__ == "__main__":
    main()
