"""The settled part of a growing reply. The listener of a stream hears of nothing else.

What `parse_tagged_reply` reads of the complete text begins with what is known here. Back stays only what may become a
mark, and white space that may be cut off.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from mcp_bridge.records import Tool

from ..policies.rendering import ChatRenderer, ParsedReply, reasoning_open
from ..policies.rendering.call_parsing import CALL_CLOSE, begun_call, count_brackets
from ..policies.rendering.renderer import CALL_OPEN
from .chat_request import ChatRequest
from .tool_calls import WrittenCall, new_call_id

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_MARKS = (CALL_OPEN, CALL_CLOSE)
_CLOSING = re.compile(rf"\s*\}}\s*{CALL_CLOSE}")


_MOST_TOKENS = 4
"""Of one character: it has so many bytes at most."""


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
        text, settled, past = self._decode(self._ids), len(self._ids), self._known
        if text.endswith("\ufffd"):  # a character that is not whole, or one that will never be
            settled -= _MOST_TOKENS - 1
            whole, text = text, self._decode(self._ids[: max(settled, 0)])
            if settled <= self._known or not whole.startswith(text):
                return ""
            past = max(0, past - 2 * _MOST_TOKENS)  # what is known may end within a character
        more = text[len(self._decode(self._ids[: self._known])) :]
        self._ids, self._known = self._ids[past:], settled - past
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
        self.spoken = ""
        """The content with white space at its end, which is not part of it if a call follows."""
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
            self.content = self.spoken = self._text[place:]
            yield
        while (end := self._text.find(CALL_OPEN, place)) < 0:
            self.spoken = before_marks(self._text[place:], [CALL_OPEN])
            self.content = self.spoken.rstrip()
            yield
        self.spoken = self._text[place:end]
        self.content = self.spoken.rstrip()
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


# ---------------------------------------------------------------------------------------------------------------------

_READS = 64
"""How often a reply is read while it doubles: each token would make long replies cost the square of their length."""
_LOOK_BACK = 12
"""Tokens. A mark that changes what text before it means (`<tool_call>`, `<think>`) is read only when it is whole; the
longest has 11 characters, and no token has less than one."""
_MARKS_BEGIN = frozenset("<[{\ufffd")
"""What all marks begin with, and what half a character is shown as."""


class SettledReply:
    """The reasoning, the content and the calls so far, up to where later tokens could still change them."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.content = ""
        self.calls: list[WrittenCall] = []
        """With their arguments so far."""
        self.stopped = False
        """Whether a stop string has come."""

    def hear(self, token: int) -> bool:
        """Take one more token; True when there is more to say."""
        raise NotImplementedError


def settled_reply(
    renderer: ChatRenderer, prompt_ids: Sequence[int], request: ChatRequest, tools: Sequence[Tool]
) -> SettledReply:
    """What reads the answer to a request while it grows."""
    if renderer.tagged_text([]) is None:
        return ComparedReply(
            lambda ids: renderer.parse(ids, tools, prompt_ids=prompt_ids),
            renderer.decode,
            request.stops,
            with_tools=bool(tools),
        )
    return TaggedReply(
        lambda ids: renderer.tagged_text(ids) or "",
        request.stops,
        reasoning_open=reasoning_open(renderer, prompt_ids),
        most_calls=0 if not tools else 1 if request.parallel_tool_calls is False else None,
    )


class TaggedReply(SettledReply):
    """A reply in tags: what may not become a mark or a stop string is settled at once."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str],
        *,
        reasoning_open: bool = False,
        most_calls: int | None = None,
    ) -> None:
        """`stops` end the content before them, after which calls do not count. For the others see `GrowingReply`."""
        super().__init__()
        self._stops = stops
        self._text = GrowingText(decode)
        self._reply = GrowingReply(reasoning_open=reasoning_open, most_calls=most_calls)

    def hear(self, token: int) -> bool:
        """See `SettledReply`."""
        if not (text := self._text.take(token)):
            return False
        self._reply.take(text)
        before = self.reasoning, self.content, self.calls
        self.reasoning = self._reply.reasoning
        self.content = before_marks(self._reply.content, self._stops)
        self.stopped = any(stop in self._reply.spoken for stop in self._stops)
        if not self._stops:  # one may come in what was no call after all
            ids = [call.id for call in self.calls]
            ids += [new_call_id() for _ in self._reply.calls[len(ids) :]]
            self.calls = [
                WrittenCall(id, call.name, call.arguments) for id, call in zip(ids, self._reply.calls, strict=True)
            ]
        return (self.reasoning, self.content, self.calls) != before


class ComparedReply(SettledReply):
    """A reply in a form of its own.

    Text counts at once where no mark can have begun in the last `_LOOK_BACK` tokens. Where one can, text counts once it
    stands in two readings of the reply, so many tokens apart: half a mark stands in the second only, and so does half a
    character. White space at the end may yet be cut off, and the beginning of a stop string may become one. Calls count
    when all is there, and so does content that begins as JSON does, since some families write calls without marks.
    """

    def __init__(
        self,
        parse: Callable[[Sequence[int]], ParsedReply],
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str],
        *,
        with_tools: bool,
    ) -> None:
        """`parse` reads the reply's tokens, and `decode` tells their text with all marks; `stops` end the content
        before them. `with_tools`: what begins as JSON does may be a call, in which a stop string ends nothing."""
        super().__init__()
        self._parse = parse
        self._decode = decode
        self._ids: list[int] = []
        self._stops = stops
        self._with_tools = with_tools
        self._readings: deque[tuple[int, ParsedReply]] = deque()
        """With how many tokens each was read; the first is the latest that lies far enough back, if any does."""
        self._next_reading = 0

    def hear(self, token: int) -> bool:
        """See `SettledReply`."""
        self._ids.append(token)
        count = len(self._ids)
        if count < self._next_reading:
            return False
        self._next_reading = count + max(1, count // _READS)
        new = self._parse(self._ids)
        self._readings.append((count, new))
        while len(self._readings) > 1 and self._readings[1][0] <= count - _LOOK_BACK:
            self._readings.popleft()
        read_with, old = self._readings[0]
        if _MARKS_BEGIN.isdisjoint(self._decode(self._ids[-_LOOK_BACK:])):
            old = new
        elif read_with > count - _LOOK_BACK:
            return False
        before = self.reasoning, self.content
        self.reasoning = _grown(self.reasoning, _common(old.reasoning or "", new.reasoning or "", self.reasoning))
        common = _common(old.content, new.content, self.content)
        settled = before_marks(common, self._stops)
        may_be_call = settled.lstrip().startswith(("{", "["))
        if not may_be_call:
            self.content = _grown(self.content, settled)
        if not (may_be_call and self._with_tools):
            self.stopped = any(stop in common for stop in self._stops)
        return (self.reasoning, self.content) != before


def _common(old: str, new: str, said: str) -> str:
    """The beginning that both have, without white space at its end; from what was `said` on where both have that."""
    start = len(said) if old.startswith(said) and new.startswith(said) else 0
    pairs = zip(old[start:], new[start:], strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return new[: start + same].rstrip()


def _grown(said: str, now: str) -> str:
    """What was said is not taken back; whether the reply keeps to it shows when it is complete."""
    return now if now.startswith(said) else said
