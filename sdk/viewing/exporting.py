"""The page and all its data as one file, to send to somebody or to keep."""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import ToolbakeError
from ..traces.json_text import dump_json
from .details import detail
from .evidence import Announced
from .index import RunIndex, find_runs
from .labels import Labels
from .page_files import one_page
from .run_summary import metrics_of, run_facts
from .summaries import FIELDS
from .token_view import token_rows

_CHUNK_BYTES = 400_000
"""Of JSON before it is compressed; opening a rollout unpacks one such piece."""

_HERE = "<!-- data -->"


def export_page(paths: Sequence[Path], target: Path) -> int:
    """Write the page of runs as one HTML file, which asks nobody for anything; returns its number of rollouts.

    The data are compressed, in base64: nothing in them can end the element that they stand in. Needs a browser of 2023
    or later. Raises `RunFolderError` where there is no run, `ToolbakeError` where the file cannot be written.
    """
    index = RunIndex(find_runs(paths))
    index.refresh()
    before, after = one_page(_HERE).split(_HERE)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(before)
            file.writelines(_blocks(index))
            file.write(after)
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ToolbakeError(f"{target} cannot be written: {error.strerror or error}; choose another file") from error
    return len(index.content.rows)


def _blocks(index: RunIndex) -> Iterator[str]:
    content = index.content
    evidence = [Announced(run.path) for run in index.runs]
    starts: list[int] = []
    rollouts: list[bytes] = []
    tokens: list[bytes] = []

    def chunk() -> Iterator[str]:
        yield _block(f"rollouts-{len(starts)}", _json_list(rollouts))
        yield _block(f"tokens-{len(starts)}", _json_list(tokens))
        starts.append(number + 1 - len(rollouts))
        rollouts.clear()
        tokens.clear()

    for number in range(len(content.places)):
        place, line, raw = index.line(content.generation, number)
        status = evidence[place.run].status(place.stage, place.id, raw)
        rollouts.append(dump_json({"run": place.run, "stage": place.stage, "evidence": status, **detail(line)}))
        tokens.append(dump_json(token_rows(line, index.runs[place.run])))
        if sum(map(len, rollouts)) + sum(map(len, tokens)) > _CHUNK_BYTES:
            yield from chunk()
    if rollouts:
        yield from chunk()
    rows: dict[str, Any] = {
        "generation": content.generation,
        "fields": FIELDS,
        "start": 0,
        "whole": True,
        "unread": content.unread,
        "problems": content.problems,
    }
    yield _block("rows", dump_json(rows)[:-1] + b',"rows":' + _json_list(content.rows) + b"}")
    head = {
        "starts": starts,
        "runs": [run_facts(run) for run in index.runs],
        "metrics": [metrics_of(run) for run in index.runs],
        "labels": [
            {"run": number, **label.model_dump()}
            for number, run in enumerate(index.runs)
            for label in Labels(run).read().values()
        ],
    }
    yield _block("head", dump_json(head))


def _json_list(items: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def _block(name: str, data: bytes) -> str:
    packed = base64.b64encode(gzip.compress(data, compresslevel=6)).decode()
    return f'<script type="application/gzip" id="data-{name}">{packed}</script>\n'
