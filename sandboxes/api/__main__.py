"""`python -m sandboxes.api openapi.yaml`: the report of a twin, or the twin as a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import anyio

from mcp_bridge.errors import SourceError

from .api_twin import ApiTwin
from .http import serve


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the report, or serve: the API itself (`--http`), or its tools over MCP (`--mcp`, `--stdio`)."""
    parser = argparse.ArgumentParser(prog="python -m sandboxes.api", description=__doc__)
    parser.add_argument("document", help="path or URL of an OpenAPI 3.0 or 3.1 or Swagger 2.0 document")
    parser.add_argument("--seed", type=int, default=0, help="which world (default 0)")
    parser.add_argument("--scenario", choices=("default", "empty", "signed_out"), default="default")
    parser.add_argument("--rows", type=int, default=8, help="rows of a collection at the top (default 8)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--http", type=int, metavar="PORT", help="serve the API itself at http://127.0.0.1:PORT")
    how.add_argument("--mcp", type=int, metavar="PORT", help="serve its tools over MCP at http://127.0.0.1:PORT/mcp")
    how.add_argument("--stdio", action="store_true", help="serve its tools over MCP to the one who started it")
    chosen = parser.parse_args(arguments)
    try:
        twin = ApiTwin(chosen.document, seed=chosen.seed, scenario=chosen.scenario, rows=chosen.rows)
        if chosen.http is not None:
            anyio.run(lambda: serve(twin, port=chosen.http))
        elif chosen.stdio or chosen.mcp is not None:
            anyio.run(twin.serve, chosen.mcp)
        else:
            sys.stdout.write(f"{twin.report()}\n")
    except SourceError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
