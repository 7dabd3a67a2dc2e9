"""Arguments and options that several commands share, each explained once, and `NAME=VALUE` words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..progress import Progress
    from ..rollouts.limits import Limits


TOOLS_PANEL, MODEL_PANEL, SAMPLING_PANEL, REPORT_PANEL = "Tools", "Model", "Sampling", "Report"
"""Under which the help of a command shows its options."""


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
        "OpenAPI document (openapi.yaml), a cassette of toolbake record (orders.jsonl), which is replayed, or a Python "
        "object, file.py:name or package.module:name (functions with type hints, a list of them, a sandbox, an MCP "
        "server).",
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
        rich_help_panel=TOOLS_PANEL,
        help="Start this MCP server over stdio, in place of TOOLS. It is split as a shell would, but no shell runs.",
    ),
]
VerifierName = Annotated[
    str,
    typer.Option(
        "--verifier",
        metavar="FILE.py:NAME|expected",
        show_default=False,
        help="What counts as success: a function of the rollout that returns a number, a bool or an sdk.Verdict, or "
        "an object with a method verify. Also package.module:name. `expected` compares what the tasks' own field "
        "`expected` holds, without a file.",
    ),
]
HandlersName = Annotated[
    str | None,
    typer.Option(
        "--handlers",
        metavar="FILE.py:NAME",
        show_default="none: what servers ask is refused",
        rich_help_panel=TOOLS_PANEL,
        help="Who answers what MCP servers ask during calls (elicitation, sampling, roots): a mcp_bridge.Handlers. "
        "Also package.module:name.",
    ),
]
AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="FILE.py:NAME|'PROGRAM ARGS'",
        show_default="none: the model is asked and its calls are made here",
        rich_help_panel=MODEL_PANEL,
        help="An agent of your own that plays each rollout: a function of (task, endpoint), or a "
        "program, which finds the URLs of its model and of its tools in its environment. Also package.module:name.",
    ),
]


def _second_model(option: str, *, default: str, does: str) -> Any:
    """The option of a model beside the policy."""
    return typer.Option(
        option,
        metavar="MODEL",
        show_default=default,
        rich_help_panel=MODEL_PANEL,
        help=f"{does}: a folder, a name on the hub, 'embedded', or an endpoint with its model (https://host/v1#large-1).",
    )


def _key_of(model_option: str, option: str) -> Any:
    """The option of the key of such a model's endpoint."""
    return typer.Option(
        option,
        metavar="VARIABLE",
        show_default="none",
        rich_help_panel=MODEL_PANEL,
        help=f"The environment variable that holds the key of the endpoint of {model_option}.",
    )


UserModel = Annotated[
    str | None,
    _second_model(
        "--user-model",
        default="none: rules from each user's facts, or the model that it names",
        does="Plays the users of all tasks",
    ),
]
UserKey = Annotated[str | None, _key_of("--user-model", "--user-key")]
Auditor = Annotated[
    str | None,
    _second_model(
        "--auditor", default="the policy that is trained", does="Audits rollouts in training (grpo.audits_per_step)"
    ),
]
AuditorKey = Annotated[str | None, _key_of("--auditor", "--auditor-key")]
Teacher = Annotated[
    str | None,
    _second_model(
        "--teacher",
        default="none: demonstrations are searched",
        does="Plays training tasks where none has a demonstration; what the verifier pays for is the warm start",
    ),
]
TeacherKey = Annotated[str | None, _key_of("--teacher", "--teacher-key")]
ConnectTimeout = Annotated[
    float,
    typer.Option(
        "--connect-timeout",
        metavar="SECONDS",
        callback=finite,
        rich_help_panel=TOOLS_PANEL,
        help="How long a server may take to start and answer; one that is downloaded first, as by npx or docker, takes "
        'longer. "toolbake": {"connect_timeout_s": ...} in its entry of an mcp.json comes before it.',
    ),
]


def _model(help: str) -> Any:
    return typer.Option(
        "--model",
        metavar="FOLDER|NAME",
        show_default="the embedded SmolLM2-135M-Instruct",
        rich_help_panel=MODEL_PANEL,
        help=help,
    )


LocalModel = Annotated[str | None, _model("A model folder or a name on the hub.")]
Model = Annotated[str | None, _model("A model folder or a name on the hub; with --endpoint, the model's name there.")]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        show_default="none: the model runs here",
        rich_help_panel=MODEL_PANEL,
        help="Ask a model behind an OpenAI-compatible endpoint, such as https://host/v1.",
    ),
]
EndpointKey = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="VARIABLE",
        show_default="OPENAI_API_KEY where it is set",
        rich_help_panel=MODEL_PANEL,
        help="The environment variable that holds the endpoint's key; '' sends none. Keys are never options "
        "themselves: other users of a machine can read those.",
    ),
]
LimitSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        show_default="max_turns=8, max_turn_tokens=256, max_tokens=2048, max_calls=16, max_seconds=1800, "
        "reply_timeout_s=null, call_timeout_s=30, final_tools={}",
        rich_help_panel=SAMPLING_PANEL,
        help="What ends a conversation: what it may use up, or a tool that gives its final answer. May be given "
        "several times.",
    ),
]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", min=1, rich_help_panel=SAMPLING_PANEL, help="Conversations in flight at once."),
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature",
        min=0.0,
        callback=finite,
        rich_help_panel=SAMPLING_PANEL,
        help="0 takes the likeliest token every time; 1 samples as trained.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", rich_help_panel=SAMPLING_PANEL, help="What sampling depends on where the temperature is above 0."
    ),
]
Threshold = Annotated[
    float,
    typer.Option(
        "--threshold", callback=finite, rich_help_panel=REPORT_PANEL, help="A score that reaches this is a success."
    ),
]
Host = Annotated[
    str, typer.Option("--host", help="The address to listen on. One that other machines reach needs a key.")
]
ClientsKey = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="VARIABLE",
        show_default="none: no key is asked for",
        help="The environment variable that holds the key which clients must send as 'Authorization: Bearer KEY'.",
    ),
]
CallParser = Annotated[
    str | None,
    typer.Option(
        "--tool-call-parser",
        metavar="NAME",
        show_default="by the model's family",
        help="vLLM's parser of the model's calls.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress: only results and errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, for programs.")]


def http_port(meaning: str) -> Any:
    """The option `--http PORT` of a command that otherwise speaks on stdin and stdout."""
    return typer.Option(
        "--http", metavar="PORT", min=1, max=65535, show_default="none: speak on stdin and stdout", help=meaning
    )


# ---------------------------------------------------------------------------------------------------------------------


def progress_of(quiet: bool) -> Progress:
    """Bars or lines on stderr, or nothing."""
    from ..progress import Console, Silent

    return Silent() if quiet else Console()


def limits(assignments: Sequence[str]) -> Limits:
    """The limits of a rollout. Raises `ConfigError`."""
    from ..rollouts.limits import Limits

    return Limits.of(assigned(assignments, "--limit"))


def assigned(assignments: Sequence[str], option: str) -> dict[str, Any]:
    """The dotted names with their values. Raises `ConfigError` for another form than NAME=VALUE, or a name set twice.

    A value is JSON; what is not valid JSON is taken as a string, so that `grpo.loss_type=dapo` needs no quotes.
    """
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        name = name.strip()
        if not sign or not all(name.split(".")):
            raise ConfigError(f"{option} is {assignment!r}; it must look like name=value, such as {_EXAMPLES[option]}")
        if name in found:
            raise ConfigError(f"{option} sets {name!r} twice; keep one of them")
        inner = next((other for other in found if other.startswith(f"{name}.")), None)
        if inner is not None:
            raise ConfigError(f"{option} sets {inner!r}, and then {name!r} in its place; keep one of them")
        found[name] = _value(text, f"{option} {name}")
    return found


_EXAMPLES = {"--set": "grpo.max_steps=40 or limits.max_turns=6", "--limit": "max_turns=6"}


def _value(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply to be read") from None
    except ValueError:
        return text
