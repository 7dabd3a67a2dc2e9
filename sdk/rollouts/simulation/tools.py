"""Tools that take their time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from mcp_bridge.records import ToolResult
from mcp_bridge.world import Setup, World, WorldSource
from sandboxes.wrapping import WrappedSource, WrappedWorld


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
            yield _SlowWorld(world, world_id, self)


class _SlowWorld(WrappedWorld):
    def __init__(self, world: World, world_id: str, source: SlowTools) -> None:
        super().__init__(world, world_id)
        self._source = source

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """See `World.call`."""
        self._source.calls += 1
        await anyio.sleep(self._source.latency_s)
        return await self.world.call(name, arguments, call_id=call_id, timeout_s=timeout_s)
