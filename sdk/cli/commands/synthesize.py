"""`toolbake synthesize`: tasks made from tools, and edited ones checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ConfigError
from ..failing import RESUMABLE, as_options, clean_errors
from ..options import (
    AsJson,
    Command,
    ConnectTimeout,
    Debug,
    LimitSettings,
    Quiet,
    Seed,
    Tools,
    limits,
    progress_of,
)

if TYPE_CHECKING:
    from ...progress import Progress

_MODELS = (
    "a model folder, a name on the hub, 'embedded', an endpoint with its model (https://host/v1#large-1), or an agent"
)

To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE.jsonl",
        show_default="none: give it, or --check",
        help="Where the tasks are written. The same command again goes on from what stands beside it.",
    ),
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="FILE",
        show_default="none: tasks are made",
        help="Make nothing: play the tasks in this file again, as people have edited them, and name every problem with "
        "its line and its fix.",
    ),
]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="How many tasks.")]
MaxCalls = Annotated[int, typer.Option("--max-calls", min=1, help="The most calls of a right solution.")]
Setups = Annotated[
    list[str] | None,
    typer.Option(
        "--setup",
        metavar="JSON",
        show_default='{"seed": 1} to {"seed": 24}',
        help="A world to make tasks in, such as '{\"seed\": 7}'. May be given several times.",
    ),
]
PhraseTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--phrase",
        metavar="TOOL=TEXT",
        show_default="templates",
        help="How people ask for a tool, such as 'book=Book {room} for {person} on {day}'; for one that only reads, "
        "what it returns: 'find_slots=the free slots of {room}'. May be given several times.",
    ),
]
Writer = Annotated[
    str | None,
    typer.Option(
        "--writer", metavar="MODEL", show_default="none: templates", help=f"Who words the requests: {_MODELS}."
    ),
]
WriterKey = Annotated[
    str | None,
    typer.Option("--writer-key", metavar="VARIABLE", show_default="none", help="The variable with its endpoint's key."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="MODEL",
        show_default="none: rules alone",
        help=f"Who tries every task, to find ambiguous ones and to measure difficulty: {_MODELS}.",
    ),
]
PolicyKey = Annotated[
    str | None,
    typer.Option("--policy-key", metavar="VARIABLE", show_default="none", help="The variable with its endpoint's key."),
]
Attempts = Annotated[int, typer.Option("--attempts", min=1, help="How often the policy tries each task.")]
Difficulty = Annotated[
    str | None,
    typer.Option(
        "--difficulty",
        metavar="LOW,HIGH",
        show_default="any",
        help="Keep tasks whose share of right attempts lies between these, such as 0.1,0.9.",
    ),
]
HoldBack = Annotated[
    int,
    typer.Option(
        "--hold-back", min=0, help="So many values are missing in each request; its user tells them when asked."
    ),
]


def _setups(given: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """The worlds' setups. Raises `ConfigError` for what is no JSON object."""
    found = []
    for text in given or []:
        try:
            setup = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"--setup is {text!r}, which is no JSON ({error}); write for example {_EXAMPLE}"
            ) from None
        if not isinstance(setup, dict):
            raise ConfigError(f"--setup is {text!r}; it must be an object, such as {_EXAMPLE}")
        found.append(setup)
    return found or None


def _phrases(given: Sequence[str] | None) -> dict[str, str] | None:
    """Tool to phrase. Raises `ConfigError`."""
    found: dict[str, str] = {}
    for text in given or []:
        tool, is_given, phrase = text.partition("=")
        if not is_given or not tool.strip() or tool.strip() in found:
            why = "names its tool a second time" if tool.strip() in found else "has no tool before a ="
            raise ConfigError(
                f"--phrase is {text!r}, which {why}; write for example 'book=Book {{room}} for {{person}}'"
            )
        found[tool.strip()] = phrase
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
    debug: Debug = False,
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
    with clean_errors(debug, interrupted=RESUMABLE):
        if (to is None) == (check is None):
            given = "both" if to is not None else "neither"
            raise ConfigError(f"give --to FILE to make tasks or --check FILE to check some; this has {given}")
        from ..process import printing_to_stderr, quiet_libraries
        from ..sources import second_model, tool_source

        quiet_libraries()
        progress = progress_of(quiet)
        if check is not None:
            _check(tool_source(tools, command), check, connect_timeout, progress, as_json=as_json)
            return
        how: dict[str, Any] = {
            "to": to,
            "setups": _setups(setup),
            "max_calls": max_calls,
            "phrases": _phrases(phrase),
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
    from ..process import printing_to_stderr

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
