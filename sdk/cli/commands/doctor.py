"""`toolbake doctor`: is everything ready for a training, and what is to be done first?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ToolbakeError
from ..failing import clean_errors
from ..options import AsJson, Command, ConnectTimeout, Debug, HandlersName, LocalModel, Quiet, Tools

if TYPE_CHECKING:
    from ...progress import Progress
    from ..checkup import Checkup

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
            progress = progress_of(quiet)
            found = examine(tools, command, tasks, verifier, model, config, asked, connect_timeout, progress)
        typer.echo(found.as_json() if as_json else str(found))
        if found.problems:
            raise typer.Exit(1)


def examine(
    tools: str | None,
    command: str | None,
    tasks: str | None,
    verifier: str | None,
    model: str | None,
    config: Path | None,
    handlers: Any,
    connect_timeout_s: float,
    progress: Progress,
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
    from ..sources import load_verifier, task_source, tool_source

    found = [*check_machine(model), *check_packages(model), *(check_plan(model, config) if config is not None else ())]
    loading: dict[str, Callable[[], Any] | None] = {
        "tools": None if tools is None and command is None else partial(tool_source, tools, command),
        "tasks": None if tasks is None else partial(task_source, tasks),
        "verifier": None if verifier is None else partial(load_verifier, verifier),
    }
    loaded: dict[str, Any] = {}
    for area, load in loading.items():
        try:
            loaded[area] = None if load is None else load()
        except ToolbakeError as error:
            loaded[area], worth = None, 1 if area == "tools" else 5
            found.append(Advice(area, "problem", str(error), f"correct the {area}: {error}", worth))
    source, prompts, judge = loaded.values()
    if source is not None:
        found += anyio.run(check_tools, source, model, handlers, connect_timeout_s, prompts, config)
    unusable = any(one.worth == 1 and one.level == "problem" for one in found)
    if prompts is not None:
        usable = None if unusable else source
        found += anyio.run(check_task_file, prompts, usable, judge, connect_timeout_s, progress, config)
    unusable = unusable or any(one.area == "tasks" and one.worth == 5 and one.level == "problem" for one in found)
    if judge is not None and prompts is not None and source is not None and not unusable:
        found += anyio.run(check_reward, judge, prompts, source, handlers, connect_timeout_s, progress)
    if missing := [area for area, load in loading.items() if load is None]:
        wanted = {"tools": "TOOLS", "tasks": "--tasks FILE", "verifier": "--verifier FILE.py:NAME"}
        fix = f"give {', '.join(wanted[area] for area in missing)} to this command, to check them"
        found.append(Advice("project", "advice", f"not checked: {', '.join(missing)}", fix, 90))
    words = {"{TOOLS}": tools, "{TASKS}": tasks, "{VERIFIER}": verifier}
    typed = {mark: mark.strip("{}") if word is None else shlex.quote(word) for mark, word in words.items()}
    if command is not None:
        typed["{TOOLS}"] = f"--command {shlex.quote(command)}"
    return Checkup([replace(one, do=_filled(one.do, typed)) for one in found])


def _filled(text: str, typed: Mapping[str, str]) -> str:
    """`text` with the words of the command line, as far as they were given."""
    for mark, word in typed.items():
        text = text.replace(mark, word)
    return text
