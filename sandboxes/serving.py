"""Any sandbox as an MCP server, over stdio or over HTTP on the loopback address.

Ordinary clients share one default world. Started with `TOOLBAKE_CONTROL=1`, the server also offers the control tools
of `mcp_bridge.control`, through which a client holds one world for each of its rollouts.

A call that is repeated with the idempotency key of its `_meta` is answered from memory.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcp_bridge.control import (
    CALL_META,
    CLOSE_WORLD,
    CONTROL_ENV,
    FORK_WORLD,
    IDEMPOTENCY_META,
    OPEN_WORLD,
    WORLD_META,
    WORLD_STATE,
)
from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.publishing.repeats import Repeats
from mcp_bridge.records import ToolResult

from .sandbox import Sandbox, SetupError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

MOST_WORLDS = 10_000
"""Of one server at once; a client that never closes its worlds is stopped before the memory is."""


class WorldDesk:
    """The worlds that one server holds, by id, beside the default one."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._origin = sandbox
        self._default = sandbox.fork()
        self._worlds: dict[str, Sandbox] = {}
        self._repeats: dict[str | None, Repeats] = defaultdict(Repeats)

    def open(self, world: str, setup: Mapping[str, Any] | None) -> None:
        self._require_free(world)
        self._worlds[world] = self._origin.prepare(setup)

    def fork(self, world: str, into: str) -> None:
        self._require_free(into)
        self._worlds[into] = self.find(world).fork()

    def _require_free(self, world: str) -> None:
        if world in self._worlds:
            raise SetupError(f"world {world!r} is open already; every rollout needs an id of its own")
        if len(self._worlds) >= MOST_WORLDS:
            raise SetupError(f"{MOST_WORLDS} worlds are open; close some with the control tool {CLOSE_WORLD!r}")

    def find(self, world: str | None) -> Sandbox:
        """The world of that id; the default one for `None`."""
        if world is None:
            return self._default
        if world not in self._worlds:
            raise SetupError(f"there is no world {world!r} here; open it first, or the server has restarted since")
        return self._worlds[world]

    async def call(self, world: str | None, key: object, call_id: str | None, name: str, given: Any) -> ToolResult:
        """A call in a world; one that is repeated with its key is answered from memory and changes nothing."""
        found = self.find(world)
        return await self._repeats[world].once(key, name, given, lambda: found.call(name, given, call_id=call_id))

    def close(self, world: str) -> None:
        self.find(world).close()
        del self._worlds[world]
        self._repeats.pop(world, None)


def make_server(sandbox: Sandbox, *, control: bool | None = None) -> Server[Any]:
    """A lowlevel MCP server over `sandbox`, whose present state is where every world begins.

    `control`: offer the control tools; by default if the environment says `TOOLBAKE_CONTROL=1`.
    """
    import mcp_types as types
    from mcp.server.lowlevel import Server

    from mcp_bridge.publishing.translation import (
        CONTROL_TOOLS,
        control_tools_as_mcp,
        failure_as_mcp,
        result_as_mcp,
        tool_as_mcp,
    )
    from mcp_bridge.toolsets.validation import ArgumentChecker

    offered = os.environ.get(CONTROL_ENV) == "1" if control is None else control
    desk = WorldDesk(sandbox)
    verbs = {tool.name: verb for verb, tool in CONTROL_TOOLS.items()} if offered else {}
    checker = ArgumentChecker(CONTROL_TOOLS.values())
    listed = [tool_as_mcp(tool) for tool in sandbox.tools] + (control_tools_as_mcp(can_fork=True) if offered else [])

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        try:
            if params.name in verbs:
                problem = checker.problem(params.name, arguments)
                return result_as_mcp(_control(desk, verbs[params.name], problem, arguments))
            meta = ctx.meta or {}
            # Without control there is one world only; a client that asks for another must not be given that one.
            world, key, call_id = (meta.get(name) for name in (WORLD_META, IDEMPOTENCY_META, CALL_META))
            return result_as_mcp(await desk.call(world, key, call_id, params.name, arguments))
        except (SourceError, ToolFailure) as error:
            raise failure_as_mcp(error) from error

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
    await serve_app(make_server(sandbox).streamable_http_app(host=host), port=port, host=host)


async def serve_app(
    app: Any, *, port: int, host: str = "127.0.0.1", listening: Callable[[], None] = lambda: None
) -> None:
    """Serve an ASGI application until cancelled or interrupted. `listening` is called when clients may connect.

    Raises `SetupError` as `serve_http` does.
    """
    from mcp_bridge.publishing import listening as ports

    try:
        await ports.serve_app(app, port=port, host=host, listening=listening)
    except SetupError:
        raise
    except SourceError as error:
        raise SetupError(str(error)) from error


def _control(desk: WorldDesk, verb: str, problem: str | None, arguments: Mapping[str, Any]) -> ToolResult:
    if problem:
        raise SetupError(problem)
    found: dict[str, Any] | None = None
    if verb == OPEN_WORLD:
        desk.open(arguments["world"], arguments.get("setup"))
        names = [tool.name for tool in desk.find(arguments["world"]).tools]
        found = {"tools": names} if len(names) != len(desk.find(None).tools) else None
    elif verb == WORLD_STATE:
        found = dict(desk.find(arguments["world"]).state())
    elif verb == FORK_WORLD:
        desk.fork(arguments["world"], arguments["into"])
    else:
        desk.close(arguments["world"])
    return ToolResult(text="ok", structured=found)
