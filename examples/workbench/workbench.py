"""The office of WorkBench from the command line. FOLDER is a clone of the benchmark's repository.

python examples/workbench/workbench.py serve FOLDER [--parts email company_directory] [--http PORT]
python examples/workbench/workbench.py list FOLDER
python examples/workbench/workbench.py verdicts FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
from clone import queries
from office import PARTS, Office
from published import Replay, judge, results

from sandboxes.serving import serve_http, serve_stdio


def serve(folder: Path, parts: Sequence[str], port: int | None) -> int:
    """One MCP server with the tools of some parts."""
    scenario = "+".join(part for part in PARTS if part in parts)
    office = Office(folder, scenario=scenario)
    if port is None:
        anyio.run(serve_stdio, office)
    else:
        anyio.run(lambda: serve_http(office, port=port))
    return 0


def show_tools(folder: Path) -> int:
    """The 27 tools by part."""
    for tool in Office(folder).tools:
        print(f"{tool.source:30} {tool.name:32} {tool.description}")
    return 0


def show_verdicts(folder: Path) -> int:
    """The table of the published models, and how many verdicts are the benchmark's own. 1 where one is not."""
    judged = anyio.run(judge, folder)
    print_table(results(judged, folder))
    equal = sum(one.as_the_benchmark for one in judged if one.of.verdict is not None)
    known = sum(one.of.verdict is not None for one in judged)
    replay = Replay(folder)
    changed = sum(bool(query.gold) == bool(replay.changes(query.gold)) for query in queries(folder))
    print(f"\n{equal} of {known} verdicts with their side effects are the benchmark's own.")
    print(f"{changed} of {len(queries(folder))} gold lists change the office exactly if they have calls.")
    return int(equal != known or changed != len(queries(folder)))


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Markdown."""
    for number, row in enumerate(rows):
        print(f"| {' | '.join(row)} |")
        if number == 0:
            print("|" + " --- |" * len(row))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, says in (
        ("serve", "one MCP server over stdio"),
        ("list", "the tools"),
        ("verdicts", "the published models"),
    ):
        command = commands.add_parser(name, help=says)
        command.add_argument("folder", type=Path, metavar="FOLDER", help="a clone of the benchmark's repository")
        if name == "serve":
            command.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
            command.add_argument("--http", type=int, metavar="PORT", help="http://127.0.0.1:PORT/mcp, not stdio")
    chosen = parser.parse_args()
    match chosen.command:
        case "serve":
            return serve(chosen.folder, chosen.parts, chosen.http)
        case "list":
            return show_tools(chosen.folder)
        case _:
            return show_verdicts(chosen.folder)


if __name__ == "__main__":
    sys.exit(main())
