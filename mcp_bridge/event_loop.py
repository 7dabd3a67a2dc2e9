"""What runs the tasks: asyncio, for which some things are done without anyio's search for that, or trio."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator

import anyio.lowlevel


def on_asyncio() -> bool:
    """Whether the current task is one of asyncio's."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def own_checkpoint() -> Callable[[], Awaitable[None]]:
    """What lets other tasks have their turn, for the kind of loop that runs now; cancelled tasks end there."""
    return _turn if on_asyncio() else anyio.lowlevel.checkpoint


@types.coroutine
def _turn() -> Generator[None, None, None]:
    # As `asyncio.sleep(0)`: the loop goes on with this task after those that are ready.
    yield
