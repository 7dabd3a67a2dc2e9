"""`toolbake doctor`: is everything ready for a training, and what is to be done first?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ToolbakeError
from ..failing import clean_errors
from ..options import AsJson, Command, ConnectTimeout, Debug, HandlersName, LocalModel, Quiet, Tools

if TYPE_CHECKING:
    from ...progress import Progress
    from ..checkup import Advice, Checkup

TaskFile = Annotated[
    str | None, typer.Option("--tasks", metavar="FILE", show_default="none", help="The tasks to train on, checked too.")
]
VerifierOfRun = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        metavar="FILE.py:NAME|expected",
        show_default="none",
        help="The verifier, checked too: gold solutions must earn its reward, and degenerate policies must not.",
    ),
]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default="none",
        help="The settings of the training, checked too: who computes where, GPUs, memory and vLLM.",
    ),
]


def doctor(
    tools: Tools = None,
    *,
    command: Command = None,
    tasks: TaskFile = None,
    verifier: VerifierOfRun = None,
    model: LocalModel = None,
    config: ConfigFile = None,
    handlers: HandlersName = None,
    connect_timeout: ConnectTimeout = 120.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check all that a training needs, and say what to do, what matters most first.

    Without arguments: cores, memory, disk, GPU, extras and versions. With TOOLS: whether they connect, what training
    refuses, whether each rollout gets a fresh world that can tell its state, and what the tools cost in tokens. With
    --tasks: whether they load, how many families there are, and whether their gold solutions hold. With --verifier:
    whether policies that do not do the task earn its reward. With --config: who would compute where.

    To find out whether rollouts share state, it opens two worlds of tools that are not simulated and writes to one,
    with a task's own calls or made-up ones. It calls no destructive tool, and none to write with that says that it
    reaches an open world. A source that allow_shared_state names is left alone.

    Exit codes: 0 nothing must be fixed, 1 something must.

    Examples:
      toolbake doctor
      toolbake doctor mcp.json --tasks tasks.jsonl --verifier expected
    """
    with clean_errors(debug):
        from ..options import progress_of
        from ..process import printing_to_stderr, quiet_libraries
        from ..sources import load_handlers

        quiet_libraries()
        asked = load_handlers(handlers)
        with printing_to_stderr():
            found = examine(
                (tools, command), tasks, verifier, model, (asked, connect_timeout), progress_of(quiet), config
            )
        typer.echo(found.as_json() if as_json else str(found))
        if found.problems:
            raise typer.Exit(1)


def examine(
    words: tuple[str | None, str | None],
    tasks: str | None,
    verifier: str | None,
    model: str | None,
    reach: tuple[Any, float],
    progress: Progress,
    config: Path | None = None,
) -> Checkup:
    """Every check that these arguments allow. What cannot be loaded is a finding, and the other checks go on."""
    import anyio

    from ..checkup import (
        Advice,
        Checkup,
        check_machine,
        check_packages,
        check_plan,
        check_reward,
        check_task_file,
        check_tools,
    )

    found = [*check_machine(model), *check_packages(model), *(check_plan(model, config) if config is not None else ())]
    missing = {"tools": words == (None, None), "tasks": tasks is None, "verifier": verifier is None}
    source, prompts, judge = (_loaded(area, words, tasks, verifier, found) for area in missing)
    if source is not None:
        found += anyio.run(check_tools, source, model, *reach, prompts, config)
    unusable = any(one.worth == 1 and one.level == "problem" for one in found)
    if prompts is not None:
        found += anyio.run(check_task_file, prompts, None if unusable else source, judge, reach[1], progress, config)
    unusable = unusable or any(one.area == "tasks" and one.worth == 5 and one.level == "problem" for one in found)
    if judge is not None and prompts is not None and source is not None and not unusable:
        found += anyio.run(check_reward, judge, prompts, source, reach, progress)
    if any(missing.values()):
        wanted = {"tools": "TOOLS", "tasks": "--tasks FILE", "verifier": "--verifier FILE.py:NAME"}
        fix = (
            f"give {', '.join(wanted[area] for area, lacks in missing.items() if lacks)} to this command, to check them"
        )
        found.append(
            Advice("project", "advice", f"not checked: {', '.join(a for a, m in missing.items() if m)}", fix, 90)
        )
    given = {"TOOLS": _typed(*words), "TASKS": _typed(tasks), "VERIFIER": _typed(verifier)}
    return Checkup([replace(one, do=_filled(one.do, given)) for one in found])


def _typed(word: str | None, command: str | None = None) -> str | None:
    """A word of the command line as it is typed; None where none was given."""
    if command is not None:
        return f"--command {shlex.quote(command)}"
    return None if word is None else shlex.quote(word)


def _filled(text: str, given: Mapping[str, str | None]) -> str:
    """`text` with the words of the command line, as far as they were given."""
    for name, word in given.items():
        text = text.replace(f"{{{name}}}", word or name)
    return text


def _loaded(
    area: str, words: tuple[str | None, str | None], tasks: str | None, verifier: str | None, found: list[Advice]
) -> Any:
    """Tools, tasks or verifier as the functions of `sdk` take them; None, and a finding, where that cannot be."""
    from ..checkup import Advice
    from ..sources import load_verifier, task_source, tool_source

    try:
        if area == "tools":
            return tool_source(*words) if words != (None, None) else None
        if area == "tasks":
            return task_source(tasks) if tasks is not None else None
        return load_verifier(verifier) if verifier is not None else None
    except ToolbakeError as error:
        found.append(Advice(area, "problem", str(error), f"correct the {area}: {error}", 1 if area == "tools" else 5))
        return None
