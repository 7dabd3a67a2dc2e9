"""A sandbox as an MCP server, over stdio or over HTTP on the loopback address.

Started with `TOOLBAKE_CONTROL=1`, the server also offers the tools of `mcp_bridge.control_tools`. By them a client
holds one world for each of its rollouts. Other clients meet the worlds that `mcp_bridge.publish` gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .sandbox import Sandbox

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

MOST_WORLDS = 10_000
"""Of one server at once; a client that never closes its worlds is stopped before the memory is."""

_IDLE_S = 7 * 24 * 3600.0
"""A fork of a sandbox is small: it need not be closed before its client comes back."""


def make_server(sandbox: Sandbox, *, control: bool | None = None) -> Server[Any]:
    """An MCP server object over `sandbox`, whose present state is where every world begins.

    `control`: offer the control tools; by default if the environment has `TOOLBAKE_CONTROL=1`.
    """
    from mcp_bridge.publishing.server import publish

    return publish(sandbox, name=sandbox.name, control=control, max_worlds=MOST_WORLDS, idle_s=_IDLE_S)


async def serve_stdio(sandbox: Sandbox) -> None:
    """Serve one client over standard input and output until it hangs up."""
    from mcp_bridge.publishing import listener

    await listener.serve_stdio(make_server(sandbox))


async def serve_http(sandbox: Sandbox, *, port: int = 8765, host: str = "127.0.0.1") -> None:
    """Serve streamable HTTP at `http://HOST:PORT/mcp` until cancelled or interrupted.

    Raises `SourceError` where `host` is not a loopback address or the port is taken.
    """
    from mcp_bridge.publishing import listener

    await listener.serve_app(make_server(sandbox).streamable_http_app(host=host), port=port, host=host)
