"""`toolbake distill`: verified rollouts as a supervised data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...errors import ConfigError
from .. import options
from ..failing import RESUMABLE, when_interrupted

To = Annotated[Path, options.opt("--to FILE", "The new file: JSON lines, as TRL's SFTTrainer reads.")]
Licence = Annotated[str, options.opt("--licence NAME", "What the examples may be used under; written into each.")]
Run = Annotated[
    Path | None,
    options.opt(
        "--run FOLDER",
        "Take the rollouts of this finished run of train or evaluate, in place of TASKS and --verifier.",
        default="none: the model plays TASKS",
    ),
]
Stage = Annotated[str | None, options.opt("--stage NAME", "Which rollouts of the run.", default="grpo, or evaluation")]
Verifier = Annotated[
    str | None,
    options.opt(
        "--verifier FILE.py:NAME|expected",
        "What counts as a success where TASKS are played.",
        default="none: those of --run are judged",
    ),
]
Samples = Annotated[int, options.sampling_opt("--samples", "Conversations for each task.", min=1)]
PerTask = Annotated[int, options.opt("--per-task N", "At most so many examples of one task, the shortest.", min=1)]


def distill(
    tools: options.Tools = None,
    tasks: options.Tasks = None,
    *,
    command: options.Command = None,
    to: To,
    licence: Licence,
    run: Run = None,
    stage: Stage = None,
    verifier: Verifier = None,
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    api_key_env: options.EndpointKey = None,
    samples: Samples = 4,
    per_task: PerTask = 1,
    limit: options.LimitSettings = None,
    handlers: options.HandlersName = None,
    connect_timeout: options.ConnectTimeout = 120.0,
    concurrency: options.Concurrency = 64,
    temperature: options.Temperature = 1.0,
    strict_tools: options.StrictTools = None,
    seed: options.Seed = 0,
    threshold: options.Threshold = 1.0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write the rollouts that a verifier passed as a supervised data set.

    They come from a finished run (--run), or a model plays the tasks. No two examples are alike, and of each task the
    shortest are kept. The measurements of a training run are left out: their tasks are held out. What is played is kept
    in a run folder beside FILE, FILE.work, and the same command goes on from there where it was stopped.

    Examples:
      toolbake distill mcp.json --run runs/desk --to desk-sft.jsonl --licence apache-2.0
      toolbake distill mcp.json tasks.jsonl --verifier checks.py:verify --endpoint https://host/v1 --model large-1 \\
        --to taught.jsonl --licence apache-2.0
    """
    if run is None:
        when_interrupted(RESUMABLE)
    from ...process import printing_to_stderr
    from ..sources import load_handlers, load_verifier, model_source, place_arguments, task_source, tool_source

    progress = options.progress_of(quiet)
    bounds = options.limits(limit or [])
    tools, tasks = place_arguments(tools, tasks, command)
    if (tasks is None) == (run is None):
        both = "both" if run is not None else "neither"
        raise ConfigError(f"give TASKS or --run FOLDER, exactly one of them; this has {both}")
    source = tool_source(tools, command)
    prompts = task_source(tasks) if tasks is not None else None
    judge = load_verifier(verifier, prompts or []) if verifier is not None else None
    policy = model_source(model, endpoint, api_key_env, say=progress.say)
    asked = load_handlers(handlers)

    from ...blocking import distill

    with printing_to_stderr():
        data = distill(
            run,
            tools=source,
            to=to,
            licence=licence,
            prompts=prompts,
            verifier=judge,
            model=policy,
            stage=stage,
            samples=samples,
            temperature=temperature,
            strict_tools=strict_tools,
            threshold=threshold,
            per_task=per_task,
            limits=bounds,
            handlers=asked,
            connect_timeout_s=connect_timeout,
            concurrency=concurrency,
            seed=seed,
            progress=progress,
        )
    if as_json:
        chosen = data.selection
        left_out = {name: value for name, value in vars(chosen).items() if name != "kept"}
        typer.echo(json.dumps({"file": str(data.path), "examples": len(chosen.kept), "left_out": left_out}))
    else:
        typer.echo(str(data))
