"""Arguments and options that several commands share, each explained once."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer


def finite(value: float | None) -> float | None:
    """A number as it was given. Refuses `nan`, to which every comparison is false, and `inf`."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number to compare with; give a finite one, such as 0.5.")
    return value


Tools = Annotated[
    str | None,
    typer.Argument(
        metavar="TOOLS",
        show_default=False,
        help="The tools: an mcp.json (the format of desktop MCP clients), the URL of a streamable HTTP server, an "
        "OpenAPI document (openapi.yaml), or a Python object, file.py:name or package.module:name (functions with "
        "type hints, a list of them, a sandbox, an MCP server).",
    ),
]
Tasks = Annotated[
    str | None,
    typer.Argument(
        metavar="TASKS",
        show_default=False,
        help="The tasks: a .jsonl, .json, .csv or .parquet file with a prompt in each row, or a Python object that "
        "is a list of them, file.py:name.",
    ),
]
Command = Annotated[
    str | None,
    typer.Option(
        "--command",
        metavar="'PROGRAM ARGS'",
        show_default=False,
        help="Start this MCP server over stdio, in place of TOOLS. It is split as a shell would, but no shell runs.",
    ),
]
VerifierName = Annotated[
    str,
    typer.Option(
        "--verifier",
        metavar="FILE.py:NAME",
        show_default=False,
        help="What counts as success: a function of the rollout that returns a number, a bool or an sdk.Verdict, or "
        "an object with a method verify. Also package.module:name.",
    ),
]
HandlersName = Annotated[
    str | None,
    typer.Option(
        "--handlers",
        metavar="FILE.py:NAME",
        show_default="none: what servers ask is refused",
        help="Who answers what MCP servers ask during calls (elicitation, sampling, roots): a mcp_bridge.Handlers. "
        "Also package.module:name.",
    ),
]
ConnectTimeout = Annotated[
    float,
    typer.Option(
        "--connect-timeout",
        metavar="SECONDS",
        callback=finite,
        help="How long a server may take to start and answer; one that is downloaded first, as by npx or docker, takes "
        'longer. "toolbake": {"connect_timeout_s": ...} in its entry of an mcp.json comes before it.',
    ),
]
LocalModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FOLDER|NAME",
        show_default="the embedded SmolLM2-135M-Instruct",
        help="A model folder or a name on the hub.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FOLDER|NAME",
        show_default="the embedded SmolLM2-135M-Instruct",
        help="A model folder or a name on the hub; with --endpoint, the model's name there.",
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        show_default="none: the model runs here",
        help="Ask a model behind an OpenAI-compatible endpoint, such as https://host/v1.",
    ),
]
EndpointKey = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="VARIABLE",
        show_default="OPENAI_API_KEY where it is set",
        help="The environment variable that holds the endpoint's key; '' sends none. Keys are never options "
        "themselves: other users of a machine can read those.",
    ),
]
LimitSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        show_default="max_turns=8, max_turn_tokens=256, max_tokens=2048, max_calls=16, max_seconds=300, "
        "reply_timeout_s=null, call_timeout_s=30",
        help="What one conversation may use up. May be given several times.",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature",
        min=0.0,
        callback=finite,
        help="0 takes the likeliest token every time; 1 samples as trained.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="What sampling depends on where the temperature is above 0.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]


def http_port(meaning: str) -> Any:
    """The option `--http PORT` of a command that otherwise speaks on stdin and stdout."""
    return typer.Option(
        "--http", metavar="PORT", min=1, max=65535, show_default="none: speak on stdin and stdout", help=meaning
    )
