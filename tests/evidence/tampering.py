"""Single changes to the files of a run, each of which must be found and named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from evidence_runs import CHAINED_LINES, EVIDENCE_FILES, make_run, verified

from sdk.evidence.run_verification import sign_run
from sdk.traces.json_text import dump_json

_FILES = (*EVIDENCE_FILES, "evidence.sig.json")

Change = Callable[[bytes, random.Random], bytes]
"""The file's bytes before and after; equal bytes where the change is none, for example two equal bytes swapped."""


def byte_changed(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]


def byte_removed(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + 1 :]


def byte_added(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at:]


def bytes_swapped(data: bytes, rng: random.Random) -> bytes:
    at, other = rng.randrange(len(data)), rng.randrange(len(data))
    out = bytearray(data)
    out[at], out[other] = out[other], out[at]
    return bytes(out)


def end_cut_off(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def line_removed(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def line_doubled(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"".join(lines)


def lines_swapped(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[at], lines[other] = lines[other], lines[at]
    return b"".join(lines)


def line_moved(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"".join(lines)


def value_changed(data: bytes, rng: random.Random) -> bytes:
    """One value somewhere in one line, written as the run writes it."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    line = json.loads(lines[at])
    holder, key = rng.choice(list(_places(line)))
    holder[key] = _other(holder[key], rng)
    lines[at] = dump_json(line) + b"\n"
    return b"".join(lines)


def line_made_up(data: bytes, rng: random.Random) -> bytes:
    """A line like the others, under another id, put among them."""
    lines = data.splitlines(keepends=True)
    line = json.loads(rng.choice(lines))
    for name in ("id", "key", "hash"):
        if name in line:
            line[name] += "x"
    lines.insert(rng.randrange(len(lines) + 1), dump_json(line) + b"\n")
    return b"".join(lines)


def _places(value: Any) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[tuple[Any, Any]] = []
    for key, item in items:
        found += _places(item) if isinstance(item, dict | list) and item else [(value, key)]
    return found


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + rng.choice([1, -1])
    return f"{value}!"


KINDS: dict[str, tuple[Change, tuple[str, ...]]] = {
    "a byte changed": (byte_changed, _FILES),
    "a byte removed": (byte_removed, _FILES),
    "a byte added": (byte_added, _FILES),
    "two bytes swapped": (bytes_swapped, _FILES),
    "the end cut off": (end_cut_off, _FILES),
    "a value changed": (value_changed, CHAINED_LINES),
    "a line removed": (line_removed, CHAINED_LINES),
    "a line doubled": (line_doubled, CHAINED_LINES),
    "two lines swapped": (lines_swapped, CHAINED_LINES),
    "a line moved": (line_moved, CHAINED_LINES),
    "a line made up": (line_made_up, CHAINED_LINES),
}
"""Kind -> what it does, and the files it is done to."""


def make_signed_run(folder: Path) -> Path:
    """A small run with everything that a run can have, and a signature, in `folder/run`."""
    run, key = make_run(folder / "run"), folder / "key.pem"
    key.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    sign_run(run, verified(run), key)
    return run


def tamper(run: Path, kind: str, rng: random.Random) -> tuple[str, Callable[[], None]] | None:
    """Do one random change of a kind; the file, and how to undo it. None where it would have changed nothing."""
    change, files = KINDS[kind]
    name = rng.choice(files)
    file = run / name
    before = file.read_bytes()
    after = change(before, rng)
    if after == before:
        return None
    file.write_bytes(after)
    return name, lambda: file.write_bytes(before) and None
