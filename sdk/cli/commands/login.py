"""`toolbake login`: log in with servers behind URLs, by the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import ServerTools, opt

if TYPE_CHECKING:
    from mcp_bridge.sources.specs import HttpSpec

Server = Annotated[
    str | None, opt("--server NAME", "Log in with this server of the mcp.json alone.", default="all of them")
]


def login(tools: ServerTools = None, *, server: Server = None) -> None:
    """Log in with the servers of an mcp.json that ask for it (OAuth), by your browser.

    The address is printed too, for where no browser opens. The tokens are kept in the system's keyring (with the extra
    `desktop`) or in a file that only you can read. Every command then finds them there, and renews them while it runs.

    Examples:
      toolbake login mcp.json
      toolbake login mcp.json --server stock
      toolbake login https://stock.example/mcp
    """
    import anyio

    from mcp_bridge.sessions.browser_redirect import log_in

    from ...progress import Console
    from ..sources import tool_source

    console = Console()
    for spec in _servers(tool_source(tools, None), server):
        kept = anyio.run(log_in, spec, console.say)
        asked = "it asks for no login" if kept is None else f"logged in; the tokens are kept in {kept}"
        typer.echo(f"{spec.label}: {asked}")


def _servers(source: Any, name: str | None) -> list[HttpSpec]:
    """The servers to log in with. Raises `ConfigError`."""
    from mcp_bridge.sources.connecting import identify
    from mcp_bridge.sources.specs import HttpSpec

    from ...errors import ConfigError

    found = [one for one in identify(source) if isinstance(one, HttpSpec)]
    names = ", ".join(repr(one.name) for one in found if one.name) or "none"
    if name is not None:
        found = [one for one in found if one.name == name]
        if not found:
            raise ConfigError(f"--server is {name!r}; the servers with a URL are {names}")
        return found
    wanted = [one for one in found if one.may_have_kept_login]
    if not wanted:
        raise ConfigError(
            "TOOLS has no server to log in with: a login is for an MCP server behind a URL that has no headers or "
            f"auth of its own. The servers with a URL are {names}"
        )
    return wanted
