"""What runs the tasks: asyncio, for which some things are done without anyio's search for that, or trio."""

from __future__ import annotations

import asyncio


def on_asyncio() -> bool:
    """Whether the current task is one of asyncio's."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
