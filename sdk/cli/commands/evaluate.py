"""`toolbake evaluate` and `toolbake report`: measure models on tasks, without training, and write the report again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import ConfigError
from .. import options
from ..failing import RESUMABLE, when_interrupted

Policies = Annotated[
    list[str] | None,
    options.model_opt(
        "--policy NAME=MODEL",
        "One of several policies to compare, under a name of your own: a model folder, a name on the hub, 'embedded', "
        "an endpoint with its model (https://host/v1#large-1), or an agent in Python (file.py:agent). May be given "
        "several times, in place of --model.",
        default="none: --model alone is measured",
    ),
]
PolicyKeys = Annotated[
    list[str] | None,
    options.model_opt(
        "--policy-key NAME=VARIABLE",
        "The environment variable that holds the key of that policy's endpoint.",
        default="none: no key is sent",
    ),
]
PolicyPrompts = Annotated[
    list[str] | None,
    options.model_opt(
        "--policy-prompt NAME=FILE",
        "A text file with the system prompt of that policy's endpoint, sent before all that a task says.",
        default="none: what the tasks say",
    ),
]
Baseline = Annotated[
    str | None, options.report_opt("--baseline NAME", "What the others are compared with.", default="the first")
]
ToolPrompts = Annotated[
    list[str] | None,
    options.model_opt(
        "--tool-prompt full|names|none",
        "How much of the tools the prompt shows: full schemas, names only, or nothing. Each is a condition of its "
        "own. May be given several times.",
        default="as each model was trained",
    ),
]
Samples = Annotated[
    int, options.sampling_opt("--samples", "Conversations for each task, for pass@k and pass^k.", min=1)
]
Split = Annotated[
    str | None,
    options.opt(
        "--split train|validation|heldout",
        "Only the tasks with this split tag: choose on validation, report on heldout.",
        default="all tasks",
    ),
]
Prices = Annotated[
    list[str] | None,
    options.report_opt(
        "--price NAME=IN,OUT",
        "What a million tokens of that policy cost, in prompts and sampled. May be given several times.",
        default="none: cost is not reported",
    ),
]


def prices(given: Sequence[str] | None) -> dict[str, tuple[float, float]]:
    """Prices by name. Raises `ConfigError`."""
    found = {}
    for name, value in options.named_values(given, "--price").items():
        try:
            into, out = (float(number) for number in value.split(","))
        except ValueError:
            raise ConfigError(
                f"--price {name}={value}: give two numbers, of a million tokens in prompts and sampled: {name}=0.4,1.6"
            ) from None
        found[name] = (into, out)
    return found


def policies(
    given: Sequence[str] | None,
    keys: Sequence[str] | None,
    prompts: Sequence[str] | None = None,
    *,
    alone: Any,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """What `sdk.evaluate` takes as model or models.

    `alone`: the words of --model, --endpoint and --api-key-env. Raises `ConfigError` where both kinds are given, or a
    key or prompt has no endpoint.
    """
    from ..sources import key_from, model_source, policy_source

    model, endpoint, key_variable = alone
    variables, files = options.named_values(keys, "--policy-key"), options.named_values(prompts, "--policy-prompt")
    if not given:
        if variables:
            raise ConfigError("--policy-key does nothing without --policy; with --endpoint use --api-key-env")
        if files:
            raise ConfigError("--policy-prompt does nothing without --policy; name the endpoint as a policy")
        return {"model": model_source(model, endpoint, key_variable, say=say)}
    if model is not None or endpoint is not None or key_variable is not None:
        raise ConfigError(
            "--policy and --model or --endpoint are both given; name every policy, such as "
            "--policy tuned=runs/first/model"
        )
    named = {name: policy_source(value, "--policy") for name, value in options.named_values(given, "--policy").items()}
    for name, variable in variables.items():
        source = _endpoint(named, name, "--policy-key")
        source["api_key"] = key_from(variable, "--policy-key")
    for name, file in files.items():
        source = _endpoint(named, name, "--policy-prompt")
        try:
            source["system"] = Path(file).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--policy-prompt: {file} cannot be read: {error}; give a text file in UTF-8") from None
    return {"models": named}


def _endpoint(named: Mapping[str, Any], name: str, option: str) -> dict[str, Any]:
    source = named.get(name)
    if not isinstance(source, dict):
        endpoints = ", ".join(n for n, other in named.items() if isinstance(other, dict)) or "none"
        raise ConfigError(f"{option} names {name!r}, which is not an endpoint; the endpoints are {endpoints}")
    return source


# ---------------------------------------------------------------------------------------------------------------------

OutputDir = Annotated[
    Path | None,
    options.report_opt(
        "--output-dir FOLDER",
        "Keep every rollout, the report and its pictures here; a run that was stopped goes on from it.",
        default="none: nothing is kept",
    ),
]


def evaluate(
    tools: options.Tools = None,
    tasks: options.Tasks = None,
    *,
    command: options.Command = None,
    verifier: options.VerifierName,
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    api_key_env: options.EndpointKey = None,
    policy: Policies = None,
    policy_key: PolicyKeys = None,
    policy_prompt: PolicyPrompts = None,
    baseline: Baseline = None,
    verdicts: options.VerdictFiles = None,
    tool_prompt: ToolPrompts = None,
    samples: Samples = 1,
    split: Split = None,
    price: Prices = None,
    output_dir: OutputDir = None,
    limit: options.LimitSettings = None,
    agent: options.AgentName = None,
    user_model: options.UserModel = None,
    user_key: options.UserKey = None,
    handlers: options.HandlersName = None,
    connect_timeout: options.ConnectTimeout = 120.0,
    concurrency: options.Concurrency = 64,
    temperature: options.Temperature = 0.0,
    strict_tools: options.StrictTools = None,
    seed: options.Seed = 0,
    threshold: options.Threshold = 1.0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
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
    if output_dir is not None:
        when_interrupted(RESUMABLE)
    from ...process import printing_to_stderr
    from ...traces.json_text import dump_json
    from .. import sources

    progress = options.progress_of(quiet)
    named = policies(policy, policy_key, policy_prompt, alone=(model, endpoint, api_key_env), say=progress.say)
    named |= {"tool_prompts": tool_prompt or None, "split": split}
    priced, judged = prices(price), options.named_values(verdicts, "--verdicts")
    program, asked = sources.agent_source(agent), sources.load_handlers(handlers)
    user = sources.user_source(user_model, user_key)
    bounds = options.limits(limit or [])
    tools, tasks = sources.place_arguments(tools, tasks, command)
    source, prompts = sources.tool_source(tools, command), sources.task_source(tasks)
    judge = sources.load_verifier(verifier, prompts)

    from ...blocking import evaluate

    with printing_to_stderr():
        report = evaluate(
            source,
            prompts,
            judge,
            **named,
            baseline=baseline,
            verdicts=judged,
            prices=priced,
            samples=samples,
            output_dir=output_dir,
            limits=bounds,
            agent=program,
            user_model=user,
            handlers=asked,
            connect_timeout_s=connect_timeout,
            concurrency=concurrency,
            temperature=temperature,
            strict_tools=strict_tools,
            seed=seed,
            success_threshold=threshold,
            progress=progress,
        )
    if as_json:
        typer.echo(dump_json(report, indent=2))
        return
    typer.echo(str(report))
    if output_dir is not None:
        typer.echo(f"\nreport    {output_dir / 'report.md'}")


# ---------------------------------------------------------------------------------------------------------------------


def report(
    runs: Annotated[
        list[Path],
        options.arg(
            "RUN",
            "The output_dir of a finished evaluation or training. Several, such as those of several seeds, are one: "
            "each is a further try at the same tasks.",
        ),
    ],
    *,
    to: Annotated[
        Path | None,
        options.opt(
            "--to FOLDER",
            "Where report and pictures go. Needed for several runs.",
            default="RUN itself, where it is one",
        ),
    ] = None,
    errors: Annotated[
        bool, options.opt("--errors", "Print what went wrong first, with the rollouts that tell most.")
    ] = False,
    baseline: Baseline = None,
    price: Prices = None,
    cluster_by: Annotated[
        str | None,
        options.opt(
            "--cluster-by family|TAG",
            "What makes tasks alike, so that intervals count them as less than one each.",
            default="as the run had it",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        options.opt("--threshold", "A score that reaches this counts as a success.", default="as the run had it"),
    ] = None,
) -> None:
    """Write the report of a run again, with other prices, another baseline, threshold or clustering.

    Nothing is run: the rollouts in the folder are counted again, and what went wrong in each is found anew by rules.
    Writes report.md, report.json and pictures for slides.

    Examples:
      toolbake report runs/compared --price large=0.4,1.6 --price tuned=0.02,0.02
      toolbake report runs/first --errors
      toolbake report runs/seed-0 runs/seed-1 runs/seed-2 --to runs/three-seeds
    """
    from ...evaluation.report import report_of
    from ...evaluation.report_text import render_errors

    if len(runs) > 1 and to is None:
        raise ConfigError(f"--to is missing: the report of {len(runs)} runs needs a folder, such as --to runs/seeds")
    if to is not None and (to / "run.json").exists() and (len(runs) > 1 or to.resolve() != runs[0].resolve()):
        raise ConfigError(f"--to is {to}, a run, whose own report would be replaced; give another folder")
    found = report_of(
        *runs, prices=prices(price), cluster_by=cluster_by, success_threshold=threshold, baseline=baseline
    )
    folder = to or runs[0]
    found.draw(folder)
    found.write(folder)
    if errors:
        shown = render_errors(found.errors, most_telling=12, for_terminal=True)
        typer.echo(shown or "Every rollout was a success.")
    else:
        typer.echo(str(found))
    typer.echo(f"\nreport    {folder / 'report.md'}")
