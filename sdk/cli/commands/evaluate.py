"""`toolbake evaluate`: measure a model on tasks, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..failing import RESUMABLE, STOPPED, clean_errors
from ..options import (
    Command,
    Debug,
    Endpoint,
    EndpointKey,
    LimitSettings,
    Model,
    Seed,
    Tasks,
    Temperature,
    Tools,
    VerifierName,
)


def evaluate(
    tools: Tools = None,
    tasks: Tasks = None,
    *,
    command: Command = None,
    verifier: VerifierName,
    model: Model = None,
    endpoint: Endpoint = None,
    api_key_env: EndpointKey = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            metavar="FOLDER",
            show_default="none: nothing is kept",
            help="Keep every rollout and the report here; a run that was stopped goes on from it.",
        ),
    ] = None,
    limit: LimitSettings = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Conversations in flight at once.")] = 64,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    threshold: Annotated[
        float, typer.Option("--threshold", help="A conversation whose score reaches this counts as a success.")
    ] = 1.0,
    debug: Debug = False,
) -> None:
    """Measure how often a model does your tasks right, with a confidence interval.

    Each task is one conversation in a world of its own, judged by the verifier. Use it for a baseline before
    training, to compare models, or for a large model behind an endpoint on the same tasks. What breaks around the
    model (a tool's server, the network) is counted apart and is never a wrong answer.

    Examples:
      toolbake evaluate mcp.json heldout.jsonl --verifier checks.py:verify --model runs/desk/model
      toolbake evaluate mcp.json heldout.jsonl --verifier checks.py:verify \\
        --endpoint https://host/v1 --model large-1 --api-key-env HOST_KEY
    """
    with clean_errors(debug, interrupted=STOPPED if output_dir is None else RESUMABLE):
        from ...progress import Console
        from ..quiet import quiet_libraries
        from ..settings import limits
        from ..showing import show_report
        from ..sources import load_verifier, model_source, place_arguments, task_source, tool_source

        quiet_libraries()
        progress = Console()
        bounds = limits(limit or [])
        policy = model_source(model, endpoint, api_key_env, say=progress.say)
        tools, tasks = place_arguments(tools, tasks, command)
        source, prompts, judge = tool_source(tools, command), task_source(tasks), load_verifier(verifier)

        from ...blocking import evaluate

        report = evaluate(
            source,
            prompts,
            judge,
            model=policy,
            output_dir=output_dir,
            limits=bounds,
            concurrency=concurrency,
            temperature=temperature,
            seed=seed,
            success_threshold=threshold,
            progress=progress,
        )
        show_report(report)
        if output_dir is not None:
            typer.echo(f"\nreport    {output_dir / 'report.md'}")
