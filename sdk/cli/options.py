"""Arguments and options that several commands share, each explained once, and `NAME=VALUE` words."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..progress import Progress
    from ..rollouts.limits import Limits


def opt(form: str, help: str, *, default: str | bool = True, panel: str | None = None, **bounds: Any) -> Any:
    """An option. `form`: its names, then what stands for its value, as "--count,-n" and "--set NAME=VALUE". `default`:
    what is shown where it is not given; True shows the value itself, False nothing. `bounds`: as `typer.Option`."""
    names, _, metavar = form.partition(" ")
    return typer.Option(
        *names.split(","),
        metavar=metavar or None,
        help=help,
        show_default=default,
        rich_help_panel=panel,
        **{"callback": _finite, **bounds},
    )


def arg(metavar: str, help: str, *, default: str | bool = True) -> Any:
    """An argument, as `opt`."""
    return typer.Argument(metavar=metavar, help=help, show_default=default)


tools_opt, model_opt, sampling_opt, report_opt = (
    functools.partial(opt, panel=panel) for panel in ("Tools", "Model", "Sampling", "Report")
)


def _finite(value: Any) -> Any:
    """What was given. Refuses `nan`, to which every comparison is false, and `inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number to compare with; give a finite one, such as 0.5.")
    return value


Tools = Annotated[
    str | None,
    arg(
        "TOOLS",
        "The tools: an mcp.json (the format of desktop MCP clients), the URL of a streamable HTTP server, an OpenAPI "
        "document (openapi.yaml), a cassette of toolbake record (orders.jsonl), which is replayed, or a Python "
        "object, file.py:name or package.module:name (functions with type hints, a list of them, a sandbox, an MCP "
        "server).",
        default=False,
    ),
]
ServerTools = Annotated[
    str | None,
    arg(
        "TOOLS",
        "The MCP server: an mcp.json (the format of desktop MCP clients), the URL of a streamable HTTP server, or a "
        "server object in Python, file.py:name.",
        default=False,
    ),
]
Tasks = Annotated[
    str | None,
    arg(
        "TASKS",
        "The tasks: a .jsonl, .json, .csv or .parquet file with a prompt in each row, or a Python object that is a "
        "list of them, file.py:name.",
        default=False,
    ),
]
Command = Annotated[
    str | None,
    tools_opt(
        "--command 'PROGRAM ARGS'",
        "Start this MCP server over stdio, in place of TOOLS. It is split as a shell would, but no shell runs.",
        default=False,
    ),
]
VerifierName = Annotated[
    str,
    opt(
        "--verifier FILE.py:NAME|expected",
        "What counts as success: a function of the rollout that returns a number, a bool or an sdk.Verdict, or an "
        "object with a method verify. Also package.module:name. `expected` compares what the tasks' own field "
        "`expected` holds, without a file.",
        default=False,
    ),
]
HandlersName = Annotated[
    str | None,
    tools_opt(
        "--handlers FILE.py:NAME",
        "Who answers what MCP servers ask during calls (elicitation, sampling, roots): a mcp_bridge.Handlers. Also "
        "package.module:name.",
        default="none: what servers ask is refused",
    ),
]
AgentName = Annotated[
    str | None,
    model_opt(
        "--agent FILE.py:NAME|'PROGRAM ARGS'",
        "An agent of your own that plays each rollout: a function of (task, endpoint), or a program, which finds the "
        "URLs of its model and of its tools in its environment. Also package.module:name.",
        default="none: the model is asked and its calls are made here",
    ),
]


A_MODEL = "a folder, a name on the hub, 'embedded', or an endpoint with its model (https://host/v1#large-1)"


def _key_of(model_option: str, option: str) -> Any:
    """The option of the key of such a model's endpoint."""
    meaning = f"The environment variable that holds the key of the endpoint of {model_option}."
    return model_opt(f"{option} VARIABLE", meaning, default="none")


UserModel = Annotated[
    str | None,
    model_opt(
        "--user-model MODEL",
        f"Plays the users of all tasks: {A_MODEL}.",
        default="none: rules from each user's facts, or the model that it names",
    ),
]
UserKey = Annotated[str | None, _key_of("--user-model", "--user-key")]
Auditor = Annotated[
    str | None,
    model_opt(
        "--auditor MODEL",
        f"Audits rollouts in training (audits.per_step): {A_MODEL}.",
        default="the policy that is trained",
    ),
]
AuditorKey = Annotated[str | None, _key_of("--auditor", "--auditor-key")]
Teacher = Annotated[
    str | None,
    model_opt(
        "--teacher MODEL",
        "Plays training tasks where none has a demonstration; what the verifier pays for is the warm start: "
        f"{A_MODEL}.",
        default="none: demonstrations are searched",
    ),
]
TeacherKey = Annotated[str | None, _key_of("--teacher", "--teacher-key")]
ConnectTimeout = Annotated[
    float,
    tools_opt(
        "--connect-timeout SECONDS",
        "How long a server may take to start and answer; one that is downloaded first, as by npx or docker, takes "
        'longer. "toolbake": {"connect_timeout_s": ...} in its entry of an mcp.json comes before it.',
    ),
]


_model = functools.partial(model_opt, "--model FOLDER|NAME", default="the embedded SmolLM2-135M-Instruct")
LocalModel = Annotated[str | None, _model("A model folder or a name on the hub.")]
Model = Annotated[str | None, _model("A model folder or a name on the hub; with --endpoint, the model's name there.")]
Endpoint = Annotated[
    str | None,
    model_opt(
        "--endpoint URL",
        "Ask a model behind an OpenAI-compatible endpoint, such as https://host/v1.",
        default="none: the model runs here",
    ),
]
EndpointKey = Annotated[
    str | None,
    model_opt(
        "--api-key-env VARIABLE",
        "The environment variable that holds the endpoint's key; '' sends none. Keys are never options themselves: "
        "other users of a machine can read those.",
        default="OPENAI_API_KEY where it is set",
    ),
]
LimitSettings = Annotated[
    list[str] | None,
    sampling_opt(
        "--limit NAME=VALUE",
        "What ends a conversation: what it may use up, or a tool that gives its final answer. May be given several "
        "times.",
        default="max_turns=8, max_turn_tokens=256, max_tokens=2048, max_calls=16, max_seconds=1800, "
        "reply_timeout_s=null, call_timeout_s=30, final_tools={}",
    ),
]
Concurrency = Annotated[int, sampling_opt("--concurrency", "Conversations in flight at once.", min=1)]
Temperature = Annotated[
    float, sampling_opt("--temperature", "0 takes the likeliest token every time; 1 samples as trained.", min=0.0)
]
StrictTools = Annotated[
    bool | None,
    sampling_opt(
        "--strict-tools/--no-strict-tools",
        "Hold calls to the tools and their schemas while they are sampled, as for clients that set strict: true.",
        default="as each model was measured by its training",
    ),
]
Seed = Annotated[int, sampling_opt("--seed", "What sampling depends on where the temperature is above 0.")]
VerdictFiles = Annotated[
    list[str] | None,
    report_opt(
        "--verdicts NAME=FILE",
        'A baseline that was judged elsewhere: lines such as {"task": "t7", "score": 1}. May be given several '
        "times; the first is that of an evaluation, unless --baseline names another.",
        default="none",
    ),
]
Threshold = Annotated[float, report_opt("--threshold", "A score that reaches this is a success.")]
Host = Annotated[str, opt("--host", "The address to listen on. One that other machines reach needs a key.")]
ClientsKey = Annotated[
    str | None,
    opt(
        "--api-key-env VARIABLE",
        "The environment variable that holds the key which clients must send as 'Authorization: Bearer KEY'.",
        default="none: no key is asked for",
    ),
]
CallParser = Annotated[
    str | None, opt("--tool-call-parser NAME", "vLLM's parser of the model's calls.", default="by the model's family")
]
Quiet = Annotated[bool, opt("--quiet,-q", "Show no progress: only results and errors.")]
AsJson = Annotated[bool, opt("--json", "Print the result as one JSON object, for programs.")]


def http_port(meaning: str) -> Any:
    """The option `--http PORT` of a command that otherwise speaks on stdin and stdout."""
    return opt("--http PORT", meaning, default="none: speak on stdin and stdout", min=1, max=65535)


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


def named_values(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """`NAME=VALUE` words as a mapping. Raises `ConfigError` for one without a name or given twice."""
    found: dict[str, str] = {}
    for word in given or []:
        name, sign, value = word.partition("=")
        name = name.strip()
        if not (sign and name and value):
            raise ConfigError(f"{option} is {word!r}; give a name and a value, such as {_EXAMPLES[option]}")
        if name in found:
            raise ConfigError(f"{option} names {name!r} twice; keep one of them")
        found[name] = value
    return found


_EXAMPLES = {
    "--set": "grpo.max_steps=40 or limits.max_turns=6",
    "--limit": "max_turns=6",
    "--policy": "tuned=runs/first/model",
    "--policy-key": "large=HOST_KEY",
    "--policy-prompt": "large=prompt.txt",
    "--price": "large=0.4,1.6",
    "--verdicts": "gpt-4=gpt-4.jsonl",
    "--phrase": "'book=Book {room} for {person}'",
}


def _value(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply to be read") from None
    except ValueError:
        return text
