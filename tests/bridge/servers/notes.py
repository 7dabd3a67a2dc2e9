"""A small stateful MCP server. Also the tests' server for faults, barriers and control tools.

Over stdio: `python notes.py [--control]`. Over HTTP: `app` makes it.
"""

import argparse
import os
import sys
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True)


class Barrier:
    """Lets calls go only when as many are in flight as were asked for."""

    def __init__(self) -> None:
        self.waiting = 0
        self.full = anyio.Event()

    async def wait(self, count: int) -> int:
        self.waiting += 1
        if self.waiting >= count:
            self.full.set()
        await self.full.wait()
        return self.waiting


def build(*, control: bool) -> MCPServer:
    server = MCPServer("notes", log_level="ERROR")
    worlds: dict[str, list[str]] = {} if control else {"the only one": []}
    barrier = Barrier()

    def world_of(context: Context) -> str:
        meta = context.request_context.meta or {}
        return str(meta.get("toolbake/world", "")) if control else "the only one"

    @server.tool(structured_output=False)
    async def add_note(text: str, context: Context) -> str:
        """Write a note down."""
        worlds[world_of(context)].append(text)
        return f"noted, {len(worlds[world_of(context)])} in all"

    @server.tool(annotations=READ_ONLY, structured_output=True)
    async def list_notes(context: Context) -> dict[str, Any]:
        """All notes."""
        return {"notes": worlds[world_of(context)]}

    @server.tool(annotations=READ_ONLY, structured_output=False)
    async def meet(count: int) -> str:
        """Answers when `count` calls are in flight."""
        return f"met {await barrier.wait(count)}"

    @server.tool(structured_output=False)
    async def hang() -> str:
        """Never answers."""
        await anyio.sleep_forever()
        return "never"

    @server.tool(structured_output=False)
    async def crash() -> str:
        """Ends the process."""
        print("boom: the backend is gone", file=sys.stderr, flush=True)
        os._exit(3)

    @server.tool(structured_output=False)
    async def refuse() -> str:
        """Refuses with a text."""
        raise ToolError("the notebook is locked; unlock it first")

    @server.tool(structured_output=False)
    async def long_text(characters: int) -> str:
        """As many characters."""
        return "x" * characters

    @server.tool(structured_output=False)
    async def environment(name: str) -> str:
        """An environment variable of the server."""
        return os.environ.get(name, "(not set)")

    @server.tool(structured_output=False)
    async def process() -> str:
        """The id of the server's process and its current folder."""
        return f"{os.getpid()} {os.getcwd()}"

    @server.tool(structured_output=False)
    async def meta(context: Context) -> str:
        """The call's `_meta`."""
        own = {key: value for key, value in (context.request_context.meta or {}).items() if "toolbake" in key}
        return str(sorted(own.items()))

    if control:
        add_control_tools(server, worlds)
    return server


def add_control_tools(server: MCPServer, worlds: dict[str, list[str]]) -> None:
    @server.tool(meta={"toolbake/control": "open_world"}, structured_output=False)
    async def toolbake_open_world(world: str, setup: dict[str, Any]) -> str:
        """Open a world."""
        unknown = set(setup) - {"notes"}
        if unknown:
            raise ToolError(f"unknown setup {sorted(unknown)}; known: notes")
        worlds[world] = list(setup.get("notes", []))
        return "opened"

    @server.tool(meta={"toolbake/control": "world_state"}, structured_output=True)
    async def toolbake_world_state(world: str) -> dict[str, Any]:
        """The state of a world."""
        return {"notes": worlds[world], "worlds_open": len(worlds)}

    @server.tool(meta={"toolbake/control": "close_world"}, structured_output=False)
    async def toolbake_close_world(world: str) -> str:
        """Close a world."""
        del worlds[world]
        return "closed"


def app(*, control: bool = False, token: str | None = None, old: bool = False) -> Any:
    """`token`: what requests must carry. `old`: of the era before 2026-07-28, and deaf to the end of a session."""
    made = build(control=control).streamable_http_app()
    made.add_middleware(Gate, token=token, old=old)
    return made


class Gate:
    """Refuses requests without the token, where there is one; plays an old server on demand."""

    def __init__(self, app: Any, token: str | None, old: bool) -> None:
        self.app, self.token, self.old = app, token, old

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", []))
        if scope["type"] == "http" and self.old and await self.is_old(scope, headers, send):
            return
        if scope["type"] == "http" and self.token and headers.get(b"authorization") != f"Bearer {self.token}".encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)

    async def is_old(self, scope: Any, headers: dict[bytes, bytes], send: Any) -> bool:
        """Plays a server of the handshake era that never answers the end of a session."""
        if scope["method"] == "DELETE":
            await anyio.sleep_forever()
        if headers.get(b"mcp-method") != b"server/discover":
            return False
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", action="store_true")
    options = parser.parse_args()
    build(control=options.control and os.environ.get("TOOLBAKE_CONTROL") == "1").run("stdio")


if __name__ == "__main__":
    main()
