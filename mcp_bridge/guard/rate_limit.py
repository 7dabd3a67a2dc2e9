"""The rate limit of a server: calls at once and calls in a second, over all worlds."""

from __future__ import annotations

import anyio

from ..sources.server_options import ServerOptions


class Turns:
    """Turns at one server, given in the order in which they are asked for."""

    def __init__(self, *, max_concurrency: int | None, calls_per_second: float | None) -> None:
        self._free = anyio.Semaphore(max_concurrency) if max_concurrency is not None else None
        self._bucket = TokenBucket(calls_per_second) if calls_per_second is not None else None

    @classmethod
    def of(cls, options: ServerOptions) -> Turns | None:
        """The turns that the options ask for; None where there is no limit."""
        if options.max_concurrency is None and options.calls_per_second is None:
            return None
        return cls(max_concurrency=options.max_concurrency, calls_per_second=options.calls_per_second)

    async def take(self) -> None:
        """Wait for a turn; `give_back` ends it."""
        if self._free is not None:
            await self._free.acquire()
        if self._bucket is not None:
            try:
                await self._bucket.take()
            except BaseException:
                self.give_back()
                raise

    def give_back(self) -> None:
        if self._free is not None:
            self._free.release()


class TokenBucket:
    """At most `per_second` takes in a second on the long run; up to a second's worth of them at once."""

    def __init__(self, per_second: float) -> None:
        self._interval_s = 1.0 / per_second
        self._burst_s = max(0.0, 1.0 - self._interval_s)
        self._next_s = float("-inf")
        """When the next token would be there if all were taken as they come."""

    async def take(self) -> None:
        """Wait for a token. Whoever is cancelled while waiting has used one up."""
        now = anyio.current_time()
        self._next_s = max(self._next_s, now - self._burst_s)
        wait_s = self._next_s - now
        self._next_s += self._interval_s
        if wait_s > 0:
            await anyio.sleep(wait_s)
