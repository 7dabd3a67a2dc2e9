"""`toolbake record`: what a real MCP server answers, written into a cassette."""

from __future__ import annotations

import typer

from ..failing import clean_errors
from ..options import Command, ConnectTimeout, Debug, Tools
from ..recording_options import Cassette, Port, Scrub, ServerName


def record(
    tools: Tools = None,
    *,
    command: Command = None,
    to: Cassette,
    http: Port = None,
    server: ServerName = None,
    scrub: Scrub = None,
    connect_timeout: ConnectTimeout = 60.0,
    debug: Debug = False,
) -> None:
    """Record a real MCP server while any MCP client uses it.

    The recorder stands between the two: put `toolbake record ...` where the client's settings have the server's own
    command. Every call is written to the cassette as it happens, with its result, and without secrets: the values of
    the server's environment and headers, what stands under names such as `password` or `apiKey`, and keys of well-known
    forms. Read the file before you share it: a secret in plain words is found by --scrub alone.

    A cassette replays as a twin, without the server (`sandboxes.recorded.RecordedTwin`), and says how far any other
    twin is from the real thing (`toolbake divergence`).

    Examples:
      toolbake record mcp.json --to orders.jsonl
      toolbake record --command 'npx server-filesystem notes' --to files.jsonl --scrub '/tmp/[^/"]+'
      toolbake record https://orders.example/mcp --to orders.jsonl --http 8765
    """
    with clean_errors(debug):
        import anyio

        from sandboxes.recorded import serve_recorder

        from ..sources import tool_source

        source = tool_source(tools, command)

        def say(text: str) -> None:
            typer.echo(text, err=True)  # stdout is the protocol's

        async def serve() -> None:
            await serve_recorder(
                source,
                to,
                port=http,
                server=server,
                scrub=tuple(scrub or ()),
                connect_timeout_s=connect_timeout,
                say=say,
            )

        anyio.run(serve)
