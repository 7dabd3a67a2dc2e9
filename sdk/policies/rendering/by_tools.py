"""What is made of a list of tools, made once: writing schemas of many tools anew for every turn takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from mcp_bridge.records import Tool

Made = TypeVar("Made")

_MOST_LISTS = 64


class ByTools(Generic[Made]):
    """`make(tools)`, kept for the next time that the same `Tool` objects are given; they are frozen records."""

    def __init__(self, make: Callable[[Sequence[Tool]], Made]) -> None:
        self._make = make
        # The tools are kept too: their ids stay theirs.
        self._kept: dict[tuple[int, ...], tuple[Sequence[Tool], Made]] = {}

    def __call__(self, tools: Sequence[Tool]) -> Made:
        key = tuple(map(id, tools))
        found = self._kept.get(key)
        if found is None:
            while len(self._kept) >= _MOST_LISTS:
                del self._kept[next(iter(self._kept))]
            found = self._kept[key] = (list(tools), self._make(tools))
        return found[1]
