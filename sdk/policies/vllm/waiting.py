"""State that threads change and coroutines of an event loop wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class SharedState:
    """A lock, and a way to hear of changes: in threads by `changed.wait_for`, in coroutines by `until`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def notify(self) -> None:
        """Something changed; called with `changed` held."""
        self.changed.notify_all()
        for loop, event in self._waiting:
            # A loop that has been closed has nobody left who waits.
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def until(self, look: Callable[[], T | None]) -> T:
        """What `look` returns, as soon as that is more than None. It is called with `changed` held, and may raise."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        try:
            while True:
                entry[1].clear()
                with self.changed:
                    self._waiting.add(entry)
                    found = look()
                if found is not None:
                    return found
                await entry[1].wait()
        finally:
            with self.changed:
                self._waiting.discard(entry)
