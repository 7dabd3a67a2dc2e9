"""Wrapped sources of worlds: each changes one thing about another source; and counts of what its worlds were told."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from threading import Lock
from typing import Any, Self

from mcp_bridge.errors import SourceError
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.world import ForkableWorld, HeldCopy, SaidBySource, World, WorldSource


class WrappedSource(SaidBySource):
    """Base of sources that record, spoil or slow down another: says of itself what that one says."""

    def __init__(self, source: WorldSource) -> None:
        self.source = source

    @property
    def tools(self) -> Sequence[Tool]:
        return self.source.tools

    @property
    def name(self) -> str:
        return str(getattr(self.source, "name", "") or type(self.source).__name__)


class WrappedWorld(ABC):
    """Base of the worlds of such a source: one world of the other, with something done to its calls."""

    def __init__(self, world: World, world_id: str) -> None:
        self.world = world
        self.world_id = world_id

    @property
    def tools(self) -> Sequence[Tool]:
        return self.world.tools

    @abstractmethod
    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """See `World.call`."""

    async def state(self) -> dict[str, Any] | None:
        """See `World.state`."""
        return await self.world.state()

    async def fork(self) -> HeldCopy:
        """See `ForkableWorld.fork`. Raises `SourceError` where the worlds behind this one cannot be forked."""
        if not isinstance(self.world, ForkableWorld):
            raise SourceError(f"a world of {type(self.world).__name__} cannot be forked; sandboxes can")
        behind, kept = await self.world.fork(), self.copied()

        @asynccontextmanager
        async def open_fork(world_id: str) -> AsyncIterator[WrappedWorld]:
            async with behind.open(world_id) as world:
                fork = kept.copied()
                fork.world, fork.world_id = world, world_id
                fork.begin_fork()
                yield fork

        return HeldCopy(open_fork, behind.aclose)

    def copied(self) -> Self:
        """The same as this one. A subclass copies here what its calls change."""
        return copy.copy(self)

    def begin_fork(self) -> None:  # noqa: B027 - most have nothing to do
        """Called in a fork before it is used."""


class Tally:
    """What happened to each tool in all worlds of one source, and how often; safe for threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, tool: str, what: str) -> None:
        with self._lock:
            self._counts[tool, what] += 1

    def by_tool(self) -> dict[str, dict[str, int]]:
        """`{"get": {"recorded": 6, "nearest": 1}}`, sorted."""
        with self._lock:
            counts = sorted(self._counts.items())
        tools: dict[str, dict[str, int]] = {}
        for (tool, what), number in counts:
            tools.setdefault(tool, {})[what] = number
        return tools
