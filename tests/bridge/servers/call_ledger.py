"""An MCP server that writes down every call it executes, and then fails on purpose: `app` makes it, over HTTP.

Over stdio: `python call_ledger.py FILE [--seed N] [--silent P] [--die P]`. FILE gets a line `tool call key` for each
execution, before anything is answered. After that, by chance: the answer is cut in the middle (`cut`, HTTP), never sent
(`silent`), or the process ends (`die`; half of the time before the execution).
"""

import argparse
import os
import random
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
    def __init__(self, file: str, *, seed: int, silent: float, die: float) -> None:
        self.silent, self.die = silent, die
        self.executed = 0
        self.chance = random.Random(seed * 100_003 + os.getpid())
        # One write in append mode is whole, also with several processes.
        self.file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def server(self) -> Server[Any]:
        return Server("ledger", on_list_tools=self.list_tools, on_call_tool=self.call_tool)

    async def list_tools(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=TOOLS)

    async def call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        dies = self.chance.random() < self.die
        if dies and self.chance.random() < 0.5:
            os._exit(1)
        meta = context.meta or {}
        line = f"{params.name} {meta.get('toolbake/call')} {meta.get('toolbake/idempotency_key')}\n"
        os.write(self.file, line.encode())
        self.executed += 1
        if dies:
            os._exit(1)
        if self.chance.random() < self.silent:
            await anyio.sleep_forever()
        return types.CallToolResult(content=[types.TextContent(text=f"done {params.arguments}")])


class Mischief:
    """Cuts answers, and plays an old server."""

    def __init__(self, app: Any, ledger: Ledger, handshake: bool, cut: float) -> None:
        self.app = app
        self.ledger = ledger
        self.handshake, self.cut = handshake, cut

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = dict(scope["headers"]).get(b"mcp-method", b"")
        if self.handshake and method == b"server/discover":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        # Not before the first execution: a server that cannot even begin is another matter.
        cuts = scope["method"] == "POST" and self.ledger.executed and self.ledger.chance.random() < self.cut

        async def cut(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                # Less than the header promised, or a stream without its end: the connection is closed.
                message = {**message, "body": message["body"][: len(message["body"]) // 2], "more_body": False}
            await send(message)

        await self.app(scope, receive, cut if cuts else send)


def app(*, file: str, handshake: bool, seed: int, cut: float, silent: float, die: float) -> Any:
    """`handshake`: play a server of the era before 2026-07-28, which keeps sessions."""
    ledger = Ledger(file, seed=seed, silent=silent, die=die)
    made = ledger.server().streamable_http_app()
    made.add_middleware(Mischief, ledger=ledger, handshake=handshake, cut=cut)
    return made


async def serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=0)
    for fault in ("--silent", "--die"):
        parser.add_argument(fault, type=float, default=0.0)
    options = parser.parse_args()
    ledger = Ledger(options.file, seed=options.seed, silent=options.silent, die=options.die)
    anyio.run(serve_stdio, ledger.server())


if __name__ == "__main__":
    main()
