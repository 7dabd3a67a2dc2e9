"""The canonical form of a value, and the two hashes that all evidence is made of.

The canonical form is that of RFC 8785 (JSON Canonicalization Scheme), with three differences, for the sake of values
that a model or a tool can write and RFC 8785 has no form for. They are in `docs/evidence.md`: text is ASCII, also half
a surrogate pair; keys are sorted by code points; numbers keep their kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mcp_bridge.errors import kind_of
from mcp_bridge.safe_text import strict_json

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
    value = strict_json(raw)
    if not isinstance(value, dict):
        raise ValueError(f"it is {kind_of(value)}, not an object")
    return value


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


# ---------------------------------------------------------------------------------------------------------------------
# The evidence of one rollout: a chain from the task over every call and result to the verdict.

_START_FIELDS = ("id", "policy", "group", "seed", "step", "initial_state")
_LISTS = (("messages", "message"), ("calls", "call"), ("ledger", "ledger line"), ("rows", "row"))
_OWN_LINKS = frozenset({"task", "shown_tools", "verdict", *_START_FIELDS, *(name for name, _ in _LISTS)})
_MARK_CHARS = 16


@dataclass(frozen=True)
class RolloutLinks:
    """A rollout's chain. `head` stands for all of it; `inputs` for all that the verifier saw, before its verdict."""

    head: str
    inputs: str
    marks: tuple[str, ...]
    """`kind:digest` of each link's data, the digest cut to 16 characters: not what the chain rests on, but what names
    the part that was changed."""


def rollout_links(line: dict[str, Any], *, stage: str, tools: str, verifier: str) -> RolloutLinks:
    """The chain of a stored rollout. `line`: its line of `rollouts/<stage>.jsonl`, parsed.

    `tools`: the digest of the tools' entry that was recorded last, empty where there is none; `verifier`: the digest
    of the verifier's identity in the run's config, which is that of None where it names none.
    What each link holds, and their order, is in `docs/evidence.md`.
    """
    head, marks = START, list[str]()
    for kind, data in _inputs(line, stage, tools):
        head = _joined(head, kind, data, marks)
    inputs = head
    head = _joined(head, "verdict", {"verdict": line.get("verdict"), "verifier": verifier}, marks)
    return RolloutLinks(head, inputs, tuple(marks))


def _joined(head: str, kind: str, data: Any, marks: list[str]) -> str:
    data_digest = digest(data)
    marks.append(f"{kind}:{data_digest[:_MARK_CHARS]}")
    return link(head, kind, data_digest)


def _inputs(line: dict[str, Any], stage: str, tools: str) -> Iterator[tuple[str, Any]]:
    yield "task", line.get("task")
    yield "tools", {"schemas": tools, "shown": line.get("shown_tools")}
    yield "start", {"stage": stage, **{name: line.get(name) for name in _START_FIELDS}}
    for name, kind in _LISTS:
        for item in _items(line.get(name)):
            yield kind, item
    yield "weights", weights_versions(line)
    yield "end", {name: value for name, value in line.items() if name not in _OWN_LINKS}


def weights_versions(line: dict[str, Any]) -> list[int]:
    """The versions of the weights that sampled a rollout's tokens, ascending; none for a policy without tokens."""
    rows = [row for row in _items(line.get("rows")) if isinstance(row, dict)]
    found = {version for row in rows for version in _items(row.get("versions")) if isinstance(version, int)}
    return sorted(found - {-1})


def _items(value: Any) -> list[Any]:
    # A file that was tampered with may hold anything; it is hashed all the same.
    return value if isinstance(value, list) else [] if value is None else [value]


def differing(recorded: tuple[str, ...], found: tuple[str, ...]) -> list[str]:
    """Which parts differ between the marks of two rollouts: `call 2`, `verdict`, `4 messages where 5 were recorded`."""
    then, now = _by_kind(recorded), _by_kind(found)
    parts: list[str] = []
    for kind in dict.fromkeys([*then, *now]):
        old, new = then.get(kind, []), now.get(kind, [])
        if len(old) != len(new):
            parts.append(f"{len(new)} {kind}s where {len(old)} were recorded")
        elif len(old) == 1 and old != new:
            parts.append(kind if kind in _SINGLE else f"{kind} 1")
        else:
            parts += [f"{kind} {n}" for n, (a, b) in enumerate(zip(old, new, strict=True), start=1) if a != b]
    return parts


_SINGLE = frozenset({"task", "tools", "start", "weights", "end", "verdict"})


def _by_kind(marks: tuple[str, ...]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for mark in marks:
        kind, _, rest = mark.rpartition(":")
        kinds.setdefault(kind, []).append(rest)
    return kinds
