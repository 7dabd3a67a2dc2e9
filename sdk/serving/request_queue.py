"""The requests under way: how many may wait, and how they end when the server shuts down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from .api_errors import ApiError
from .request_record import RequestRecord

MOST_WAITING = 256
"""Four times the rows that the embedded engine decodes at once."""
_LONGEST_RETRY_S = 60
"""OpenAI's clients take no longer one from Retry-After."""


class RequestQueue:
    """The requests under way, the oldest first. Belongs to one event loop."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        """`most_waiting`: answers that may be without a token at once."""
        self._most_waiting = most_waiting
        self._requests: dict[RequestRecord, anyio.CancelScope] = {}
        self._ended = False
        self._left = anyio.Event()
        self.draining = False
        """Whether the server shuts down: those under way may finish, and no more are taken."""

    @property
    def waiting(self) -> int:
        """How many answers have no token yet: they are read, rendered, wait for a row, or their prompt is computed."""
        return sum(request.waiting for request in self._requests)

    @property
    def running(self) -> int:
        """How many answers have tokens, and are not complete."""
        return sum(request.running for request in self._requests)

    @property
    def full(self) -> bool:
        """Whether another request would be refused."""
        return self.waiting >= self._most_waiting

    @contextmanager
    def place(self, request: RequestRecord) -> Iterator[None]:
        """Inside, the request is under way with one answer, or more by `expect`. Raises `ApiError`: 429 where too many
        wait, 503 where the server shuts down, also when it does in the middle."""
        if self.draining:
            raise shutting_down()
        self._require_room(1)
        request.expected = 1
        scope = anyio.CancelScope()
        self._requests[request] = scope
        try:
            with scope:
                yield
        finally:
            del self._requests[request]
            left, self._left = self._left, anyio.Event()
            left.set()
        if scope.cancelled_caught:
            raise shutting_down()

    def expect(self, request: RequestRecord, answers: int) -> None:
        """It asks for so many answers. Raises `ApiError` (429) where that is too many together with those that wait."""
        if answers > 1 and self.waiting > 1:  # alone, it may have more than may wait
            self._require_room(answers - 1)
        request.expected = answers

    async def drain(self, seconds: float) -> None:
        """Take no more, and return when those under way are answered; after `seconds` they end with an error."""
        self.draining = True
        with anyio.move_on_after(seconds):
            await self._empty()
        self.end()
        await self._empty()

    def end(self) -> None:
        """End those under way now."""
        for scope in self._requests.values():
            scope.cancel()

    async def _empty(self) -> None:
        while self._requests:
            await self._left.wait()

    def _require_room(self, more: int) -> None:
        waiting = self.waiting
        if waiting + more <= self._most_waiting:
            return
        oldest = next(request for request in self._requests if request.waiting)
        waited = time.perf_counter() - oldest.began
        raise ApiError(
            429,
            f"{waiting} answers wait for their first token, and at most {self._most_waiting} may; ask again later",
            code="queue_full",
            kind="rate_limit_error",
            # Whoever comes next will wait about as long as the one that waits longest has.
            headers={"retry-after": str(min(_LONGEST_RETRY_S, math.ceil(max(waited, 1))))},
        )


def shutting_down() -> ApiError:
    return ApiError(
        503,
        "the server is shutting down; ask again, another one may answer",
        code="shutting_down",
        kind="server_error",
        headers={"retry-after": "1", "connection": "close"},
    )
