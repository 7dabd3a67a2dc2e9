"""`toolbake record`, `replay` and `divergence`: a recording of a real MCP server, served, and compared with a twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ConfigError
from ..options import (
    AsJson,
    Command,
    ConnectTimeout,
    Endpoint,
    EndpointKey,
    ServerTools,
    arg,
    http_port,
    model_opt,
    opt,
)

if TYPE_CHECKING:
    from sandboxes.divergence import DivergenceReport

CassetteFile = Annotated[
    str,
    opt(
        "--to FILE",
        "The cassette, a .jsonl file. One that holds a recording of the same tools is gone on with.",
        default=False,
    ),
]
Port = Annotated[
    int | None, http_port("Serve clients at http://127.0.0.1:PORT/mcp, each with a session of its own, until Ctrl-C.")
]
ServerName = Annotated[
    str | None, opt("--server NAME", "Which server of an mcp.json with several.", default="the only one")
]
Scrub = Annotated[
    list[str] | None,
    opt(
        "--scrub REGEX",
        "Replace what this regular expression matches by ***, beside the secrets found without it. May be given "
        "several times.",
        default="none",
    ),
]
Recording = Annotated[str, arg("CASSETTE", "A file that `toolbake record` wrote.", default=False)]
ReplayPort = Annotated[
    int | None,
    http_port("Serve clients at http://127.0.0.1:PORT/mcp, each session with a world of its own, until Ctrl-C."),
]
Unseen = Annotated[
    str,
    opt(
        "--unseen error|nearest|model",
        "What comes back for a call that was never recorded: an error, the answer to the nearest recorded call, or "
        "what the model behind --endpoint makes up.",
    ),
]
NearestAtLeast = Annotated[
    float, opt("--nearest-at-least", "How near a call must be for --unseen nearest.", min=0.0, max=1.0)
]
Reads = Annotated[
    list[str] | None,
    opt(
        "--reads TOOL",
        "A tool that only reads, whatever it says of itself; may hold * and ?. May be given several times.",
        default="those that say so",
    ),
]
Writes = Annotated[
    list[str] | None,
    opt(
        "--writes TOOL",
        "A tool that changes something, whatever it says of itself; may hold * and ?. May be given several times.",
        default="those that do not say that they only read",
    ),
]
ErrorsChange = Annotated[
    bool, opt("--errors-change", "Calls that came back with an error may have changed something, too.")
]
SimulatingModel = Annotated[str | None, model_opt("--model NAME", "The model's name at --endpoint.", default="none")]
Twin = Annotated[
    str | None,
    arg(
        "TWIN",
        "What is compared with it: a Python object, file.py:name (a sandbox, functions), an mcp.json, or the URL of a "
        "server.",
        default="for each session, the recorded twin of the others",
    ),
]
Ignore = Annotated[
    list[str] | None,
    opt(
        "--ignore PATH",
        "A path in results that is not compared, such as '**.updated_at' (anywhere) or "
        "'get_order:structured.items.*.price' (of one tool). May be given several times.",
        default="none",
    ),
]
IgnoreText = Annotated[
    list[str] | None,
    opt(
        "--ignore-text REGEX",
        "What this regular expression matches in texts counts as equal. May be given several times.",
        default="none",
    ),
]
KeepIds = Annotated[
    bool, opt("--keep-ids", "Compare identifiers as they are, also those that a session has created itself.")
]
AtLeast = Annotated[
    float | None,
    opt(
        "--at-least SHARE",
        "The share of results that must agree for exit code 0.",
        default="all results, errors and schemas",
        min=0.0,
        max=1.0,
    ),
]
JsonFile = Annotated[
    str | None,
    opt(
        "--json-to FILE",
        "Write the whole report as JSON, with every difference, into a file that is new or an older report.",
        default="none",
    ),
]


def unseen_policy(
    unseen: str, model: str | None, endpoint: str | None, api_key_env: str | None, *, say: Callable[[str], None]
) -> Any:
    """What `RecordedTwin` takes as `unseen`. Raises `ConfigError` for options that do not fit each other."""
    from sandboxes.recorded import SimulatedAnswers

    from ..sources import model_source

    if unseen not in ("error", "nearest", "model"):
        raise ConfigError(f"--unseen is {unseen!r}; choose error, nearest or model")
    if unseen != "model":
        if model is not None or endpoint is not None or api_key_env is not None:
            raise ConfigError("--endpoint, --model and --api-key-env do nothing without --unseen model")
        return unseen
    if endpoint is None:
        raise ConfigError("--unseen model needs --endpoint and --model: who is to make the answers up")
    return SimulatedAnswers(**model_source(model, endpoint, api_key_env, say=say))


def _say(text: str) -> None:
    typer.echo(text, err=True)  # stdout is the protocol's


# ---------------------------------------------------------------------------------------------------------------------


def record(
    tools: ServerTools = None,
    *,
    command: Command = None,
    to: CassetteFile,
    http: Port = None,
    server: ServerName = None,
    scrub: Scrub = None,
    connect_timeout: ConnectTimeout = 120.0,
) -> None:
    """Record a real MCP server while any MCP client uses it.

    The recorder stands between the two: put `toolbake record ...` where the client's settings have the server's own
    command. Every call is written to the cassette as it happens, with its result, and without secrets: the values of
    the server's environment and headers, what stands under names such as `password` or `apiKey`, and keys of well-known
    forms. Read the file before you share it: a secret in plain words is found by --scrub alone.

    A cassette replays as a twin, without the server (`sandboxes.recorded.RecordedTwin`), and says how far any other
    twin is from the real thing (`toolbake divergence`).

    Examples:
      toolbake record mcp.json --to orders.jsonl
      toolbake record --command 'npx server-filesystem notes' --to files.jsonl --scrub '/tmp/[^/"]+'
      toolbake record https://orders.example/mcp --to orders.jsonl --http 8765
    """
    import anyio

    from sandboxes.recorded.recorder import serve_recorder

    from ..sources import tool_source

    source = tool_source(tools, command)

    anyio.run(
        lambda: serve_recorder(
            source,
            to,
            port=http,
            server=server,
            scrub=tuple(scrub or ()),
            connect_timeout_s=connect_timeout,
            say=_say,
        )
    )


# ---------------------------------------------------------------------------------------------------------------------


def replay(
    cassette: Recording,
    *,
    http: ReplayPort = None,
    unseen: Unseen = "error",
    nearest_at_least: NearestAtLeast = 0.6,
    reads: Reads = None,
    writes: Writes = None,
    errors_change: ErrorsChange = False,
    endpoint: Endpoint = None,
    model: SimulatingModel = None,
    api_key_env: EndpointKey = None,
) -> None:
    """Serve a recording as an MCP server, for any MCP client, without the real one.

    Calls are matched by tool, arguments and what was changed before. Each session of a client begins where the
    recording began, and toolbake itself opens a world for each rollout. What was never recorded is an error, the answer
    to the nearest recorded call, or made up by a model. At the end stderr tells how many calls were answered how.

    Examples:
      toolbake replay orders.jsonl
      toolbake replay orders.jsonl --http 8765 --unseen nearest --reads 'get_*'
      toolbake replay orders.jsonl --unseen model --endpoint http://127.0.0.1:8000/v1 --model Qwen/Qwen3-4B
    """
    import anyio

    from sandboxes.recorded import RecordedTwin, serve_replay

    twin = RecordedTwin(
        cassette,
        unseen=unseen_policy(unseen, model, endpoint, api_key_env, say=_say),
        reads=tuple(reads or ()),
        writes=tuple(writes or ()),
        errors_change=errors_change,
        nearest_at_least=nearest_at_least,
    )
    anyio.run(lambda: serve_replay(twin, port=http, say=_say))


# ---------------------------------------------------------------------------------------------------------------------

DIVERGES = 3


def divergence(
    cassette: Recording,
    twin: Twin = None,
    *,
    command: Command = None,
    ignore: Ignore = None,
    ignore_text: IgnoreText = None,
    keep_ids: KeepIds = False,
    at_least: AtLeast = None,
    as_json: AsJson = False,
    json_file: JsonFile = None,
    connect_timeout: ConnectTimeout = 120.0,
) -> None:
    """Replay recorded real sessions against a twin, and report tool by tool how often it answers the same.

    Without TWIN, each session is replayed against the recorded twin of all others, which shows how a twin of the
    cassette answers sessions that were not recorded.

    Each recorded session gets a world of its own. Its calls are made in their order, and results, errors and schemas
    are compared, path by path. Identifiers that a session created (an order it placed) may be others in the twin; they
    are followed through the later calls. The report is Markdown on stdout, or JSON with --json.

    Exit codes: 0 it agrees, 1 an error, 3 it does not.

    Examples:
      toolbake divergence orders.jsonl
      toolbake divergence orders.jsonl twin.py:orders --ignore '**.updated_at'
      toolbake divergence files.jsonl --command 'npx server-filesystem notes' --json-to report.json
    """
    from ...process import printing_to_stderr
    from ...traces.atomic_files import write_bytes

    how: dict[str, Any] = {"ignore": ignore or [], "ignore_text": ignore_text or [], "map_ids": not keep_ids}
    if json_file is not None:
        _require_replaceable(Path(json_file))
    with printing_to_stderr():
        report = _compared(cassette, twin, command, connect_timeout, how)
    text = report.to_json() + "\n" if as_json else report.to_markdown()
    typer.echo(text, nl=False)  # first: a file that cannot be written does not cost the report
    if json_file is not None:
        write_bytes(Path(json_file), f"{report.to_json()}\n".encode())
    agrees = report.agrees if at_least is None else report.compared > 0 and report.agreement >= at_least
    if not agrees:
        raise typer.Exit(DIVERGES)


def _require_replaceable(path: Path) -> None:
    """Raises `ConfigError` where something is there that is not a report: a cassette or a twin would be lost."""
    from sandboxes.divergence import DivergenceReport

    try:
        if path.exists():
            DivergenceReport.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        raise ConfigError(
            f"--json-to is {str(path)!r}, which is there and is not a divergence report; name a new file"
        ) from None


def _compared(
    cassette: str, twin: str | None, command: str | None, connect_timeout_s: float, how: dict[str, Any]
) -> DivergenceReport:
    import anyio

    from sandboxes.divergence import compare, leave_one_out
    from sandboxes.recorded import Cassette, RecordedTwin

    from ...connecting import connect
    from ..sources import tool_source

    recording = Cassette.read(cassette)

    async def run() -> DivergenceReport:
        if twin is None and command is None:
            # Not through the bridge, which would answer mistakes in its own words.
            own = RecordedTwin(recording)
            return await (leave_one_out(own, **how) if len(recording.sessions) > 1 else compare(recording, own, **how))
        source = tool_source(twin, command)
        async with connect(source, connect_timeout_s=connect_timeout_s, max_result_chars=10_000_000) as toolset:
            return await compare(recording, toolset, **how)

    return anyio.run(run)
