"""Wrapped sources of worlds: each changes one thing about another source; and counts of what its worlds were told."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from threading import Lock
from typing import Any, Generic, Self, TypeVar

from mcp_bridge.errors import SourceError
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.world import ForkableWorld, SaidBySource, World, WorldCopy, WorldSource


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

    async def fork(self) -> WrappedCopy[Self]:
        """See `ForkableWorld.fork`. Raises `SourceError` where the worlds behind this one cannot be forked."""
        if not isinstance(self.world, ForkableWorld):
            raise SourceError(f"a world of {type(self.world).__name__} cannot be forked; sandboxes can")
        return WrappedCopy(await self.world.fork(), self.copied())

    def copied(self) -> Self:
        """The same as this one. A subclass copies here what its calls change."""
        return copy.copy(self)

    def begin_fork(self) -> None:  # noqa: B027 - most have nothing to do
        """Called in a fork before it is used."""


W = TypeVar("W", bound=WrappedWorld)


class WrappedCopy(Generic[W]):
    """A wrapped world as it was at one moment; satisfies `WorldCopy`."""

    def __init__(self, behind: WorldCopy, kept: W) -> None:
        self._behind = behind
        self._kept = kept

    @asynccontextmanager
    async def open(self, world_id: str) -> AsyncIterator[W]:
        """See `WorldCopy.open`."""
        async with self._behind.open(world_id) as world:
            fork = self._kept.copied()
            fork.world, fork.world_id = world, world_id
            fork.begin_fork()
            yield fork

    async def aclose(self) -> None:
        """See `WorldCopy.aclose`."""
        await self._behind.aclose()


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
