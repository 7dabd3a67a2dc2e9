"""Time limits of calls. A timer for each call costs more than a quick call itself: those of one limit share one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from math import inf
from types import TracebackType

import anyio

from ..event_loop import on_asyncio

_KNOWN_ANYIO = "4.16."
"""The releases of anyio whose inside `call_scopes` knows."""
_EARLY_S = 1e-6
"""So much before its end a limit has passed: the loop rings a little early where numbers are rounded."""

Within = Callable[[float | None], AbstractContextManager[anyio.CancelScope]]
"""A scope that is cancelled when the seconds have passed: `anyio.move_on_after`, or `Deadlines.within`."""


class Deadlines(dict[float, "DeadlineQueue"]):
    """The time limits of the calls of one toolset, or of one stream's rollouts: by the limit in seconds, where the
    calls with it wait. To be looked up for each call, which begins at once. Belongs to one event loop at a time."""

    def __missing__(self, limit_s: float) -> DeadlineQueue:
        queue = self[limit_s] = DeadlineQueue(limit_s, self)
        return queue

    def within(self, limit_s: float | None) -> AbstractContextManager[anyio.CancelScope]:
        """As `anyio.move_on_after`, for limits that many share. Whether it was cancelled is asked of the scope before
        anything else is awaited: it may be used again."""
        if limit_s is None or not 0 < limit_s < inf:
            return anyio.move_on_after(limit_s)  # which refuses what is no number
        return _Limited(self[limit_s])


class _Limited:
    """A scope of a queue, for a `with` block."""

    __slots__ = ("_queue", "_scope")

    def __init__(self, queue: DeadlineQueue) -> None:
        self._queue = queue

    def __enter__(self) -> anyio.CancelScope:
        self._scope = self._queue.begin()
        return self._scope.__enter__()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool:
        try:
            return bool(self._scope.__exit__(exc_type, exc_val, exc_tb))
        finally:
            self._queue.end(self._scope)


class DeadlineQueue:
    """The calls under way that have the same limit, in the order in which they began: the first that has not ended is
    the next to be cancelled, and one timer waits for that. Without calls for as long as its limit it is forgotten."""

    def __init__(self, limit_s: float, queues: dict[float, DeadlineQueue]) -> None:
        self._limit_s = limit_s
        self._queues = queues
        self._ends: dict[anyio.CancelScope, float] = {}
        """In seconds of the loop's clock. A dict keeps the order, and a call that has ended takes no place in it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._make: type[anyio.CancelScope] = anyio.CancelScope
        self._spare: list[anyio.CancelScope] = []
        """Scopes of calls that have ended, for the next: as many as there were calls at once."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> anyio.CancelScope:
        """A scope, to be entered now, that is cancelled when the limit has passed. `end` follows in any case."""
        if self._loop is None or self._loop.is_closed():
            if not on_asyncio():
                return anyio.CancelScope(deadline=anyio.current_time() + self._limit_s)
            # The timer of a loop that has ended would never ring.
            self._loop, self._timer, self._ends = asyncio.get_running_loop(), None, {}
            self._make = _scope_type()
        scope = self._spare.pop() if self._spare else self._make()
        self._ends[scope] = self._loop.time() + self._limit_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit_s, self._ring)
        return scope

    def end(self, scope: anyio.CancelScope) -> None:
        """Once the scope was left."""
        if self._ends.pop(scope, None) is not None and getattr(scope, "is_as_new", False):
            self._spare.append(scope)

    def _ring(self) -> None:
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        while self._ends:
            scope, end = next(iter(self._ends.items()))
            if end > now + _EARLY_S:
                self._timer = self._loop.call_later(end - now, self._ring)
                return
            del self._ends[scope]
            scope.cancel()
        if self._queues.get(self._limit_s) is self:
            del self._queues[self._limit_s]


def _scope_type() -> type[anyio.CancelScope]:
    if not version("anyio").startswith(_KNOWN_ANYIO):
        return anyio.CancelScope
    from .call_scopes import CallScope  # imports private names of anyio, which another release may not have

    return CallScope
