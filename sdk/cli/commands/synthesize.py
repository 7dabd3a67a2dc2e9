"""`toolbake synthesize`: tasks made from tools, and edited ones checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ...errors import ConfigError
from ..failing import RESUMABLE, clean_errors
from ..options import Command, ConnectTimeout, Debug, LimitSettings, Seed, Tools
from ..synthesis_options import (
    Attempts,
    Check,
    Count,
    Difficulty,
    MaxCalls,
    Policy,
    PolicyKey,
    Realism,
    Setups,
    To,
    Writer,
    WriterKey,
)


def synthesize(
    tools: Tools = None,
    *,
    command: Command = None,
    to: To = None,
    check: Check = None,
    count: Count = 100,
    max_calls: MaxCalls = 4,
    setup: Setups = None,
    writer: Writer = None,
    writer_key: WriterKey = None,
    policy: Policy = None,
    policy_key: PolicyKey = None,
    attempts: Attempts = 4,
    difficulty: Difficulty = None,
    min_realism: Realism = 0.6,
    limit: LimitSettings = None,
    seed: Seed = 0,
    connect_timeout: ConnectTimeout = 20.0,
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
        if check is not None:
            _check((tools, command), check, connect_timeout)
            return
        models = {"writer": (writer, writer_key), "policy": (policy, policy_key)}
        plain = {"to": to, "max_calls": max_calls, "attempts": attempts, "min_realism": min_realism, "seed": seed}
        plain["connect_timeout_s"] = connect_timeout
        _make((tools, command), count, models, (setup, difficulty, limit), plain)


def _make(words: tuple[Any, Any], count: int, models: dict[str, Any], texts: tuple[Any, Any, Any], plain: Any) -> None:
    from ...progress import Console
    from .. import synthesis_options
    from ..quiet import quiet_libraries
    from ..settings import limits
    from ..sources import tool_source

    quiet_libraries()
    progress = Console()
    setup, difficulty, limit = texts
    options: dict[str, Any] = {
        "setups": synthesis_options.setups(setup),
        "difficulty": synthesis_options.difficulty(difficulty),
        "limits": limits(limit or []),
        **{name: synthesis_options.model(model, key, name) for name, (model, key) in models.items()},
    }
    source = tool_source(*words)

    from ...blocking import synthesize

    made = synthesize(source, count, progress=progress, **options, **plain)
    if not made.tasks:
        raise ConfigError(str(made))
    typer.echo(str(made))


def _check(words: tuple[Any, Any], file: Path, connect_timeout_s: float) -> None:
    from ...progress import Console
    from ..quiet import quiet_libraries
    from ..sources import tool_source

    quiet_libraries()
    source = tool_source(*words)

    from ...blocking import check_tasks

    found = check_tasks(source, file, connect_timeout_s=connect_timeout_s, progress=Console())
    found.require_all()
    typer.echo(str(found))
