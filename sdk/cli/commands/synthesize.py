"""`toolbake synthesize` and `toolbake solve`: tasks made from tools or from requests, and edited ones checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ConfigError
from ..failing import RESUMABLE, as_options, when_interrupted
from ..options import (
    AsJson,
    Command,
    ConnectTimeout,
    LimitSettings,
    Quiet,
    Tools,
    limits,
    named_values,
    opt,
    progress_of,
)

if TYPE_CHECKING:
    from ...progress import Progress

_MODELS = (
    "a model folder, a name on the hub, 'embedded', an endpoint with its model (https://host/v1#large-1), or an agent"
)

To = Annotated[
    Path | None,
    opt(
        "--to FILE.jsonl",
        "Where the tasks are written. The same command again goes on from what stands beside it.",
        default="none: give it, or --check",
    ),
]
Check = Annotated[
    Path | None,
    opt(
        "--check FILE",
        "Make nothing: play the tasks in this file again, as people have edited them, and name every problem with its "
        "line and its fix.",
        default="none: tasks are made",
    ),
]
Seed = Annotated[int, opt("--seed", "Which calls are tried in the worlds, and what a model samples.")]
Count = Annotated[int, opt("--count,-n", "How many tasks.", min=1)]
MaxCalls = Annotated[int, opt("--max-calls", "The most calls of a right solution.", min=1)]
Setups = Annotated[
    list[str] | None,
    opt(
        "--setup JSON",
        "A world to make tasks in, such as '{\"seed\": 7}'. May be given several times.",
        default='{"seed": 1} to {"seed": 24}',
    ),
]
PhraseTexts = Annotated[
    list[str] | None,
    opt(
        "--phrase TOOL=TEXT",
        "How people ask for a tool, such as 'book=Book {room} for {person} on {day}'; for one that only reads, what "
        "it returns: 'find_slots=the free slots of {room}'. May be given several times.",
        default="templates",
    ),
]
Writer = Annotated[str | None, opt("--writer MODEL", f"Who words the requests: {_MODELS}.", default="none: templates")]
WriterKey = Annotated[str | None, opt("--writer-key VARIABLE", "The variable with its endpoint's key.", default="none")]
Policy = Annotated[
    str | None,
    opt(
        "--policy MODEL",
        f"Who tries every task, to find ambiguous ones and to measure difficulty: {_MODELS}.",
        default="none: rules alone",
    ),
]
PolicyKey = Annotated[str | None, opt("--policy-key VARIABLE", "The variable with its endpoint's key.", default="none")]
Attempts = Annotated[int, opt("--attempts", "How often the policy tries each task.", min=1)]
Difficulty = Annotated[
    str | None,
    opt(
        "--difficulty LOW,HIGH",
        "Keep tasks whose share of right attempts lies between these, such as 0.1,0.9.",
        default="any",
    ),
]
HoldBack = Annotated[
    int, opt("--hold-back", "So many values are missing in each request; its user tells them when asked.", min=0)
]


def _setups(given: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """The worlds' setups. Raises `ConfigError` for what is not a JSON object."""
    found = []
    for text in given or []:
        try:
            setup = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"--setup is {text!r}, which is not valid JSON ({error}); write for example {_EXAMPLE}"
            ) from None
        if not isinstance(setup, dict):
            raise ConfigError(f"--setup is {text!r}; it must be an object, such as {_EXAMPLE}")
        found.append(setup)
    return found or None


_EXAMPLE = """'{"seed": 7}'"""


def _difficulty(given: str | None) -> tuple[float, float] | None:
    """Two shares. Raises `ConfigError`."""
    if given is None:
        return None
    try:
        low, high = (float(part) for part in given.split(","))
    except ValueError:
        raise ConfigError(f"--difficulty is {given!r}; give two shares, such as 0.1,0.9") from None
    return low, high


# ---------------------------------------------------------------------------------------------------------------------


def synthesize(
    tools: Tools = None,
    *,
    command: Command = None,
    to: To = None,
    check: Check = None,
    count: Count = 100,
    max_calls: MaxCalls = 2,
    phrase: PhraseTexts = None,
    setup: Setups = None,
    writer: Writer = None,
    writer_key: WriterKey = None,
    policy: Policy = None,
    policy_key: PolicyKey = None,
    attempts: Attempts = 4,
    difficulty: Difficulty = None,
    hold_back: HoldBack = 0,
    limit: LimitSettings = None,
    seed: Seed = 0,
    connect_timeout: ConnectTimeout = 120.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make tasks for your tools, with gold answers that are right by construction, or check edited ones.

    Walks at random through simulated worlds: every call, its arguments and its result are real there. Where a walk
    ends, a task begins: what the last call found out or changed is asked for, the calls that lead there are the gold
    solution, and each task is played again in a fresh world before it is kept. The tools need worlds that can be reset
    and tell their state: a sandbox, a twin, or an MCP server that keeps a world for each rollout.

    Read and edit the file, then check it with --check; train on it with `toolbake train`.

    Examples:
      toolbake synthesize mcp.json --to tasks.jsonl -n 200
      toolbake synthesize mcp.json --check tasks.jsonl
      toolbake synthesize twin.py:orders --to hard.jsonl --policy runs/first/model --difficulty 0.1,0.9
    """
    when_interrupted(RESUMABLE)
    if (to is None) == (check is None):
        given = "both" if to is not None else "neither"
        raise ConfigError(f"give --to FILE to make tasks or --check FILE to check some; this has {given}")
    from ...process import printing_to_stderr
    from ..sources import second_model, tool_source

    progress = progress_of(quiet)
    if check is not None:
        _check(tool_source(tools, command), check, connect_timeout, progress, as_json=as_json)
        return
    how: dict[str, Any] = {
        "to": to,
        "setups": _setups(setup),
        "max_calls": max_calls,
        "phrases": named_values(phrase, "--phrase") or None,
        "writer": second_model(writer, writer_key, "--writer", "--writer-key"),
        "policy": second_model(policy, policy_key, "--policy", "--policy-key"),
        "attempts": attempts,
        "difficulty": _difficulty(difficulty),
        "hold_back": hold_back,
        "limits": limits(limit or []),
        "connect_timeout_s": connect_timeout,
        "seed": seed,
    }
    source = tool_source(tools, command)

    from ...blocking import synthesize

    with printing_to_stderr():
        made = synthesize(source, count, progress=progress, **how)
    if not made.tasks:
        raise ConfigError(str(made))
    if not as_json:
        typer.echo(as_options(str(made)))
        return
    told: dict[str, Any] = {"tasks": len(made.tasks), "wanted": made.wanted, "attempts": made.attempts}
    told |= {"left_out": dict(made.left_out), "unused_tools": dict(made.unused_tools)}
    typer.echo(json.dumps({"path": str(made.path), **told}, indent=2, ensure_ascii=False))


def _check(source: Any, file: Path, connect_timeout_s: float, progress: Progress, *, as_json: bool) -> None:
    from ...blocking import check_tasks
    from ...process import printing_to_stderr

    with printing_to_stderr():
        found = check_tasks(source, file, connect_timeout_s=connect_timeout_s, progress=progress)
    if as_json:
        problems, warnings = (
            [{"where": one.where, "task_id": one.task_id, "problem": one.what} for one in listed]
            for listed in (found.problems, found.warnings)
        )
        told = {"hold": len(found.tasks), "problems": problems, "warnings": warnings}
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        if problems:
            raise typer.Exit(1)
        return
    found.require_all()
    typer.echo(str(found))


# ---------------------------------------------------------------------------------------------------------------------


def solve(
    tools: Tools = None,
    *,
    tasks: Annotated[Path, opt("--tasks FILE", "The requests: .csv, .jsonl or .json, with prompt and calls.")],
    to: Annotated[Path, opt("--to FILE", "Where the whole tasks go: a new .jsonl file.")],
    command: Command = None,
    connect_timeout: ConnectTimeout = 120.0,
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
    from ...process import printing_to_stderr
    from ...progress import Console
    from ..sources import tool_source

    if to.suffix != ".jsonl":
        raise ConfigError(f"--to is {str(to)!r}; tasks are written as .jsonl")
    if to.exists():
        raise ConfigError(
            f"--to is {str(to)!r}, which exists; give a new file, so that tasks edited by hand are not lost"
        )
    source = tool_source(tools, command)

    from ...blocking import solve_file
    from ...tasks import counted
    from ...tasks.task_files import as_lines
    from ...traces.atomic_files import make_folder, write_bytes

    make_folder(to.parent)  # before anything is played whose result would have no place
    with printing_to_stderr():
        solved = solve_file(source, tasks, connect_timeout_s=connect_timeout, progress=Console())
    write_bytes(to, as_lines(solved))
    changing = sum(bool(task.expected.get("changes")) for task in solved)
    typer.echo(f"{counted(solved)} in {to}: {changing} change the world, {len(solved) - changing} ask for an answer")
