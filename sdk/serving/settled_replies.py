"""What of a growing reply counts for good: the listener of a stream hears of nothing else."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mcp_bridge.records import Tool

from ..policies.rendering import ChatRenderer, ParsedReply, reasoning_open
from ..policies.rendering.growing_reply import GrowingReply, GrowingText, before_marks
from .chat_request import ChatRequest
from .tool_calls import WrittenCall, new_call_id

_READS = 64
"""How often a reply is read while it doubles: each token would make long replies cost the square of their length."""
_LOOK_BACK = 12
"""Tokens. A mark that changes what text before it means (`<tool_call>`, `<think>`) is read only when it is whole; the
longest has 11 characters, and no token has less than one."""
_MARKS_BEGIN = frozenset("<[{\ufffd")
"""What all marks begin with, and what half a character is shown as."""


class SettledReply(Protocol):
    """The reasoning, the content and the calls so far, up to where later tokens could still change them."""

    reasoning: str
    content: str
    calls: list[WrittenCall]
    """With their arguments so far."""
    stopped: bool
    """Whether a stop string has come."""

    def hear(self, token: int) -> bool:
        """Take one more token; True when there is more to say."""
        ...


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


class TaggedReply:
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
        self.reasoning = ""
        self.content = ""
        self.calls: list[WrittenCall] = []
        self.stopped = False
        self._stops = stops
        self._text = GrowingText(decode)
        self._reply = GrowingReply(reasoning_open=reasoning_open, most_calls=most_calls)

    def hear(self, token: int) -> bool:
        """See `SettledReply`."""
        if not (text := self._text.take(token)):
            return False
        self._reply.take(text)
        before = self.reasoning, self.content, self.calls
        self.reasoning, content = self._reply.reasoning, self._reply.content
        self.content = before_marks(content, self._stops)
        self.stopped = any(stop in content for stop in self._stops)
        if not self._stops:  # one may come in what was no call after all
            ids = [call.id for call in self.calls]
            ids += [new_call_id() for _ in self._reply.calls[len(ids) :]]
            self.calls = [
                WrittenCall(id, call.name, call.arguments) for id, call in zip(ids, self._reply.calls, strict=True)
            ]
        return (self.reasoning, self.content, self.calls) != before


class ComparedReply:
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
        self._parse = parse
        self._decode = decode
        self._ids: list[int] = []
        self._stops = stops
        self._with_tools = with_tools
        self.stopped = False
        """Whether a stop string has come."""
        self._readings: deque[tuple[int, ParsedReply]] = deque()
        """With how many tokens each was read; the first is the latest that lies far enough back, if any does."""
        self._next_reading = 0
        self.reasoning = ""
        self.content = ""
        self.calls: list[WrittenCall] = []

    def hear(self, token: int) -> bool:
        """Take one more token; True when there is more to say."""
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
