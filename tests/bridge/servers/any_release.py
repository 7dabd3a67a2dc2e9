"""A server that runs on every release of the MCP SDK from 1.3 on; the tests start it in environments of their own.

    python any_release.py [--transport stdio|sse|streamable-http] [--port PORT] [--starts FOLDER] [--slow]
                          [--alone] [--compute SECONDS]

`--starts`: leaves a file in FOLDER for each start. `--slow`: the first start begins to listen once there is another
one, and no other does. `--alone`: every other one ends at once. `--compute`: begins to listen only after that much
processor time.
"""

import argparse
import os
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--transport", default="stdio")
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--starts", type=Path)
parser.add_argument("--slow", action="store_true")
parser.add_argument("--alone", action="store_true")
parser.add_argument("--compute", type=float, default=0.0)
options = parser.parse_args()

if options.starts:
    is_first = not any(options.starts.iterdir())
    (options.starts / str(os.getpid())).touch()
    if options.alone and not is_first:
        sys.exit("another one is running")
    while options.slow and (not is_first or len(list(options.starts.iterdir())) == 1):
        time.sleep(0.05)

try:  # after the file of the start was left: importing the SDK takes a while
    from mcp.server.mcpserver import Context, MCPServer
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

computed_until = time.process_time() + options.compute
while time.process_time() < computed_until:
    pass

server = MCPServer("any-release")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def spoken(ctx: Context) -> str:
    """The revision of MCP that the client has asked for, as far as this release tells."""
    version = getattr(ctx.request_context, "protocol_version", None)
    if version is None:
        client = ctx.session._client_params
        version = client.protocolVersion if client else "none"
    return str(version)


@server.tool()
def letters(count: int) -> str:
    """So many letters."""
    return "x" * count


def run() -> None:
    if options.transport == "stdio":
        server.run()
    elif hasattr(server, "settings") and hasattr(server.settings, "port"):
        server.settings.port = options.port
        server.settings.host = "127.0.0.1"
        server.run(options.transport)
    else:
        server.run(options.transport, port=options.port, host="127.0.0.1")


if __name__ == "__main__":
    run()
