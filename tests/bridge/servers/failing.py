"""An MCP server over HTTP whose tools break things: `app` makes it."""

import os
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

READS = types.ToolAnnotations(read_only_hint=True)
NUMBER = {"type": "object", "properties": {"megabytes": {"type": "number"}}}


def tool(name: str, annotations: types.ToolAnnotations | None = None) -> types.Tool:
    return types.Tool(name=name, description=name, input_schema=NUMBER, annotations=annotations)


TOOLS = [
    tool("echo"),
    tool("read", READS),
    tool("big"),
    tool("hang"),
    tool("cut"),
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
            case "cut":
                self.cuts = True
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


def app(*, handshake: bool = False, json: bool = False) -> Any:
    """`handshake`: of the era before 2026-07-28. `json`: answers are no streams of events."""
    failing = Failing()
    server = Server("failing", on_list_tools=failing.list_tools, on_call_tool=failing.call_tool)
    made = server.streamable_http_app(json_response=json)
    made.add_middleware(Mischief, failing=failing, handshake=handshake)
    return made
