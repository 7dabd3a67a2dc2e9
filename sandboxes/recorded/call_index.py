"""The index of a recording: where each call belongs, and which recorded call is nearest to another.

A *place* is everything that has been changed so far: the sequence of calls that may change something, each with the
answer it got. Two sessions that made the same changes and got the same answers are at one place, whatever they read.
A call is found by the place, the tool and the arguments; where a call was made several times at one place, its answers
are given one after the other.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_bridge.access.redaction import HIDDEN
from mcp_bridge.errors import SourceError
from mcp_bridge.guard import is_named
from mcp_bridge.records import Tool

from .cassette import CallLine, RecordedResult, RecordedSession, canonical, digest


@dataclass(frozen=True)
class Entry:
    """A recorded call, the place where it was made and the place after it."""

    call: CallLine
    place: str
    after: str


Key = tuple[str, str, str]
"""Place, tool, canonical arguments."""


class Index:
    """The recorded calls by place, tool and arguments."""

    def __init__(self, sessions: Sequence[RecordedSession], changes: Effects) -> None:
        self._changes = changes
        self._parents: dict[str, str] = {}
        self.sessions = [session.name for session in sessions]
        self.roots: dict[str, Mapping[str, Any]] = {}
        """Canonical setup -> setup, in the order of the recording."""
        self.by_key: dict[Key, dict[str, list[Entry]]] = {}
        self.by_tool: dict[str, list[Entry]] = {}
        self.failures: Counter[str] = Counter()
        """Calls without an answer, by tool."""
        self._hidden: dict[tuple[str, str], list[tuple[str, re.Pattern[str]]]] = {}
        for session in sessions:
            self.roots.setdefault(canonical(dict(session.setup)), session.setup)
            self._add(session)

    def root(self, setup: str) -> str:
        """The place at which worlds of this setup (as canonical text) begin."""
        return digest("root", setup)

    def after(self, place: str, tool: str, arguments: str, result: RecordedResult) -> str:
        """The place after a call that got this result."""
        if not self._changes(tool, result):
            return place
        return self._step(place, tool, arguments, canonical(result.model_dump()))

    def find(self, place: str, tool: str, arguments: Mapping[str, Any]) -> tuple[Key, dict[str, list[Entry]]] | None:
        """The answers to a call at a place, by session; None where it was not recorded there."""
        given = canonical(dict(arguments))
        key = (place, tool, given)
        if key in self.by_key:
            return key, self.by_key[key]
        for recorded, pattern in self._hidden.get((place, tool), ()):
            # What was scrubbed can be anything.
            if pattern.fullmatch(given):
                key = (place, tool, recorded)
                return key, self.by_key[key]
        return None

    def way(self, place: str) -> list[str]:
        """The places from the root to this one."""
        found = [place]
        while found[-1] in self._parents:
            found.append(self._parents[found[-1]])
        return found[::-1]

    def _add(self, session: RecordedSession) -> None:
        place = self.root(canonical(dict(session.setup)))
        after_gaps = {last + 1 for _, last in session.gaps} if self._changes.any_tool else frozenset()
        for call in session.calls:
            given = canonical(call.arguments)
            if call.order in after_gaps:
                place = self._step(place, "", "", f"calls not written before {session.name}/{call.order}")
            if call.result is None:
                self.failures[call.tool] += 1
                if self._changes(call.tool, None):
                    # Nobody knows what was changed: what follows can be replayed by no one.
                    place = self._step(place, call.tool, given, f"unknown outcome in {session.name}/{call.order}")
                continue
            entry = Entry(call, place, self.after(place, call.tool, given, call.result))
            key = (place, call.tool, given)
            if key not in self.by_key and HIDDEN in given:
                self._hidden.setdefault((place, call.tool), []).append((given, _scrubbed_json(given)))
            self.by_key.setdefault(key, {}).setdefault(session.name, []).append(entry)
            self.by_tool.setdefault(call.tool, []).append(entry)
            place = entry.after

    def _step(self, place: str, tool: str, arguments: str, outcome: str) -> str:
        after = digest(place, tool, arguments, outcome)
        self._parents[after] = place
        return after


class Effects:
    """Which tools may change something: those that are not marked read-only, unless the user overrides it."""

    def __init__(
        self, tools: Sequence[Tool], *, reads: Sequence[str], writes: Sequence[str], errors_change: bool
    ) -> None:
        """`reads`, `writes`: names of tools, with `*` and `?`. Raises `SourceError` where one names no tool."""
        names = [tool.name for tool in tools]
        for option, patterns in (("reads", reads), ("writes", writes)):
            if isinstance(patterns, str):
                raise SourceError(f"{option} is {patterns!r}; it must be a list of tools: [{patterns!r}]")
            for pattern in patterns:
                if not fnmatch.filter(names, pattern):
                    known = ", ".join(names)
                    raise SourceError(f"{option} has {pattern!r}, which is not a tool; the tools are {known}")
        both = [name for name in names if is_named(name, reads) and is_named(name, writes)]
        if both:
            raise SourceError(f"{', '.join(both)} cannot be both in reads and in writes")
        self._errors_change = errors_change
        self._reading = {
            tool.name
            for tool in tools
            if (tool.annotations.read_only or is_named(tool.name, reads)) and not is_named(tool.name, writes)
        }
        self.any_tool = len(self._reading) < len(names)
        """Whether there is a tool that may change something."""
        self.unmarked = [
            tool.name
            for tool in tools
            if tool.annotations.read_only is None and not is_named(tool.name, [*reads, *writes])
        ]
        """Tools that say nothing of themselves, and so count as changing something."""

    def __call__(self, tool: str, result: RecordedResult | None) -> bool:
        """Whether a call of a tool with this result may have changed something; None: it got no result."""
        if tool in self._reading:
            return False
        return result is None or not result.is_error or self._errors_change


_WHOLE = re.compile(rf'(?<!\\)"{re.escape(HIDDEN)}"')
"""A whole text of JSON that was scrubbed; not the end of one, as in `"\\"***"`."""


def scrubbed_pattern(text: str) -> re.Pattern[str]:
    """A pattern for a text in which `***` matches any text."""
    *parts, end = text.split(HIDDEN)
    before = f"{_holed(parts, '.')}.*" if parts else ""
    return re.compile(before + re.escape(end), flags=re.DOTALL)


def _scrubbed_json(text: str) -> re.Pattern[str]:
    """A pattern for canonical JSON in which `***` matches any part of a text, or a whole text or number."""
    sign = r'(?:[^"\\]|\\.)'
    wholes = [_holed(whole.split(HIDDEN), sign) for whole in _WHOLE.split(text)]
    return re.compile(rf'(?:"{sign}*"|-?[0-9][0-9.eE+-]*)'.join(wholes))


def _holed(parts: Sequence[str], sign: str) -> str:
    """The parts with any number of signs between them. A hole ends where the next part stands first, which is never too
    early: the hole after it takes the rest. Other ends would be tried in all combinations."""
    first, *others = parts
    return re.escape(first) + "".join(f"(?>{sign}*?{re.escape(part)})" for part in others)


_LONGEST_COMPARED = 2000
"""Characters; comparing two texts takes the product of their lengths."""
_WEIGHT_OF_PLACE = 0.25


def nearest(index: Index, place: str, tool: str, arguments: Mapping[str, Any]) -> tuple[float, Entry] | None:
    """The recorded call of the same tool that is nearest in arguments and place, with its nearness; the earlier one of
    two that are equally near. None where the tool was never called."""
    way = index.way(place)
    best: tuple[float, Entry] | None = None
    near_places: dict[str, float] = {}
    for entry in index.by_tool.get(tool, ()):
        if entry.place not in near_places:
            near_places[entry.place] = _place_nearness(way, index.way(entry.place))
        near = (1 - _WEIGHT_OF_PLACE) * similarity(arguments, entry.call.arguments)
        near += _WEIGHT_OF_PLACE * near_places[entry.place]
        if best is None or near > best[0]:
            best = (near, entry)
    return best


def similarity(left: Any, right: Any) -> float:
    """1 for equal JSON values, 0 for values that have nothing in common.

    Objects: the mean over all keys of both. Lists: the mean over all places. Texts: difflib's ratio. Numbers: how
    small the difference is beside the larger one.
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        keys = {*left, *right}
        return sum(similarity(left[k], right[k]) for k in keys if k in left and k in right) / len(keys) if keys else 1.0
    if isinstance(left, list) and isinstance(right, list):
        longest = max(len(left), len(right))
        return sum(map(similarity, left, right)) / longest if longest else 1.0
    if isinstance(left, bool) or isinstance(right, bool):
        return float(left is right)
    if isinstance(left, int | float) and isinstance(right, int | float):
        try:
            return max(0.0, 1 - abs(left - right) / (max(abs(left), abs(right)) or 1))
        except OverflowError:  # a whole number beyond all fractions
            return 0.0
    if isinstance(left, str) and isinstance(right, str):
        if left == right:
            return 1.0
        matcher = difflib.SequenceMatcher(None, left[:_LONGEST_COMPARED], right[:_LONGEST_COMPARED], autojunk=False)
        return matcher.ratio()
    return float(left == right)


def _place_nearness(left: Sequence[str], right: Sequence[str]) -> float:
    """How much of both ways is the same beginning."""
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    return sum(1 for _ in shared) / max(len(left), len(right))
