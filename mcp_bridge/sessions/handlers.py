"""Handlers of what a server may ask of us while it works on a call. Imports nothing of the SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any

from ..errors import SourceError


@dataclass(frozen=True)
class Elicitation:
    """A server asks the user. `schema`: the form to fill in, as JSON Schema; `url`: a page to visit instead of it."""

    server: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None


@dataclass(frozen=True)
class Sampling:
    """A server asks for the words of a model. Messages are as in MCP: `{"role": "user", "content": {...}}`."""

    server: str
    messages: Sequence[Mapping[str, Any]]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: Sequence[str] = ()


@dataclass(frozen=True)
class Progress:
    """How far a call is. `progress` grows; `total` is None where the server does not know it."""

    server: str
    tool: str
    call_id: str | None
    progress: float
    total: float | None
    message: str | None


progress_listener: ContextVar[Callable[[Progress], Awaitable[None]] | None] = ContextVar(
    "toolbake_progress_listener", default=None
)
"""Who hears of the progress of the call that is made in this context, beside `Handlers.progress`."""


@dataclass(frozen=True)
class LogEntry:
    """A line of the server's log. `level`: `debug`, `info`, `notice`, `warning`, `error`, ..., as MCP names them."""

    server: str
    level: str
    data: Any
    logger: str | None = None


@dataclass(frozen=True)
class LogListener:
    """Somebody who calls, and `hear`s the log meanwhile. `caller`: equal for calls of the same client."""

    caller: Hashable
    hear: Callable[[LogEntry], Awaitable[None]]


log_listener: ContextVar[LogListener | None] = ContextVar("toolbake_log_listener", default=None)
"""Who hears the log of the server that is called in this context, beside `Handlers.log`, while the call is under way.

A server does not tell which call its log is about. Of several calls in one session, the one that began last hears it;
where they are of different callers, none does."""


Answered = Mapping[str, Any] | None
Root = str | PathLike[str]


@dataclass(frozen=True)
class Handlers:
    """Functions that answer servers; plain or async, plain ones in a thread. What has none is refused.

    A server is told at the beginning which of them there are. Where it asks for something else, it is told that this
    was refused, and what it makes of that is the tool's error.

    A function that raises leaves the rollout unscored: the call raises `ToolFailure`.
    """

    elicitation: Callable[[Elicitation], Answered | Awaitable[Answered]] | None = None
    """Gives the form's values, which may be `{}`, or None to decline."""
    sampling: Callable[[Sampling], str | Awaitable[str]] | None = None
    """Gives what the model says."""
    roots: Sequence[Root] | Callable[[], Sequence[Root] | Awaitable[Sequence[Root]]] | None = None
    """The folders that a server may work in, as paths or `file://` URLs, or a function that gives them."""
    progress: Callable[[Progress], Awaitable[None] | None] | None = None
    log: Callable[[LogEntry], Awaitable[None] | None] | None = None
    """Hears the server's log, from the level `debug` on where the server lets us choose."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_list = field.name == "roots" and isinstance(value, list | tuple)
            if value is not None and not callable(value) and not is_list:
                wanted = "a function or a list of paths" if field.name == "roots" else "a function"
                raise SourceError(f"handlers.{field.name} is {value!r:.100}; it must be {wanted}")
