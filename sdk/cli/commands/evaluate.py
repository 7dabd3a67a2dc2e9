"""`toolbake evaluate` and `toolbake report`: measure models on tasks, without training, and write the report again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ConfigError
from .. import options
from ..failing import RESUMABLE, STOPPED, clean_errors

if TYPE_CHECKING:
    from ...evaluation.report import Report

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME=MODEL",
        show_default="none: --model alone is measured",
        rich_help_panel=options.MODEL_PANEL,
        help="One of several policies to compare, under a name of your own: a model folder, a name on the hub, "
        "'embedded', an endpoint with its model (https://host/v1#large-1), or an agent in Python (file.py:agent). "
        "May be given several times, in place of --model.",
    ),
]
PolicyKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-key",
        metavar="NAME=VARIABLE",
        show_default="none: no key is sent",
        rich_help_panel=options.MODEL_PANEL,
        help="The environment variable that holds the key of that policy's endpoint.",
    ),
]
PolicyPrompts = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-prompt",
        metavar="NAME=FILE",
        show_default="none: what the tasks say",
        rich_help_panel=options.MODEL_PANEL,
        help="A text file with the system prompt of that policy's endpoint, sent before all that a task says.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="NAME",
        show_default="the first",
        rich_help_panel=options.REPORT_PANEL,
        help="What the others are compared with.",
    ),
]
VerdictFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--verdicts",
        metavar="NAME=FILE",
        show_default="none",
        rich_help_panel=options.REPORT_PANEL,
        help='A baseline that was judged elsewhere: lines such as {"task": "t7", "score": 1}. May be given several '
        "times; the first is the baseline, unless --baseline names another.",
    ),
]
ToolPrompts = Annotated[
    list[str] | None,
    typer.Option(
        "--tool-prompt",
        metavar="full|names|none",
        show_default="as each model was trained",
        rich_help_panel=options.MODEL_PANEL,
        help="How much of the tools the prompt shows: full schemas, names only, or nothing. Each is a condition of its "
        "own. May be given several times.",
    ),
]
Samples = Annotated[
    int,
    typer.Option(
        "--samples",
        min=1,
        rich_help_panel=options.SAMPLING_PANEL,
        help="Conversations for each task, for pass@k and pass^k.",
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="train|validation|heldout",
        show_default="all tasks",
        help="Only the tasks with this split tag: choose on validation, report on heldout.",
    ),
]
Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="NAME=IN,OUT",
        show_default="none: cost is not reported",
        rich_help_panel=options.REPORT_PANEL,
        help="What a million tokens of that policy cost, in prompts and sampled. May be given several times.",
    ),
]


def named_values(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """`NAME=VALUE` words as a mapping. Raises `ConfigError` for one without a name or given twice."""
    found: dict[str, str] = {}
    for word in given or []:
        name, sign, value = word.partition("=")
        if not (sign and name.strip() and value):
            raise ConfigError(f"{option} is {word!r}; give a name and a value, such as {_EXAMPLES[option]}")
        if name in found:
            raise ConfigError(f"{option} names {name!r} twice; keep one of them")
        found[name] = value
    return found


_EXAMPLES = {
    "--policy": "tuned=runs/first/model",
    "--policy-key": "large=HOST_KEY",
    "--policy-prompt": "large=prompt.txt",
    "--price": "large=0.4,1.6",
    "--verdicts": "gpt-4=gpt-4.jsonl",
}


def prices(given: Sequence[str] | None) -> dict[str, tuple[float, float]]:
    """Prices by name. Raises `ConfigError`."""
    found = {}
    for name, value in named_values(given, "--price").items():
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
    variables, files = named_values(keys, "--policy-key"), named_values(prompts, "--policy-prompt")
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
    named = {name: policy_source(value, "--policy") for name, value in named_values(given, "--policy").items()}
    for name, variable in variables.items():
        source = _endpoint(named, name, "--policy-key")
        source["api_key"] = key_from(variable, "--policy-key")
    for name, file in files.items():
        source = _endpoint(named, name, "--policy-prompt")
        source["system"] = _text_of(file)
    return {"models": named}


def _endpoint(named: Mapping[str, Any], name: str, option: str) -> dict[str, Any]:
    source = named.get(name)
    if not isinstance(source, dict):
        endpoints = ", ".join(n for n, other in named.items() if isinstance(other, dict)) or "none"
        raise ConfigError(f"{option} names {name!r}, which is no endpoint; the endpoints are {endpoints}")
    return source


def _text_of(file: str) -> str:
    try:
        return Path(file).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--policy-prompt: {file} cannot be read: {error}; give a text file in UTF-8") from None


# ---------------------------------------------------------------------------------------------------------------------

OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir",
        metavar="FOLDER",
        show_default="none: nothing is kept",
        rich_help_panel=options.REPORT_PANEL,
        help="Keep every rollout, the report and its pictures here; a run that was stopped goes on from it.",
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
    verdicts: VerdictFiles = None,
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
    seed: options.Seed = 0,
    threshold: options.Threshold = 1.0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
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
        from ..process import printing_to_stderr, quiet_libraries
        from ..sources import agent_source, load_handlers, user_source

        quiet_libraries()
        say = options.progress_of(quiet)
        named = policies(policy, policy_key, policy_prompt, alone=(model, endpoint, api_key_env), say=say.say)
        how = {"samples": samples, "split": split, "temperature": temperature, "seed": seed, "concurrency": concurrency}
        what: dict[str, Any] = {"baseline": baseline, "prices": prices(price)}
        what["verdicts"] = named_values(verdicts, "--verdicts")
        what |= {
            "agent": agent_source(agent),
            "user_model": user_source(user_model, user_key),
            "handlers": load_handlers(handlers),
            "connect_timeout_s": connect_timeout,
        }
        shown = {"tool_prompts": tool_prompt or None, "success_threshold": threshold, "output_dir": output_dir}
        with printing_to_stderr():
            report = _evaluated((tools, tasks, command, verifier), limit, say, {**named, **how, **what, **shown})
        if as_json:
            typer.echo(report.model_dump_json(indent=2))
            return
        typer.echo(str(report))
        if output_dir is not None:
            typer.echo(f"\nreport    {output_dir / 'report.md'}")


def _evaluated(words: tuple[Any, ...], limit: list[str] | None, progress: Any, how: dict[str, Any]) -> Report:
    from ..sources import load_verifier, place_arguments, task_source, tool_source

    first, second, command, verifier = words
    bounds = options.limits(limit or [])
    tools, tasks = place_arguments(first, second, command)
    source, prompts = tool_source(tools, command), task_source(tasks)
    judge = load_verifier(verifier, prompts)

    from ...blocking import evaluate

    return evaluate(source, prompts, judge, limits=bounds, progress=progress, **how)


# ---------------------------------------------------------------------------------------------------------------------


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="The output_dir of a finished evaluation or training. Several, such as those of several seeds, are "
            "one: each is a further try at the same tasks.",
        ),
    ],
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            show_default="RUN itself, where it is one",
            help="Where report and pictures go. Needed for several runs.",
        ),
    ] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Print what went wrong first, with the rollouts that tell most.")
    ] = False,
    baseline: Baseline = None,
    price: Prices = None,
    cluster_by: Annotated[
        str | None,
        typer.Option(
            "--cluster-by",
            metavar="family|TAG",
            show_default="as the run had it",
            help="What makes tasks alike, so that intervals count them as less than one each.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            callback=options.finite,
            show_default="as the run had it",
            help="A score that reaches this counts as a success.",
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Write the report of a run again, with other prices, another baseline, threshold or clustering.

    Nothing is run: the rollouts in the folder are counted again, and what went wrong in each is found anew by rules.
    Writes report.md, report.json and pictures for slides.

    Examples:
      toolbake report runs/compared --price large=0.4,1.6 --price tuned=0.02,0.02
      toolbake report runs/first --errors
      toolbake report runs/seed-0 runs/seed-1 runs/seed-2 --to runs/three-seeds
    """
    with clean_errors(debug):
        from ...errors import ConfigError
        from ...evaluation.report import report_of
        from ...evaluation.report_text import render_errors

        if len(runs) > 1 and to is None:
            raise ConfigError(
                f"--to is missing: the report of {len(runs)} runs needs a folder, such as --to runs/seeds"
            )
        found = report_of(
            *runs, prices=prices(price), cluster_by=cluster_by, success_threshold=threshold, baseline=baseline
        )
        folder = to or runs[0]
        found.draw(folder)
        found.write(folder)
        if errors:
            typer.echo(render_errors(found.errors, most_telling=12) or "Every rollout was a success.")
        else:
            typer.echo(str(found))
        typer.echo(f"\nreport    {folder / 'report.md'}")
