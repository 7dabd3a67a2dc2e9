"""Any sandbox as an MCP server, over stdio or over HTTP on the loopback address.

Ordinary clients share one default world. Started with `TOOLBAKE_CONTROL=1`, the server also offers the control tools
of `mcp_bridge.control`, through which a client holds one world for each of its rollouts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.control import (
    CALL_META,
    CLOSE_WORLD,
    CONTROL_ENV,
    CONTROL_META,
    OPEN_WORLD,
    WORLD_META,
    WORLD_STATE,
)
from mcp_bridge.errors import ToolFailure
from mcp_bridge.records import Tool, ToolResult

from .sandbox import Sandbox, SetupError

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.lowlevel import Server

MOST_WORLDS = 10_000
"""Of one server at once; a client that never closes its worlds is stopped before the memory is."""

_LOOPBACK = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
_WORLD = {"type": "string", "minLength": 1}


def _control_tool(verb: str, says: str, **more: Any) -> Tool:
    properties = {"world": _WORLD, **more}
    schema = {"type": "object", "properties": properties, "required": ["world"], "additionalProperties": False}
    return Tool(name=f"toolbake_{verb}", description=says, input_schema=schema)


_CONTROL_TOOLS = {
    OPEN_WORLD: _control_tool(OPEN_WORLD, "Open a world.", setup={"type": "object"}),
    WORLD_STATE: _control_tool(WORLD_STATE, "The whole state of a world."),
    CLOSE_WORLD: _control_tool(CLOSE_WORLD, "Close a world."),
}


class WorldDesk:
    """The worlds that one server holds, by id, beside the default one."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._origin = sandbox
        self._default = sandbox.fork()
        self._worlds: dict[str, Sandbox] = {}

    def open(self, world: str, setup: Mapping[str, Any] | None) -> None:
        if world in self._worlds:
            raise SetupError(f"world {world!r} is open already; every rollout needs an id of its own")
        if len(self._worlds) >= MOST_WORLDS:
            raise SetupError(f"{MOST_WORLDS} worlds are open; close some with the control tool {CLOSE_WORLD!r}")
        self._worlds[world] = self._origin.prepare(setup)

    def find(self, world: str | None) -> Sandbox:
        """The world of that id; the default one for `None`."""
        if world is None:
            return self._default
        if world not in self._worlds:
            raise SetupError(f"there is no world {world!r} here; open it first, or the server has restarted since")
        return self._worlds[world]

    def close(self, world: str) -> None:
        self.find(world).close()
        del self._worlds[world]


def make_server(sandbox: Sandbox, *, control: bool | None = None) -> Server[Any]:
    """A lowlevel MCP server over `sandbox`, whose present state is where every world begins.

    `control`: offer the control tools; by default if the environment says `TOOLBAKE_CONTROL=1`.
    """
    import mcp_types as types
    from mcp.server.lowlevel import Server

    from mcp_bridge.validation import ArgumentChecker

    offered = os.environ.get(CONTROL_ENV) == "1" if control is None else control
    desk = WorldDesk(sandbox)
    verbs = {tool.name: verb for verb, tool in _CONTROL_TOOLS.items()} if offered else {}
    checker = ArgumentChecker(_CONTROL_TOOLS.values())
    listed = [_as_mcp(tool) for tool in sandbox.tools]
    listed += [_as_mcp(tool, {CONTROL_META: verb}) for verb, tool in _CONTROL_TOOLS.items() if offered]

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        try:
            if params.name in verbs:
                return _control(desk, verbs[params.name], checker.problem(params.name, arguments), arguments)
            meta = ctx.meta or {}
            # Without control there is one world only; a client that asks for another must not be given that one.
            world = desk.find(meta.get(WORLD_META))
            return _as_mcp_result(await world.call(params.name, arguments, call_id=meta.get(CALL_META)))
        except SetupError as error:
            raise _protocol_error(types.INVALID_REQUEST, error) from error
        except ToolFailure as error:
            raise _protocol_error(types.INTERNAL_ERROR, error) from error

    return Server(sandbox.name, on_list_tools=list_tools, on_call_tool=call_tool)


async def serve_stdio(sandbox: Sandbox) -> None:
    """Serve one client over standard input and output until it hangs up."""
    from mcp.server.stdio import stdio_server

    server = make_server(sandbox)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(sandbox: Sandbox, *, port: int = 8765, host: str = "127.0.0.1") -> None:
    """Serve streamable HTTP at `http://HOST:PORT/mcp` until cancelled or interrupted.

    Raises `SetupError` where `host` is no loopback address or the port is taken.
    """
    import uvicorn

    if host not in _LOOPBACK:
        raise SetupError(
            f"host is {host!r}; a sandbox has no authentication and serves on {' or '.join(_LOOPBACK)} only"
        )
    app = make_server(sandbox).streamable_http_app(host=host)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    with _listen(host, port) as listener:
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                # Shielded: uvicorn leaves its sockets open when it is cancelled, but not when it is told to stop.
                with anyio.CancelScope(shield=True):
                    await server.serve(sockets=[listener])
                group.cancel_scope.cancel()

            group.start_soon(serve)
            try:
                await anyio.sleep_forever()
            finally:
                server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(_LOOPBACK[host])
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise SetupError(f"port {port} on {host} cannot be used ({error}); choose another one") from error
    return listener


def _control(desk: WorldDesk, verb: str, problem: str | None, arguments: Mapping[str, Any]) -> types.CallToolResult:
    if problem:
        raise SetupError(problem)
    found: dict[str, Any] | None = None
    if verb == OPEN_WORLD:
        desk.open(arguments["world"], arguments.get("setup"))
    elif verb == WORLD_STATE:
        found = dict(desk.find(arguments["world"]).state())
    else:
        desk.close(arguments["world"])
    return _as_mcp_result(ToolResult(text="ok", structured=found))


def _as_mcp(tool: Tool, meta: dict[str, Any] | None = None) -> types.Tool:
    import mcp_types as types

    says = tool.annotations
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            read_only_hint=says.read_only,
            destructive_hint=says.destructive,
            idempotent_hint=says.idempotent,
            open_world_hint=says.open_world,
        ),
        _meta=meta,
    )


def _as_mcp_result(result: ToolResult) -> types.CallToolResult:
    import mcp_types as types

    # Clients older than 2026-07-28 take only an object as structured content; the text says all the same.
    structured = result.structured if isinstance(result.structured, dict) else None
    content: list[types.ContentBlock] = [types.TextContent(text=result.text)]
    return types.CallToolResult(content=content, structured_content=structured, is_error=result.is_error)


def _protocol_error(code: int, error: Exception) -> Exception:
    from mcp.shared.exceptions import MCPError

    return MCPError(code, str(error))
