"""What is known of each request while it is answered: its id, its times and its tokens. The log, the metrics and the
queue read it."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

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
