"""`toolbake evaluate`: measure a model on tasks, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..evaluation_options import (
    Baseline,
    ClusterBy,
    EmbedName,
    FaultJudgeName,
    Policies,
    PolicyKeys,
    PolicyPrompts,
    Prices,
    Samples,
    Split,
    ToolPrompts,
    fault_reading,
    policies,
    prices,
)
from ..failing import RESUMABLE, STOPPED, clean_errors
from ..options import (
    Command,
    ConnectTimeout,
    Debug,
    Endpoint,
    EndpointKey,
    HandlersName,
    LimitSettings,
    Model,
    Seed,
    Tasks,
    Temperature,
    Tools,
    VerifierName,
    finite,
)

OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir",
        metavar="FOLDER",
        show_default="none: nothing is kept",
        help="Keep every rollout, the report and its pictures here; a run that was stopped goes on from it.",
    ),
]


def evaluate(
    tools: Tools = None,
    tasks: Tasks = None,
    *,
    command: Command = None,
    verifier: VerifierName,
    model: Model = None,
    endpoint: Endpoint = None,
    api_key_env: EndpointKey = None,
    policy: Policies = None,
    policy_key: PolicyKeys = None,
    policy_prompt: PolicyPrompts = None,
    baseline: Baseline = None,
    tool_prompt: ToolPrompts = None,
    samples: Samples = 1,
    split: Split = None,
    price: Prices = None,
    cluster_by: ClusterBy = "family",
    fault_judge: FaultJudgeName = None,
    embed: EmbedName = None,
    output_dir: OutputDir = None,
    limit: LimitSettings = None,
    handlers: HandlersName = None,
    connect_timeout: ConnectTimeout = 20.0,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Conversations in flight at once.")] = 64,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold", callback=finite, help="A conversation whose score reaches this counts as a success."
        ),
    ] = 1.0,
    debug: Debug = False,
) -> None:
    """Measure how often models do your tasks right, with confidence intervals, and compare them.

    Each task is one conversation in a world of its own, judged by the verifier. Use it for a baseline before training,
    or to compare a tuned model with a large one behind an endpoint on the same tasks. What breaks around the model (a
    tool's server, the network) is counted apart and is never a wrong answer.

    Examples:
      toolbake evaluate mcp.json heldout.jsonl --verifier checks.py:verify --model runs/desk/model
      toolbake evaluate mcp.json heldout.jsonl --verifier checks.py:verify --output-dir runs/compared \\
        --policy tuned=runs/desk/model --policy large=https://host/v1#large-1 --policy-key large=HOST_KEY
    """
    with clean_errors(debug, interrupted=STOPPED if output_dir is None else RESUMABLE):
        from ...progress import Console
        from ..quiet import quiet_libraries
        from ..sources import load_handlers

        quiet_libraries()
        say = Console()
        named = policies(policy, policy_key, policy_prompt, alone=(model, endpoint, api_key_env), say=say.say)
        how = {"samples": samples, "split": split, "temperature": temperature, "seed": seed, "concurrency": concurrency}
        what: dict[str, Any] = {"baseline": baseline, "prices": prices(price), "cluster_by": cluster_by}
        what |= {
            "handlers": load_handlers(handlers),
            "connect_timeout_s": connect_timeout,
            **fault_reading(fault_judge, embed),
        }
        shown = {"tool_prompts": tool_prompt or None, "success_threshold": threshold, "output_dir": output_dir}
        _evaluate((tools, tasks, command, verifier), limit, say, {**named, **how, **what, **shown})


def _evaluate(words: tuple[Any, ...], limit: list[str] | None, progress: Any, options: dict[str, Any]) -> None:
    from ..settings import limits
    from ..showing import show_report
    from ..sources import load_verifier, place_arguments, task_source, tool_source

    first, second, command, verifier = words
    bounds = limits(limit or [])
    tools, tasks = place_arguments(first, second, command)
    source, prompts, judge = tool_source(tools, command), task_source(tasks), load_verifier(verifier)

    from ...blocking import evaluate

    show_report(evaluate(source, prompts, judge, limits=bounds, progress=progress, **options))
    if (folder := options["output_dir"]) is not None:
        typer.echo(f"\nreport    {folder / 'report.md'}")
