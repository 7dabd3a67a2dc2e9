"""What `toolbake evaluate` and `toolbake report` take: policies, prices, conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME=MODEL",
        show_default="none: --model alone is measured",
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
        help="The environment variable that holds the key of that policy's endpoint.",
    ),
]
PolicyPrompts = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-prompt",
        metavar="NAME=FILE",
        show_default="none: what the tasks say",
        help="A text file with the system prompt of that policy's endpoint, sent before all that a task says.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="NAME", show_default="the first", help="What the others are compared with."),
]
ToolPrompts = Annotated[
    list[str] | None,
    typer.Option(
        "--tool-prompt",
        metavar="full|names|none",
        show_default="as each model was trained",
        help="How much of the tools the prompt shows: full schemas, names only, or nothing. Each is a condition of its "
        "own. May be given several times.",
    ),
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Conversations for each task, for pass@k and pass^k.")]
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
        help="What a million tokens of that policy cost, in prompts and sampled. May be given several times.",
    ),
]
ClusterBy = Annotated[
    str,
    typer.Option(
        "--cluster-by",
        metavar="family|TAG",
        help="What makes tasks alike, so that intervals count them as less than one each.",
    ),
]
FaultJudgeName = Annotated[
    str | None,
    typer.Option(
        "--fault-judge",
        metavar="FILE.py:NAME",
        show_default="none: rules alone",
        help="Who says what went wrong first, where rules only read words: a sdk.judging.model_faults((url, model "
        "name)), or an object with an async judge(rollout, found). Also package.module:name.",
    ),
]
EmbedName = Annotated[
    str | None,
    typer.Option(
        "--embed",
        metavar="FILE.py:NAME",
        show_default="none",
        help="A function from texts to vectors; groups faults that read alike. Also package.module:name.",
    ),
]


def fault_reading(judge: str | None, embed: str | None) -> dict[str, Any]:
    """`fault_judge` and `embed` as `sdk.evaluate` takes them. Raises `ConfigError` for names that cannot be loaded."""
    from .named_objects import load_named

    return {
        "fault_judge": None if judge is None else load_named(judge, "--fault-judge"),
        "embed": None if embed is None else load_named(embed, "--embed"),
    }


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
    from .sources import key_from, model_source

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
    named = {name: policy(value, "--policy") for name, value in named_values(given, "--policy").items()}
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


def policy(value: str, option: str) -> Any:
    """One policy as `sdk.evaluate` takes it. Raises `ConfigError`, which names `option`."""
    from .named_objects import is_named_object, load_named

    if value.startswith(("http://", "https://")):
        url, _, model = value.partition("#")
        if not model:
            raise ConfigError(
                f"{option}: the endpoint {url.partition('?')[0]} has no model; give https://host/v1#large-1"
            )
        return {"base_url": url, "model": model}
    if is_named_object(value):
        return load_named(value, option)
    return None if value == "embedded" else value
