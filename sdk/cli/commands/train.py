"""`toolbake train`: tools and tasks in, a tuned and measured model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..failing import RESUMABLE, clean_errors
from ..options import Command, ConnectTimeout, Debug, HandlersName, LocalModel, Tasks, Tools, VerifierName


def _list_settings(wanted: bool) -> None:
    if wanted:
        from ..settings import describe_settings

        typer.echo(describe_settings())
        raise typer.Exit


OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir",
        metavar="FOLDER",
        show_default="runs/ and a name derived from the options",
        help="Where everything of the run goes. A new or empty folder, or that of the same run to go on with it.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE.json", show_default="none", help="Settings of the training, as one JSON object."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        show_default="none",
        help="One setting, over the file's; the value is JSON. May be given several times. See --list-settings.",
    ),
]


def train(
    tools: Tools = None,
    tasks: Tasks = None,
    *,
    command: Command = None,
    verifier: VerifierName,
    model: LocalModel = None,
    output_dir: OutputDir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    list_settings: Annotated[  # noqa: ARG001  (its callback does the work)
        bool,
        typer.Option(
            "--list-settings",
            callback=_list_settings,
            is_eager=True,
            help="Print every setting with its default, and end.",
        ),
    ] = False,
    handlers: HandlersName = None,
    connect_timeout: ConnectTimeout = 20.0,
    debug: Debug = False,
) -> None:
    """Train a model to use your tools.

    The tasks are split into those it trains on and held-out ones. It is measured on the held-out tasks, learns from
    the demonstrations among the training tasks (the warm start), then practises: for each task it makes several
    attempts, the verifier scores them, and what scored better than its siblings is made likelier (GRPO). It is
    measured again after each stage, and ends with the weights that do best on some training tasks that were kept aside,
    those it began with included. The report says how much better it got and how sure that is. A run that was stopped
    goes on when the same command is run again.

    Examples:
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --output-dir runs/desk
      toolbake train --command 'python server.py' tasks.jsonl --verifier checks.py:verify \\
        --model Qwen/Qwen3-4B --set grpo_steps=40 --set limits.max_turns=6
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --set tool_prompt=names
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --set tool_prompt.full=0.5 \\
        --set tool_prompt.names=0.5
    """
    with clean_errors(debug, interrupted=RESUMABLE):
        from ...progress import Console
        from ..quiet import quiet_bars, quiet_libraries
        from ..settings import train_config
        from ..showing import show_result
        from ..sources import load_handlers, load_verifier, place_arguments, task_source, tool_source

        quiet_libraries()
        options = train_config(config, settings or [])
        tools, tasks = place_arguments(tools, tasks, command)
        source, prompts, judge = tool_source(tools, command), task_source(tasks), load_verifier(verifier)
        asked = load_handlers(handlers)
        progress = Console()
        quiet_bars()

        from ...blocking import train

        reach = {"handlers": asked, "connect_timeout_s": connect_timeout}
        show_result(train(source, prompts, judge, model, output_dir, options, progress=progress, **reach))
