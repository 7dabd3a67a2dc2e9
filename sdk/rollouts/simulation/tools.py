"""Tools that take their time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.world import Setup, World, WorldSource
from sandboxes.wrapping import WrappedSource


class SlowTools(WrappedSource):
    """`source`, each call of which takes `latency_s`. Example: `SlowTools(Helpdesk(), latency_s=0.1)`"""

    def __init__(self, source: WorldSource, *, latency_s: float) -> None:
        super().__init__(source)
        self.latency_s = latency_s
        self.calls = 0

    @asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[World]:
        """See `WorldSource.open_world`."""
        async with self.source.open_world(world_id, setup) as world:
            yield _SlowWorld(world, self)


class _SlowWorld:
    def __init__(self, world: World, source: SlowTools) -> None:
        self._world = world
        self._source = source

    @property
    def tools(self) -> Sequence[Tool]:
        return self._world.tools

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """See `World.call`."""
        self._source.calls += 1
        await anyio.sleep(self._source.latency_s)
        return await self._world.call(name, arguments, call_id=call_id, timeout_s=timeout_s)

    async def state(self) -> dict[str, Any] | None:
        """See `World.state`."""
        return await self._world.state()
