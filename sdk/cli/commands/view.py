"""`toolbake view`: read rollouts in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import ClientsKey, Host, arg, opt

Runs = Annotated[
    list[Path],
    arg("RUN", "The output_dir of a run, a folder of runs, or a .jsonl file of tasks or other rows; or several."),
]
PageFile = Annotated[Path | None, opt("--export FILE.html", "Write the page as one file instead.", default="none")]
LabelsFile = Annotated[
    Path | None,
    opt(
        "--export-labels FILE.jsonl",
        "Write the labelled rollouts as examples to check a judge with, instead.",
        default="none",
    ),
]


def view(
    runs: Runs,
    host: Host = "127.0.0.1",
    port: Annotated[int, opt("--port", "The port; 0 takes any free one.", min=0, max=65535)] = 8300,
    api_key_env: ClientsKey = None,
    export: PageFile = None,
    export_labels: LabelsFile = None,
) -> None:
    """Read the rollouts of a run in a browser, also while it trains: filter, compare, label. Or read and change tasks.

    Ctrl-C ends it. Labels are kept in labels.jsonl in the run's folder. A .jsonl file of tasks or other rows is
    changed itself, line by line, and a copy from before stays beside it (.bak). Nothing that a tool returned is run by
    the page, and the page asks no other machine for anything.

    Examples:
      toolbake view runs/first
      toolbake view runs/first runs/second --port 8400
      toolbake view runs/first --export first.html
      toolbake view tasks.jsonl
    """
    from ...progress import Console
    from ...viewing import export_labels as write_labels
    from ...viewing import export_page
    from ...viewing import view as serve_page
    from ..sources import key_from

    progress = Console()
    if export is not None:
        typer.echo(f"{export}: {export_page(runs, export)} rollouts")
    if export_labels is not None:
        typer.echo(f"{export_labels}: {write_labels(runs, export_labels)} labelled rollouts")
    if export is not None or export_labels is not None:
        return
    key = key_from(api_key_env)
    with serve_page(runs, host=host, port=port, api_key=key) as server:
        typer.echo(f"{server.url} (Ctrl-C ends it)")
        server.wait()
    progress.say("stopped")
