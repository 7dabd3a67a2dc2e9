"""`toolbake certify`: policies that do not do the tasks try to earn a verifier's reward."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .. import options

HOLES = 3

MostTasks = Annotated[int, options.opt("--most-tasks N", "Try at most so many of the tasks, spread over them.", min=1)]
Allow = Annotated[
    list[str] | None,
    options.opt(
        "--allow PROBE",
        "A probe that may be rewarded, because what it does is right here. May be given several times.",
        default="none",
    ),
]
TrainMinutes = Annotated[
    float,
    options.opt(
        "--train-minutes MINUTES",
        "Also train a policy against the verifier for so long, with GRPO and without demonstrations. Alarms that it "
        "raises are holes. 0: none is trained, and no model is needed.",
        min=0.0,
    ),
]


def certify(
    tools: options.Tools = None,
    tasks: options.Tasks = None,
    *,
    command: options.Command = None,
    verifier: options.VerifierName,
    most_tasks: MostTasks = 24,
    allow: Allow = None,
    train_minutes: TrainMinutes = 0.0,
    model: options.LocalModel = None,
    limit: options.LimitSettings = None,
    handlers: options.HandlersName = None,
    connect_timeout: options.ConnectTimeout = 120.0,
    threshold: options.Threshold = 1.0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Look for holes in a verifier: let policies that do not do the tasks try to earn its reward.

    Some answer nothing, always the same, the prompt, everything that the tools return, or address the scorer. Others
    begin with the tasks' own solutions: they play another task's, list the answers of several tasks, answer right
    without a call, or solve a task and damage the world. What they earn, training would find. The demonstrations
    themselves must be rewarded. Of tools that are not simulated, only those that are marked as read-only are called.

    Exit codes: 0 no hole was found, 1 an error, also one that ended the training, 3 a hole was found.

    Examples:
      toolbake certify mcp.json tasks.jsonl --verifier checks.py:verify
      toolbake certify --command 'python server.py' tasks.jsonl --verifier expected --most-tasks 100 --json
      toolbake certify mcp.json tasks.jsonl --verifier checks.py:verify --allow echoes --train-minutes 5
    """
    from ...process import printing_to_stderr
    from ..sources import load_handlers, load_verifier, place_arguments, task_source, tool_source

    bounds = options.limits(limit or [])
    tools, tasks = place_arguments(tools, tasks, command)
    source, prompts = tool_source(tools, command), task_source(tasks)
    judge = load_verifier(verifier, prompts)
    asked = load_handlers(handlers)

    from ...blocking import certify
    from ...errors import ToolbakeError

    with printing_to_stderr():
        certificate = certify(
            source,
            prompts,
            judge,
            most_tasks=most_tasks,
            threshold=threshold,
            allow=allow or [],
            train_minutes=train_minutes,
            model=model,
            limits=bounds,
            handlers=asked,
            connect_timeout_s=connect_timeout,
            progress=options.progress_of(quiet),
        )
    typer.echo(json.dumps(certificate.as_json(), indent=2) if as_json else str(certificate))
    if certificate.holes:
        raise typer.Exit(HOLES)
    if certificate.unknown:
        raise ToolbakeError(certificate.unknown)
