"""A domain of τ²-bench as an MCP server: `python examples/tau2/server.py retail`, or with `--http PORT`."""

from __future__ import annotations

import argparse

import anyio
from domain_twin import Tau2Twin
from domains import DOMAINS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("domain", choices=DOMAINS)
    parser.add_argument("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp instead of stdio")
    options = parser.parse_args()
    anyio.run(Tau2Twin(options.domain).serve, options.http)


if __name__ == "__main__":
    main()
