"""The page's files: each as the server sends it, and one file with all data, to send to somebody or to keep."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..traces.json_text import dump_json
from .index import Announced, RunIndex, find_runs, metrics_of
from .labels import Labels, exported_file, facts_of, labels_of, require_outside
from .rollout_view import FIELDS, detail, token_rows

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', flags=re.MULTILINE)
_STYLE_LINK = re.compile(r'<link rel="stylesheet" href="page/([\w-]+\.css)">\n?')
_ICON_LINK = re.compile(r'<link rel="icon"[^>]*>\n?')
_SCRIPT = '<script type="module" src="page/main.js"></script>'


@functools.cache
def page_file(name: str) -> bytes:
    """One file of the page. Raises `LookupError` where there is none: names are looked up, never joined to a path."""
    return _files()[name].encode()


@functools.cache
def _files() -> dict[str, str]:
    folder = resources.files(__package__) / "page"
    found = {file.name: file for file in folder.iterdir()}
    return {name: file.read_text("utf-8") for name, file in found.items() if name.rpartition(".")[2] in TYPES}


def one_script() -> str:
    """All modules of the page as one, each after those it imports.

    They are written for this: every import is a line `import { a, b } from "./file.js";` and none goes in a circle,
    nothing is renamed, and no two of them define the same name at the top.
    """
    order: list[str] = []

    def add(name: str) -> None:
        for imported in _IMPORT.findall(_files()[name]):
            add(imported)
        if name not in order:
            order.append(name)

    add("main.js")
    modules = {name: re.sub(r"^export ", "", _IMPORT.sub("", _files()[name]), flags=re.MULTILINE) for name in order}
    return '"use strict";\n' + "\n".join(f"// {name}\n{module}" for name, module in modules.items())


def one_page(data_blocks: str) -> str:
    """The page as one file that asks nobody for anything; `data_blocks` stand before its script.

    Its Content-Security-Policy names the digests of the one script and the one style that may take effect.
    """
    page = _files()["index.html"]
    style = "\n".join(_files()[name] for name in _STYLE_LINK.findall(page))
    script = one_script()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )
    page = _ICON_LINK.sub("", _STYLE_LINK.sub("", page))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n</head>'
    page = page.replace("</head>", head)
    return page.replace(_SCRIPT, f'{data_blocks}\n<script type="module">{script}</script>')


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_CHUNK_BYTES = 400_000
"""Of JSON before it is compressed; opening a rollout unpacks one such piece."""

_HERE = "<!-- data -->"


def export_page(paths: Sequence[Path], target: Path) -> int:
    """Write the page of runs as one HTML file, which asks nobody for anything; returns its number of rollouts.

    The data are compressed, in base64: nothing in them can close the element around them. Needs a browser of 2023
    or later. Raises `RunFolderError` where there is no run, `ToolbakeError` where the file cannot be written, or
    is a run's own.
    """
    runs = find_runs(paths)
    require_outside(target, runs)
    index = RunIndex(runs)
    index.refresh()
    before, after = one_page(_HERE).split(_HERE)
    with exported_file(target) as file:
        file.writelines(part.encode() for part in (before, *_blocks(index), after))
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
        rollouts.append(dump_json(detail(line, place, status)))
        tokens.append(dump_json(token_rows(line, index.runs[place.run])))
        if sum(map(len, rollouts)) + sum(map(len, tokens)) > _CHUNK_BYTES:
            yield from chunk()
    if rollouts:
        yield from chunk()
    rows: dict[str, Any] = {"generation": content.generation, "fields": FIELDS, "start": 0, "whole": True}
    rows |= {"unread": content.unread, "problems": content.problems}
    yield _block("rows", dump_json(rows)[:-1] + b',"rows":' + _json_list(content.rows) + b"}")
    labels = [Labels(run) for run in index.runs]
    head = {
        "starts": starts,
        "runs": facts_of(index.runs, labels),
        "metrics": [metrics_of(run) for run in index.runs],
        "labels": labels_of(labels, index),
    }
    yield _block("head", dump_json(head))


def _json_list(items: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def _block(name: str, data: bytes) -> str:
    packed = base64.b64encode(gzip.compress(data, compresslevel=6)).decode()
    return f'<script type="application/gzip" id="data-{name}">{packed}</script>\n'
