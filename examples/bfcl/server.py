"""The eight APIs of BFCL as an MCP server: `python examples/bfcl/server.py`, or with `--http PORT`."""

from __future__ import annotations

import argparse

import anyio
from worlds import BfclTwin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp instead of stdio")
    anyio.run(BfclTwin().serve, parser.parse_args().http)


if __name__ == "__main__":
    main()
