"""`toolbake solve`: tasks from requests and the calls that solve them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import ConfigError
from ..failing import clean_errors
from ..options import Command, ConnectTimeout, Debug, Tools


def solve(
    tools: Tools = None,
    *,
    tasks: Annotated[
        Path,
        typer.Option("--tasks", help="The requests: .csv, .jsonl or .json, with prompt and calls.", metavar="FILE"),
    ],
    to: Annotated[Path, typer.Option("--to", help="Where the whole tasks go: a new .jsonl file.", metavar="FILE")],
    command: Command = None,
    connect_timeout: ConnectTimeout = 120.0,
    debug: Debug = False,
) -> None:
    """Make whole tasks from requests and the calls that solve them.

    Plays the calls of each row in a fresh world, and writes down what they really brought about: the answer, the
    changes of the world, and a demonstration. Where tools have no worlds, calls are real, and a line tells so first.
    A row has

      prompt   what the user asks for
      calls    book(room="2", person="Ann"); several on lines of their own, or with ; between them
      answer   what the answer must contain; $.price reads it from the last result, $1.name from the first.
               Of a list, all items must be in it. May be left out where the last call returns one value, or the
               calls change something
      setup    how the world begins: {"seed": 7}; also setup.seed, tags.kind, family, as in any file of tasks

    Nothing is written where a call is refused: the errors name the lines.

    Examples:
      toolbake solve mcp.json --tasks requests.csv --to tasks.jsonl
    """
    with clean_errors(debug):
        from ...progress import Console
        from ..process import printing_to_stderr, quiet_libraries
        from ..sources import tool_source

        if to.suffix != ".jsonl":
            raise ConfigError(f"--to is {str(to)!r}; tasks are written as .jsonl")
        if to.exists():
            raise ConfigError(
                f"--to is {str(to)!r}, which exists; give a new file, so that tasks edited by hand are not lost"
            )
        quiet_libraries()
        source = tool_source(tools, command)

        from ...blocking import solve_file
        from ...tasks import counted
        from ...traces.atomic_files import make_folder, write_bytes

        make_folder(to.parent)  # before anything is played whose result would have no place
        with printing_to_stderr():
            solved = solve_file(source, tasks, connect_timeout_s=connect_timeout, progress=Console())
        lines = [task.model_dump_json(exclude_defaults=True) + "\n" for task in solved]
        write_bytes(to, "".join(lines).encode())
        changing = sum(bool(task.expected.get("changes")) for task in solved)
        typer.echo(
            f"{counted(solved)} in {to}: {changing} change the world, {len(solved) - changing} ask for an answer"
        )
