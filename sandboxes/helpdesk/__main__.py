"""`python -m sandboxes.helpdesk`: the helpdesk as an MCP server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import anyio

from . import Helpdesk


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve over stdio, or over HTTP with `--http PORT`."""
    parser = argparse.ArgumentParser(prog="helpdesk", description="The helpdesk's tools as an MCP server.")
    parser.add_argument("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp instead of stdio")
    parser.add_argument("--seed", type=int, default=0, help="which world ordinary clients get (default 0)")
    parser.add_argument("--scenario", choices=Helpdesk.scenarios, default="default")
    chosen = parser.parse_args(arguments)
    anyio.run(Helpdesk(chosen.seed, chosen.scenario).serve, chosen.http)


if __name__ == "__main__":
    main()
