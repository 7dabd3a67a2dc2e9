"""The requests under way. Each is known while it is answered, for the log and the metrics. Here are also the errors
that requests end with, how many may wait, and how they end when the server shuts down."""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcp_bridge.safe_text import shortened

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
_FINE_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass
class AnswerTimes:
    """Of one answer to a request; times as `time.perf_counter` has them, in seconds."""

    first: float
    last: float
    tokens: int = 1


@dataclass(eq=False)
class RequestRecord:
    """A request. Belongs to the event loop."""

    id: str
    began: float = field(default_factory=time.perf_counter)
    status: int = 0
    """Of HTTP, or that of the error which ended a stream. 0 until it is known."""
    error: str | None = None
    expected: int = 0
    """How many answers it asks for; 0 until it is known to ask for some."""
    answers: dict[int, AnswerTimes] = field(default_factory=dict)
    """Those that have begun."""
    finish_reasons: list[str] = field(default_factory=list)
    """Of the answers that are complete."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that were not computed for it."""

    def take_token(self, index: int) -> None:
        """One more token of answer `index` has come."""
        now = time.perf_counter()
        if (times := self.answers.get(index)) is None:
            self.answers[index] = AnswerTimes(now, now)
        else:
            times.last, times.tokens = now, times.tokens + 1

    def note(self, status: int, error: str) -> None:
        """It ends with an error."""
        self.status, self.error = status, error

    @property
    def waiting(self) -> int:
        """How many of its answers have no token yet."""
        return self.expected - len(self.answers)

    @property
    def running(self) -> int:
        """How many of its answers have begun, and are not complete."""
        return len(self.answers) - len(self.finish_reasons)

    @property
    def completion_tokens(self) -> int:
        """Of all its answers so far."""
        return sum(times.tokens for times in self.answers.values())


_current: ContextVar[RequestRecord] = ContextVar("toolbake_request")


@contextmanager
def recorded(given_id: str | None) -> Iterator[RequestRecord]:
    """Inside, `current_record` is a new record. `given_id`: the client's, taken where it is 1 to 128 characters of
    printable ASCII without blanks; any other could break a line of the log."""
    fine = given_id is not None and _FINE_ID.fullmatch(given_id)
    record = RequestRecord(given_id if given_id is not None and fine else f"req_{secrets.token_hex(12)}")
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def current_record() -> RequestRecord | None:
    """That of the request being answered, also in threads that it waits for; None outside of one."""
    return _current.get(None)


# ---------------------------------------------------------------------------------------------------------------------
# Errors in the form that OpenAI's clients read.

_MOST_CHARS = 2000
_SHOWN_CHARS = 100


class ApiError(Exception):
    """A request that cannot be answered: the HTTP status and OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = shown(message, _MOST_CHARS)
        param = None if param is None else shown(param)
        super().__init__(message)
        self.status = status
        self.kind = code or kind
        """In a word."""
        self.headers = headers
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(text: str, most: int = _SHOWN_CHARS) -> str:
    """What a client sent, cut to what helps: it may have sent megabytes."""
    return shortened(text, most)


def as_api_error(error: Exception) -> ApiError:
    """An error that nobody thought of goes to the log, and the client learns its kind."""
    if isinstance(error, ApiError):
        return error
    log.error("the endpoint failed", exc_info=error)
    record = current_record()
    by_id = "" if record is None else f" about {record.id}"
    return ApiError(500, f"the server failed: {type(error).__name__}; its log says more{by_id}", kind="server_error")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


# ---------------------------------------------------------------------------------------------------------------------
# The queue.

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
