"""An MCP server that writes down every call it executes, and then fails on purpose.

    python call_ledger.py FILE [--http PORT] [--handshake] [--seed N] [--cut P] [--silent P] [--die P]

FILE gets a line `tool call key` for each execution, before anything is answered. After that, by chance: the answer is
cut in the middle (`--cut`, HTTP), never sent (`--silent`), or the process ends (`--die`; half of the time before the
execution). `--handshake`: play a server of the era before 2026-07-28, which keeps sessions.
"""

import argparse
import os
import random
import socket
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

TEXT = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOLS = [
    types.Tool(name="charge", description="Charge once.", input_schema=TEXT),
    types.Tool(
        name="set_status",
        description="Set to a value.",
        input_schema=TEXT,
        annotations=types.ToolAnnotations(idempotent_hint=True),
    ),
    types.Tool(
        name="look",
        description="Only reads.",
        input_schema=TEXT,
        annotations=types.ToolAnnotations(read_only_hint=True),
    ),
]


class Ledger:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.executed = 0
        self.chance = random.Random(options.seed * 100_003 + os.getpid())
        # One write in append mode is whole, also with several processes.
        self.file = os.open(options.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def list_tools(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=TOOLS)

    async def call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        dies = self.chance.random() < self.options.die
        if dies and self.chance.random() < 0.5:
            os._exit(1)
        meta = context.meta or {}
        line = f"{params.name} {meta.get('toolbake/call')} {meta.get('toolbake/idempotency_key')}\n"
        os.write(self.file, line.encode())
        self.executed += 1
        if dies:
            os._exit(1)
        if self.chance.random() < self.options.silent:
            await anyio.sleep_forever()
        return types.CallToolResult(content=[types.TextContent(text=f"done {params.arguments}")])


class Mischief:
    """Cuts answers, and plays an old server."""

    def __init__(self, app: Any, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = dict(scope["headers"]).get(b"mcp-method", b"")
        if self.ledger.options.handshake and method == b"server/discover":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        # Not before the first execution: a server that cannot even begin is another matter.
        cuts = (
            scope["method"] == "POST" and self.ledger.executed and self.ledger.chance.random() < self.ledger.options.cut
        )

        async def cut(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                # Less than the header promised, or a stream without its end: the connection is closed.
                message = {**message, "body": message["body"][: len(message["body"]) // 2], "more_body": False}
            await send(message)

        await self.app(scope, receive, cut if cuts else send)


def serve_http(server: Server[Any], ledger: Ledger) -> None:
    import uvicorn

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", ledger.options.http))
    listening.listen(1024)
    app = server.streamable_http_app()
    app.add_middleware(Mischief, ledger=ledger)
    uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on")).run(sockets=[listening])


async def serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--http", type=int)
    parser.add_argument("--handshake", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    for fault in ("--cut", "--silent", "--die"):
        parser.add_argument(fault, type=float, default=0.0)
    ledger = Ledger(parser.parse_args())
    server = Server("ledger", on_list_tools=ledger.list_tools, on_call_tool=ledger.call_tool)
    if ledger.options.http is not None:
        serve_http(server, ledger)
    else:
        anyio.run(serve_stdio, server)


if __name__ == "__main__":
    main()
