"""`toolbake divergence`: a recording replayed against a twin, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..failing import clean_errors
from ..options import Command, ConnectTimeout, Debug
from ..recording_options import AtLeast, Ignore, IgnoreText, JsonFile, KeepIds, Recording, Twin

if TYPE_CHECKING:
    from sandboxes.divergence import DivergenceReport

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
    json_file: JsonFile = None,
    connect_timeout: ConnectTimeout = 20.0,
    debug: Debug = False,
) -> None:
    """Replay recorded real sessions against a twin, and report tool by tool how often it answers the same.

    Each recorded session gets a world of its own. Its calls are made in their order, and results, errors and schemas
    are compared, path by path. Identifiers that a session created (an order it placed) may be others in the twin; they
    are followed through the later calls. The report is Markdown on stdout.

    Exit codes: 0 it agrees, 1 an error, 3 it does not.

    Examples:
      toolbake divergence orders.jsonl twin.py:orders --ignore '**.updated_at'
      toolbake divergence files.jsonl --command 'npx server-filesystem notes' --json report.json
    """
    with clean_errors(debug):
        from ..quiet import quiet_libraries

        quiet_libraries()
        reach: dict[str, Any] = {"map_ids": not keep_ids, "connect_timeout_s": connect_timeout}
        report = _compared(cassette, twin, command, ignore or [], ignore_text or [], **reach)
        typer.echo(report.to_markdown(), nl=False)  # first: a file that cannot be written does not cost the report
        if json_file is not None:
            Path(json_file).write_text(report.to_json() + "\n", encoding="utf-8")
        agrees = report.agrees if at_least is None else report.agreement >= at_least
        if not agrees:
            raise typer.Exit(DIVERGES)


def _compared(
    cassette: str,
    twin: str | None,
    command: str | None,
    ignore: list[str],
    ignore_text: list[str],
    *,
    map_ids: bool,
    connect_timeout_s: float,
) -> DivergenceReport:
    import anyio

    from sandboxes.divergence import compare
    from sandboxes.recorded import Cassette, RecordedTwin

    from ...connecting import connect
    from ..sources import tool_source

    recording = Cassette.read(cassette)
    own = twin is None and command is None
    source: Any = RecordedTwin(recording) if own else tool_source(twin, command)

    async def run() -> DivergenceReport:
        if own:
            # Not through the bridge, which would answer mistakes in its own words.
            return await compare(recording, source, ignore=ignore, ignore_text=ignore_text, map_ids=map_ids)
        async with connect(source, connect_timeout_s=connect_timeout_s, max_result_chars=10_000_000) as toolset:
            return await compare(recording, toolset, ignore=ignore, ignore_text=ignore_text, map_ids=map_ids)

    return anyio.run(run)
