"""Bytes into lines, with a limit on what one line may hold in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_KEPT = 4096
_COUNTED_TIMES = 16
"""A line is read and counted up to so many times the limit; after that it is taken not to end."""

_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,\s*"(?:result|error)"')
_RESULT_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"\s*:')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True)
class LongLine:
    """A line above the limit: how long it is, and its two ends."""

    size: int
    """Bytes, without the line's end."""
    ended: bool
    """False where its end was not waited for."""
    head: bytes
    tail: bytes

    def answers(self) -> int | None:
        """The id of the request that it answers; `None` where it is something else, or cannot be told from its ends.

        The id is read only where it must be a member of the outermost object: right at its begin or at its end.
        """
        found = _ID_FIRST.match(self.head)
        if found is None and self.ended and _RESULT_FIRST.match(self.head):
            found = _ID_LAST.search(self.tail)
        return int(found.group(1)) if found else None


class LineSplitter:
    """Feed it chunks. Holds at most `limit` bytes, and copies each byte a fixed number of times."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """The lines that end in `chunk`. Stop feeding after a `LongLine` that has not ended."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            yield self._take(ended=True)
        self._add(rest)
        if self._size > self._limit * _COUNTED_TIMES:
            yield self._take(ended=False)

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size <= self._limit:
            return
        whole = b"".join(self._parts)
        if self._head is None:
            self._head = whole[:_KEPT]
        self._parts = [whole[-_KEPT:]]

    def _take(self, *, ended: bool) -> bytes | LongLine:
        line: bytes | LongLine = b"".join(self._parts)
        if self._head is not None:
            assert isinstance(line, bytes)
            line = LongLine(self._size, ended, self._head, line)
        self._parts, self._size, self._head = [], 0, None
        return line
