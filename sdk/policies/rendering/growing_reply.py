"""A reply in tags while it grows: what of it counts for good, whatever comes.

What `parse_tagged_reply` reads of the complete text begins with what is known here. Back stays only what may become a
mark, and white space that may be cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from .call_parsing import CALL_CLOSE, CALL_OPEN, begun_call, count_brackets

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_MARKS = (CALL_OPEN, CALL_CLOSE)
_CLOSING = re.compile(rf"\s*\}}\s*{CALL_CLOSE}")


class GrowingText:
    """The text of tokens, one after the other; a character of several tokens comes with the last of them."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._known = 0
        """How many of the ids have been told; they are decoded again, as context of those that come."""

    def take(self, token: int) -> str:
        """What one more token adds."""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith("\ufffd"):
            return ""
        more = text[len(self._decode(self._ids[: self._known])) :]
        self._ids = self._ids[self._known :]
        self._known = len(self._ids)
        return more


@dataclass
class GrowingCall:
    """A call whose name is known, and its arguments so far, as they are written."""

    name: str
    arguments: str = ""


class GrowingReply:
    """Takes text as it comes. `reasoning`, `content` and `calls` are never taken back."""

    def __init__(self, *, reasoning_open: bool = False, most_calls: int | None = None) -> None:
        """`reasoning_open`: the prompt already ended in `<think>`. `most_calls`: so many are read, None for all; with
        0, what looks like a call is text."""
        self.reasoning = ""
        self.content = ""
        self.calls: list[GrowingCall] = []
        self._text = ""
        self._reader = self._read(reasoning_open, most_calls)

    def take(self, text: str) -> None:
        """More of it has come."""
        self._text += text
        next(self._reader, None)

    def _read(self, reasoning_open: bool, most_calls: int | None) -> Iterator[None]:
        """Reads as far as can be, and yields where it needs more text. It ends where nothing more is known for good
        until all is there."""
        place = yield from self._read_reasoning(reasoning_open)
        while most_calls == 0:
            self.content = self._text[place:]
            yield
        while (end := self._text.find(CALL_OPEN, place)) < 0:
            self.content = before_marks(self._text[place:], [CALL_OPEN]).rstrip()
            yield
        self.content = self._text[place:end].rstrip()
        while len(self.calls) != most_calls:
            place = yield from self._read_call(end + len(CALL_OPEN))
            while (end := self._text.find(CALL_OPEN, place)) < 0:
                yield

    def _read_reasoning(self, is_open: bool) -> Generator[None, None, int]:
        """Returns the place after it."""
        body = self._text.lstrip()
        while not body or (not is_open and body != _THINK_OPEN and _THINK_OPEN.startswith(body)):
            yield
            body = self._text.lstrip()
        place = len(self._text) - len(body)
        if not is_open:
            if not body.startswith(_THINK_OPEN):
                return 0
            place += len(_THINK_OPEN)
        while (end := self._text.find(_THINK_CLOSE, place)) < 0:
            self.reasoning = before_marks(self._text[place:], [_THINK_CLOSE]).strip("\n")
            yield
        self.reasoning = self._text[place:end].strip("\n")
        end += len(_THINK_CLOSE)
        while not (rest := self._text[end:].lstrip("\n")):
            yield
        return len(self._text) - len(rest)

    def _read_call(self, place: int) -> Generator[None, None, int]:
        """The call in the block that begins at `place`. Returns the place after it."""
        while (found := begun_call(self._text[place:])) is None or self._text[place + found[1]] != "{":
            yield
        name, start = found[0], place + found[1]
        call = GrowingCall(name)
        self.calls.append(call)
        depth, place = 0, start
        while True:
            depth, place = count_brackets(self._text, place, depth)
            written = self._text[start : place if depth == 0 else None]
            call.arguments = before_marks(written, _MARKS)
            if call.arguments != written and any(mark in written for mark in _MARKS):
                # Within a string, if that ends; else the call has ended here, and is none.
                call.arguments = call.arguments.rstrip()
                while True:
                    yield
            if depth == 0:
                break
            call.arguments = call.arguments.rstrip()
            yield
        while (closed := _CLOSING.match(self._text, place)) is None:
            yield
        return closed.end()


def before_marks(text: str, marks: Sequence[str]) -> str:
    """The text up to the first mark, or up to what may be the beginning of one."""
    places = [text.find(mark) for mark in marks]
    ends = [place for place in places if place >= 0]
    ends += [
        len(text) - size
        for mark in marks
        for size in range(1, min(len(mark), len(text) + 1))
        if text.endswith(mark[:size])
    ]
    return text[: min(ends, default=len(text))]
