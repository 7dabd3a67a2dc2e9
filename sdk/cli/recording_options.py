"""The options of `record`, `replay` and `divergence`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from .options import finite, http_port

Cassette = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="FILE",
        show_default=False,
        help="The cassette, a .jsonl file. One that holds a recording of the same tools is gone on with.",
    ),
]
Port = Annotated[
    int | None,
    http_port("Serve clients at http://127.0.0.1:PORT/mcp, each with a session of its own, until Ctrl-C."),
]
ServerName = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="NAME", show_default="the only one", help="Which server of an mcp.json with several."
    ),
]
Scrub = Annotated[
    list[str] | None,
    typer.Option(
        "--scrub",
        metavar="REGEX",
        show_default="none",
        help="Replace what this regular expression matches by ***, beside the secrets found without it. May be "
        "given several times.",
    ),
]
Recording = Annotated[
    str, typer.Argument(metavar="CASSETTE", show_default=False, help="A file that `toolbake record` wrote.")
]
ReplayPort = Annotated[
    int | None,
    http_port("Serve clients at http://127.0.0.1:PORT/mcp, each session with a world of its own, until Ctrl-C."),
]
Unseen = Annotated[
    str,
    typer.Option(
        "--unseen",
        metavar="error|nearest|model",
        help="What comes back for a call that was never recorded: an error, the answer to the nearest recorded call, "
        "or what the model behind --endpoint makes up.",
    ),
]
NearestAtLeast = Annotated[
    float,
    typer.Option(
        "--nearest-at-least",
        min=0.0,
        max=1.0,
        callback=finite,
        help="How near a call must be for --unseen nearest.",
    ),
]
Reads = Annotated[
    list[str] | None,
    typer.Option(
        "--reads",
        metavar="TOOL",
        show_default="those that say so",
        help="A tool that only reads, whatever it says of itself; may hold * and ?. May be given several times.",
    ),
]
Writes = Annotated[
    list[str] | None,
    typer.Option(
        "--writes",
        metavar="TOOL",
        show_default="those that do not say that they only read",
        help="A tool that changes something, whatever it says of itself; may hold * and ?. May be given several times.",
    ),
]
ErrorsChange = Annotated[
    bool, typer.Option("--errors-change", help="Calls that came back with an error may have changed something, too.")
]
SimulatingModel = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", show_default="none", help="The model's name at --endpoint."),
]
Twin = Annotated[
    str | None,
    typer.Argument(
        metavar="TWIN",
        show_default="the recorded twin of CASSETTE itself",
        help="What is compared with it: a Python object, file.py:name (a sandbox, functions), an mcp.json, or the "
        "URL of a server.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="PATH",
        show_default="none",
        help="A path in results that is not compared, such as '**.updated_at' (anywhere) or "
        "'get_order:structured.items.*.price' (of one tool). May be given several times.",
    ),
]
IgnoreText = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore-text",
        metavar="REGEX",
        show_default="none",
        help="What this regular expression matches in texts counts as equal. May be given several times.",
    ),
]
KeepIds = Annotated[
    bool,
    typer.Option("--keep-ids", help="Compare identifiers as they are, also those that a session has created itself."),
]
AtLeast = Annotated[
    float | None,
    typer.Option(
        "--at-least",
        metavar="SHARE",
        min=0.0,
        max=1.0,
        callback=finite,
        show_default="all results, errors and schemas",
        help="The share of results that must agree for exit code 0.",
    ),
]
JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", show_default="none", help="Write the whole report as JSON, with every difference."
    ),
]


def unseen_policy(
    unseen: str, model: str | None, endpoint: str | None, api_key_env: str | None, *, say: Callable[[str], None]
) -> Any:
    """What `RecordedTwin` takes as `unseen`. Raises `ConfigError` for options that do not fit each other."""
    from sandboxes.recorded import SimulatedAnswers

    from ..errors import ConfigError
    from .sources import model_source

    if unseen not in ("error", "nearest", "model"):
        raise ConfigError(f"--unseen is {unseen!r}; choose error, nearest or model")
    if unseen != "model":
        if model is not None or endpoint is not None or api_key_env is not None:
            raise ConfigError("--endpoint, --model and --api-key-env do nothing without --unseen model")
        return unseen
    if endpoint is None:
        raise ConfigError("--unseen model needs --endpoint and --model: who is to make the answers up")
    return SimulatedAnswers(**model_source(model, endpoint, api_key_env, say=say))
