"""What a reply says for good while it is still being sampled."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence

from ..policies.rendering import ParsedReply

_READS = 64
"""How often a reply is read while it doubles: each token would make long replies cost the square of their length."""
_LOOK_BACK = 12
"""Tokens. A mark that changes what text before it means (`<tool_call>`, `<think>`) is read only when it is whole; the
longest has 11 characters, and no token has less than one."""


class SettledReply:
    """The reasoning and the content so far, up to where later tokens could still change them.

    Text counts once it stands in two readings of the reply, `_LOOK_BACK` tokens apart: half a mark stands in the first
    only, and so does half a character. White space at the end may yet be cut off, and the beginning of a stop string
    may become one.
    """

    def __init__(
        self,
        parse: Callable[[Sequence[int]], ParsedReply],
        start_ids: Sequence[int],
        stops: Sequence[str],
        *,
        with_tools: bool = False,
    ) -> None:
        """`parse` reads the reply's tokens, which begin with `start_ids`; `stops` end the content before them.

        `with_tools`: content that begins as JSON does waits for its end, since some families write calls without marks.
        """
        self._with_tools = with_tools
        self._parse = parse
        self._ids = list(start_ids)
        self._stops = stops
        self._readings: deque[tuple[int, ParsedReply]] = deque()
        """With how many tokens each was read; the first is the latest that lies far enough back, if any does."""
        self._next_reading = 0
        self.reasoning = ""
        self.content = ""

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
        if read_with > count - _LOOK_BACK:
            return False
        before = self.reasoning, self.content
        self.reasoning = _grown(self.reasoning, _common(old.reasoning or "", new.reasoning or "", self.reasoning))
        settled = before_stops(_common(old.content, new.content, self.content), self._stops)
        if not (self._with_tools and settled.lstrip().startswith(("{", "["))):
            self.content = _grown(self.content, settled)
        return (self.reasoning, self.content) != before


def before_stops(content: str, stops: Sequence[str]) -> str:
    """The content up to the first stop string, or up to what may be the beginning of one."""
    places = [content.find(stop) for stop in stops]
    ends = [place for place in places if place >= 0]
    ends += [
        len(content) - size
        for stop in stops
        for size in range(1, min(len(stop), len(content) + 1))
        if content.endswith(stop[:size])
    ]
    return content[: min(ends, default=len(content))]


def _common(old: str, new: str, said: str) -> str:
    """The beginning that both have, without white space at its end; from what was `said` on where both have that."""
    start = len(said) if old.startswith(said) and new.startswith(said) else 0
    pairs = zip(old[start:], new[start:], strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return new[: start + same].rstrip()


def _grown(said: str, now: str) -> str:
    """What was said is not taken back; whether the reply keeps to it shows when it is complete."""
    return now if now.startswith(said) else said
