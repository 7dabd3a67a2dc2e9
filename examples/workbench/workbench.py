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
from clone import SEVERAL
from office import PARTS, Office
from office_tasks import tasks
from published import gold_lists, judge, results, verdict_lines

import sdk


def serve(folder: Path, parts: Sequence[str], port: int | None) -> int:
    """One MCP server with the tools of some parts."""
    scenario = "+".join(part for part in PARTS if part in parts)
    anyio.run(Office(folder, scenario=scenario).serve, port)
    return 0


def show_tools(folder: Path) -> int:
    """The 27 tools by part."""
    for tool in Office(folder).tools:
        print(f"{tool.source:30} {tool.name:32} {tool.description}")
    return 0


def show_verdicts(folder: Path, to: Path | None) -> int:
    """The table of the published models, and how many verdicts are the benchmark's own. 1 where one is not."""
    judged = anyio.run(judge, folder)
    if to is not None:
        for name, lines in verdict_lines(judged, folder).items():
            write(to / f"{name}.jsonl", lines)
    print_table(results(judged, folder))
    equal = sum(one.as_the_benchmark for one in judged if one.of.verdict is not None)
    known = sum(one.of.verdict is not None for one in judged)
    print(f"\n{equal} of {known} verdicts with their side effects are the benchmark's own.")
    gold = anyio.run(gold_lists, folder)
    print(f"{sum(gold)} of {len(gold)} gold lists are right.")
    return int(equal != known or not all(gold))


def write_tasks(folder: Path, to: Path) -> int:
    """Three files of tasks: one system, several systems, and whole templates that are held out."""
    files: dict[str, list[sdk.Task]] = {"one_system": [], "several_systems": [], "templates": []}
    for task in tasks(folder):
        if task.tags["set"] == "templates":
            files["templates"].append(task)
        else:
            files["several_systems" if task.tags["system"] == SEVERAL else "one_system"].append(task)
    for name, found in files.items():
        write(to / f"{name}.jsonl", [task.model_dump_json(exclude_defaults=True) for task in found])
        trained = [task for task in found if task.tags["split"] == "train"]
        shown = sum(bool(task.demonstration) for task in trained)
        print(f"{name}: {len(trained)} to train on, {shown} with a demonstration; {len(found) - len(trained)} held out")
    return 0


def write(path: Path, lines: Iterable[str]) -> None:
    """A JSON Lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


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
        ("tasks", "files of tasks"),
    ):
        command = commands.add_parser(name, help=says)
        command.add_argument("folder", type=Path, metavar="FOLDER", help="a clone of the benchmark's repository")
        if name == "serve":
            command.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
            command.add_argument("--http", type=int, metavar="PORT", help="http://127.0.0.1:PORT/mcp, not stdio")
        elif name != "list":
            command.add_argument("--to", type=Path, required=name == "tasks", help="the folder to write into")
    chosen = parser.parse_args()
    try:
        match chosen.command:
            case "serve":
                return serve(chosen.folder, chosen.parts, chosen.http)
            case "list":
                return show_tools(chosen.folder)
            case "tasks":
                return write_tasks(chosen.folder, chosen.to)
            case _:
                return show_verdicts(chosen.folder, chosen.to)
    except sdk.ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
