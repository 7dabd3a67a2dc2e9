"""One text for one value, and the two hashes that everything here is made of.

The canonical form is that of RFC 8785 (JSON Canonicalization Scheme), with three differences, for the sake of values
that a model or a tool can write and RFC 8785 has no form for:

1. Text is ASCII: every character outside of U+0020 to U+007E is escaped, in lower-case hexadecimal (`\\u00e9`), those
   beyond U+FFFF as a surrogate pair; `\\b \\f \\n \\r \\t` where JSON has them. Half a surrogate pair has a form so.
2. Keys are sorted by Unicode code points, not by UTF-16 code units.
3. Numbers keep their kind: integers of any size in decimal digits, without an exponent; others as the shortest text
   that reads back as the same double, in the form of Python's `repr` (`1.0`, `1e-07`, `1e+16`). `1` and `1.0` differ.

As there: no spaces, no `nan` or `inf`, each key once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import RunFolderError

START = "0" * 64
"""What the first link of a chain follows."""

MOST_BYTES = 1 << 28
"""256 MiB: of one line, and of a file that is read whole. Longer ones are refused before they fill the memory."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(value: Any) -> bytes:
    """The canonical form of data as `json.loads` returns it. Raises `ValueError` for `nan`, `inf` and deep nesting."""
    try:
        return _ENCODER.encode(value).encode("ascii")
    except RecursionError as error:  # a little before `parse` would find it
        raise ValueError("it is nested too deeply") from error


def parse(raw: bytes) -> dict[str, Any]:
    """The object in one line of JSON. Raises `ValueError` for anything else, `NaN` and deep nesting included."""
    try:
        value = json.loads(raw, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}, not an object")
    return value


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their line breaks, counted from 1; none where there is no file.

    Raises `RunFolderError` for a line of more than `MOST_BYTES`.
    """
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for number in count(1):
            line = file.readline(MOST_BYTES + 1)
            if len(line) > MOST_BYTES:
                raise RunFolderError(
                    f"{path}, line {number} is longer than {MOST_BYTES >> 20} MiB, the most that is read as one line: "
                    "the file was damaged or changed; take it from a copy of the run"
                )
            if not line:
                return
            yield number, line


def sha256(data: bytes) -> str:
    """SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """`sha256(canonical(value))`."""
    return sha256(canonical(value))


def link(prev: str, kind: str, data_digest: str) -> str:
    """The hash of one link: SHA-256 of the canonical form of `[prev, kind, digest(data)]`.

    `prev` is the hash of the link before, `START` for the first. Example: a chain of one link of the kind "note" with
    the data `{}` ends in the hash of `["000...0","note","44136fa3..."]`.
    """
    return hashlib.sha256(f'["{prev}",{_ENCODER.encode(kind)},"{data_digest}"]'.encode("ascii")).hexdigest()
