"""The options of `serve-tools`."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import finite, http_port

ToolsPort = Annotated[int | None, http_port("Serve streamable HTTP at http://HOST:PORT/mcp until Ctrl-C.")]
ToolsHost = Annotated[
    str, typer.Option("--host", help="The address to listen on. One that other machines reach needs a key.")
]
ToolsKey = Annotated[
    str | None,
    typer.Option(
        "--key-env",
        metavar="VARIABLE",
        show_default="none: no key is asked for",
        help="The environment variable that holds the key which clients must send as 'Authorization: Bearer KEY'.",
    ),
]
Worlds = Annotated[
    bool,
    typer.Option("--worlds", help="Offer the control tools too, by which toolbake opens a world for each rollout."),
]
MaxWorlds = Annotated[
    int, typer.Option("--max-worlds", min=1, help="How many worlds, and sessions over HTTP, there may be at once.")
]
IdleSeconds = Annotated[
    float,
    typer.Option(
        "--idle-s", min=0.1, callback=finite, help="Seconds after which an unused session or world is closed."
    ),
]
