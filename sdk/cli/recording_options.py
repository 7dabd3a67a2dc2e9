"""The options of `record` and `divergence`."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import http_port

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
