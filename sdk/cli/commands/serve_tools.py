"""`toolbake serve-tools`: tools of any kind as an MCP server."""

from __future__ import annotations

from typing import Annotated

import typer

from mcp_bridge.safe_text import plural

from ..options import ClientsKey, Command, ConnectTimeout, HandlersName, Host, Tools, http_port, opt

ToolsPort = Annotated[int | None, http_port("Serve streamable HTTP at http://HOST:PORT/mcp until Ctrl-C.")]
Worlds = Annotated[
    bool, opt("--worlds", "Offer the control tools too, by which toolbake opens a world for each rollout.")
]
MaxWorlds = Annotated[int, opt("--max-worlds", "How many worlds, and sessions over HTTP, there may be at once.", min=1)]
IdleSeconds = Annotated[float, opt("--idle-s", "Seconds after which an unused session or world is closed.", min=0.1)]

# ---------------------------------------------------------------------------------------------------------------------


def serve_tools(
    tools: Tools = None,
    *,
    command: Command = None,
    http: ToolsPort = None,
    host: Host = "127.0.0.1",
    api_key_env: ClientsKey = None,
    worlds: Worlds = False,
    max_worlds: MaxWorlds = 1000,
    idle_s: IdleSeconds = 1800.0,
    handlers: HandlersName = None,
    connect_timeout: ConnectTimeout = 120.0,
) -> None:
    """Serve tools of any kind as one MCP server, for any MCP client.

    Each session has a world of its own, closed when it ends. Names, left-out tools and options are as `toolbake tools`
    shows them. HTTP listens on this machine alone; another address needs a key.

    Examples:
      toolbake serve-tools mcp.json
      toolbake serve-tools desk.py:desk --http 8765
      toolbake serve-tools mcp.json --http 8765 --host 0.0.0.0 --api-key-env TOOLS_KEY
    """
    import anyio

    from mcp_bridge.publishing.server import serve_tools as serve

    from ...connecting import inject_faults
    from ...errors import ConfigError
    from ..sources import load_handlers, secret_from, tool_source

    if http is None and (api_key_env is not None or host != "127.0.0.1"):
        raise ConfigError("--host and --api-key-env do nothing without --http; give a port, or leave them out")
    source, answers = tool_source(tools, command), load_handlers(handlers)
    key = None if api_key_env is None else secret_from(api_key_env, "--api-key-env")

    def say(served: object, left_out: object) -> None:
        # stdout is the protocol's
        count, out = len(served.tools), len(left_out)  # type: ignore[attr-defined, arg-type]
        where = "stdin and stdout" if http is None else f"http://{host}:{http}/mcp"
        typer.echo(f"serving {count} {plural(count, 'tool')} on {where}{f'; {out} left out' if out else ''}", err=True)

    anyio.run(
        lambda: serve(
            source,
            port=http,
            host=host,
            key=key,
            control=True if worlds else None,
            max_worlds=max_worlds,
            idle_s=idle_s,
            connect_timeout_s=connect_timeout,
            handlers=answers,
            inject_faults=inject_faults,
            ready=say,
        )
    )
