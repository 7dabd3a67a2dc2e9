"""Differences between two JSON values, path by path."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from mcp_bridge.errors import SourceError
from mcp_bridge.safe_text import shortened

Kind = Literal["changed", "missing", "extra", "type"]
"""`missing`: the twin has no such value; `extra`: the recording has none; `type`: both have one, of different types."""

_MOST_LINES_COMPARED = 2000

Step = str | int
Same = Callable[[Sequence[Step], Any, Any], bool]
"""Whether a recorded value and the twin's count as the same at this path, though they are not equal."""


class Difference(BaseModel, frozen=True):
    """One value that differs. `path` begins with what is compared: `text`, `structured`, `is_error`, `input_schema`."""

    path: str
    kind: Kind
    recorded: Any = None
    twin: Any = None

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"{self.path}: {_shown(self.recorded)} is missing"
        if self.kind == "extra":
            return f"{self.path}: {_shown(self.twin)} was not there"
        if isinstance(self.recorded, str) and isinstance(self.twin, str):
            return f"{self.path}: {_changed_lines(self.recorded, self.twin)}"
        return f"{self.path}: {_shown(self.recorded)} became {_shown(self.twin)}"


def differences(
    recorded: Any, twin: Any, path: tuple[Step, ...] = (), *, ignore: Ignored | None = None, same: Same | None = None
) -> Iterator[Difference]:
    """The differences between two JSON values. Lists are compared place by place; `1` and `1.0` are equal, `1` and
    `True` are not."""
    if ignore is not None and ignore.matches(path):
        return
    if isinstance(recorded, list) and isinstance(twin, list):
        recorded, twin = dict(enumerate(recorded)), dict(enumerate(twin))
    if isinstance(recorded, dict) and isinstance(twin, dict):
        for key in {**recorded, **twin}:
            here = (*path, key)
            if key in recorded and key in twin:
                yield from differences(recorded[key], twin[key], here, ignore=ignore, same=same)
            elif ignore is not None and ignore.matches(here):
                continue
            elif key in recorded:
                yield Difference(path=dotted(here), kind="missing", recorded=recorded[key])
            else:
                yield Difference(path=dotted(here), kind="extra", twin=twin[key])
    elif not _equal(recorded, twin) and not (same is not None and same(path, recorded, twin)):
        kind: Kind = "changed" if _type(recorded) == _type(twin) else "type"
        yield Difference(path=dotted(path), kind=kind, recorded=recorded, twin=twin)


class Ignored:
    """Paths whose values are not compared: `*` is any one step, `**` any number of them, numbers are places in lists.

    `**.updated_at` is that key anywhere; `get_order:structured.items.*.price` a path in the results of one tool.
    """

    def __init__(self, patterns: Sequence[str], tool: str = "") -> None:
        """Raises `SourceError` for a pattern that is empty."""
        self._patterns = [_compiled(path) for path in _for_tool(patterns, tool)]

    def matches(self, path: Sequence[Step]) -> bool:
        text = "".join(f"{step}\0" for step in path)
        return any(pattern.fullmatch(text) for pattern in self._patterns)


def _for_tool(patterns: Sequence[str], tool: str) -> Iterator[str]:
    for pattern in patterns:
        owner, colon, path = pattern.partition(":")
        if not (path if colon else owner):
            raise SourceError(f"the path {pattern!r} to ignore is empty; write for example '**.updated_at'")
        if not colon:
            yield pattern
        elif owner == tool:
            yield path


def _compiled(path: str) -> re.Pattern[str]:
    steps = {"**": r"(?:[^\0]*\0)*", "*": r"[^\0]*\0"}
    return re.compile("".join(steps.get(step, re.escape(step) + r"\0") for step in path.split(".")))


def dotted(path: Sequence[Step]) -> str:
    """`("items", 0, "id")` as `items.0.id`."""
    return ".".join(str(step) for step in path) or "(all)"


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right):
        return True
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def _changed_lines(recorded: str, twin: str) -> str:
    """The lines that differ, not the whole of two long texts."""
    ours, theirs = recorded.splitlines(), twin.splitlines()
    if min(len(ours), len(theirs)) < 2 or max(len(ours), len(theirs)) > _MOST_LINES_COMPARED:
        return f"{_shown(recorded)} became {_shown(twin)}"
    changed = [step for step in difflib.SequenceMatcher(None, ours, theirs).get_opcodes() if step[0] != "equal"]
    _, begin, end, their_begin, their_end = changed[0] if changed else ("", 0, len(ours), 0, len(theirs))
    told = f"{_shown(chr(10).join(ours[begin:end]))} became {_shown(chr(10).join(theirs[their_begin:their_end]))}"
    more = f", and {len(changed) - 1} more places" if len(changed) > 1 else ""
    return f"in line {begin + 1}, {told}{more}"


def _shown(value: Any) -> str:
    return shortened(repr(value), 200)
