"""The files of the page: as they are for the server, and put together into one for an export."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib import resources

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
    nothing is renamed, and no name stands at the top of two of them.
    """
    order: list[str] = []

    def add(name: str) -> None:
        for imported in _IMPORT.findall(_files()[name]):
            add(imported)
        if name not in order:
            order.append(name)

    add("main.js")
    return '"use strict";\n' + "\n".join(f"// {name}\n{_without_borders(_files()[name])}" for name in order)


def _without_borders(module: str) -> str:
    return re.sub(r"^export ", "", _IMPORT.sub("", module), flags=re.MULTILINE)


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
