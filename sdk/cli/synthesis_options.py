"""The options of `toolbake synthesize`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from .options import finite

_MODELS = (
    "a model folder, a name on the hub, 'embedded', an endpoint with its model (https://host/v1#large-1), or an agent"
)

To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE.jsonl",
        show_default="none: give it, or --check",
        help="Where the tasks are written. The same command again goes on from what stands beside it.",
    ),
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="FILE",
        show_default="none: tasks are made",
        help="Make nothing: play the tasks in this file again, as people have edited them, and name every problem with "
        "its line and its fix.",
    ),
]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="How many tasks.")]
MaxCalls = Annotated[int, typer.Option("--max-calls", min=1, help="The most calls of a right solution.")]
Setups = Annotated[
    list[str] | None,
    typer.Option(
        "--setup",
        metavar="JSON",
        show_default='{"seed": 1} to {"seed": 24}',
        help="A world to make tasks in, such as '{\"seed\": 7}'. May be given several times.",
    ),
]
Writer = Annotated[
    str | None,
    typer.Option(
        "--writer", metavar="MODEL", show_default="none: templates", help=f"Who words the requests: {_MODELS}."
    ),
]
WriterKey = Annotated[
    str | None,
    typer.Option("--writer-key", metavar="VARIABLE", show_default="none", help="The variable with its endpoint's key."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="MODEL",
        show_default="none: rules alone",
        help=f"Who tries every task, to find ambiguous ones and to measure difficulty: {_MODELS}.",
    ),
]
PolicyKey = Annotated[
    str | None,
    typer.Option("--policy-key", metavar="VARIABLE", show_default="none", help="The variable with its endpoint's key."),
]
Attempts = Annotated[int, typer.Option("--attempts", min=1, help="How often the policy tries each task.")]
Difficulty = Annotated[
    str | None,
    typer.Option(
        "--difficulty",
        metavar="LOW,HIGH",
        show_default="any",
        help="Keep tasks whose share of right attempts lies between these, such as 0.1,0.9.",
    ),
]
Realism = Annotated[
    float,
    typer.Option(
        "--min-realism",
        min=0.0,
        max=1.0,
        callback=finite,
        help="The least score for names that fit, length, and values that people say. It does not judge sense.",
    ),
]


def setups(given: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """The worlds' setups. Raises `ConfigError` for what is no JSON object."""
    found = []
    for text in given or []:
        try:
            setup = json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"--setup is {text!r}, which is no JSON ({error}); write for example {_EXAMPLE}"
            ) from None
        if not isinstance(setup, dict):
            raise ConfigError(f"--setup is {text!r}; it must be an object, such as {_EXAMPLE}")
        found.append(setup)
    return found or None


_EXAMPLE = """'{"seed": 7}'"""


def difficulty(given: str | None) -> tuple[float, float] | None:
    """Two shares. Raises `ConfigError`."""
    if given is None:
        return None
    try:
        low, high = (float(part) for part in given.split(","))
    except ValueError:
        raise ConfigError(f"--difficulty is {given!r}; give two shares, such as 0.1,0.9") from None
    return low, high


def model(given: str | None, key: str | None, option: str) -> Any:
    """What `sdk.synthesize` takes as writer or policy, by the words of `--OPTION` and `--OPTION-key`.

    Raises `ConfigError`.
    """
    from .evaluation_options import policy
    from .sources import key_from

    if given is None:
        if key is not None:
            raise ConfigError(f"--{option}-key does nothing without --{option}; give the model, or leave it out")
        return None
    found = policy(given, f"--{option}")
    if key is not None:
        if not isinstance(found, dict):
            raise ConfigError(f"--{option}-key is for an endpoint, and --{option} {given} is none; leave the key out")
        found["api_key"] = key_from(key, f"--{option}-key")
    return "embedded" if found is None else found
