"""A cassette as an MCP server: any client meets the recorded tools, and the real server is not needed."""

from __future__ import annotations

from collections.abc import Callable

from .recorded_twin import RecordedTwin


async def serve_replay(
    twin: RecordedTwin, *, port: int | None = None, say: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the tools of `twin` over standard input and output, or with `port` at `http://127.0.0.1:PORT/mcp`, until
    the client hangs up or it is cancelled. Each session of a client has a world of its own.

    What was never recorded comes back as an error of the protocol, unless the twin answers it. `say`: hears what is
    served, and at the end how the calls were answered. Raises `SourceError` where the port is taken.
    """
    from mcp_bridge.publishing.server import publish

    header = twin.cassette.header
    # Not through a toolset, which would answer mistakes in its own words.
    server = publish(twin, name=str(header.server.get("name") or twin.name))
    where = "stdin and stdout" if port is None else f"http://127.0.0.1:{port}/mcp"

    def begun() -> None:
        say(f"replaying {len(twin.cassette.calls)} calls of {len(twin.tools)} tools on {where}")

    try:
        if port is None:
            from mcp.server.stdio import stdio_server

            async with stdio_server() as (read, write):
                begun()
                await server.run(read, write, server.create_initialization_options())
        else:
            from ..serving import serve_app

            await serve_app(server.streamable_http_app(host="127.0.0.1"), port=port, listening=begun)
    finally:
        report = twin.report()
        how = ", ".join(f"{number} {word.replace('_', ' ')}" for word, number in report["answers"].items())
        say(f"answered {report['calls']} calls{f': {how}' if how else ''}")
