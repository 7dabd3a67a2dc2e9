"""A source whose only world is itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self


class OneWorld:
    """Whoever derives from it has `tools` and `call`; see `mcp_bridge.World`."""

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[Self]:
        yield self

    async def state(self) -> None:
        return None
