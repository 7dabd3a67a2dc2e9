"""The eight APIs of BFCL as an MCP server: `python examples/bfcl/server.py`, or with `--http PORT`."""

from __future__ import annotations

import argparse

import anyio
from worlds import BfclTwin

from sandboxes.serving import serve_http, serve_stdio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp instead of stdio")
    port = parser.parse_args().http
    if port is None:
        anyio.run(serve_stdio, BfclTwin())
    else:
        anyio.run(lambda: serve_http(BfclTwin(), port=port))


if __name__ == "__main__":
    main()
