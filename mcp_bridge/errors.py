"""Errors of the bridge, apart from the policy's own mistakes.

Two families: a `SourceError` is a mistake in what the user gave us and is found at start;
a `ToolFailure` is infrastructure breaking during a run and leaves the rollout unscored.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn

if TYPE_CHECKING:
    from traceback import FrameSummary

Delivery = Literal["not_sent", "refused", "answered", "unknown"]
"""What is known of a failed call's request.

| value | the request | called again |
| --- | --- | --- |
| `not_sent` | never left this process | nothing can happen twice |
| `refused` | reached a server that did not take it: it no longer knows the session, or asks for a login | the same |
| `answered` | was taken, and the answer cannot be used: no message of MCP, or against the schema | may happen twice |
| `unknown` | was sent, at least in part, and no answer came | may happen twice |
"""


def retry_after_s(header: str | None) -> float | None:
    """How long a server asks to wait, in seconds from now, by either form of `Retry-After` (RFC 9110, 10.2.3); None
    where it does not say, or cannot be understood."""
    value = (header or "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, math.ceil((when - datetime.now(UTC)).total_seconds()))


class BridgeError(Exception):
    """Base of all errors of the bridge. The message names the value, the choices and the fix."""


class SourceError(BridgeError):
    """A tool source that cannot be used: a bad `mcp.json`, no such command, two tools of one name."""


class ToolFailure(BridgeError):
    """The infrastructure behind a tool failed. Never the policy's fault, never a bad answer.

    `delivery`: whether the server may have done what was asked, see `Delivery`.
    `world_lost`: the world's state went with its session; every further call in this world fails in the same way.
    `retry_after_s`: how long the server asks to wait before the call is sent again; `None` where it does not ask.
    """

    def __init__(
        self,
        message: str = "",
        *,
        delivery: Delivery = "unknown",
        world_lost: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.delivery: Delivery = delivery
        self.world_lost = world_lost
        self.retry_after_s = retry_after_s


class ServerDied(ToolFailure):
    """A server's process or connection ended; the message carries the end of its stderr."""


class CallTimeout(ToolFailure):
    """No answer within the time limit. Whether the call took effect is unknown."""


class OutcomeUnknown(ToolFailure):
    """A call's answer was lost, and whether the call took effect cannot be told. It was not made again.

    It is also a `ServerDied` or a `CallTimeout` where that is what lost the answer.
    """

    @classmethod
    def after(cls, failure: ToolFailure, message: str) -> OutcomeUnknown:
        """The error for `failure`, whose kind and `world_lost` it keeps."""
        kind = next((made for lost, made in _UNKNOWN_AFTER.items() if isinstance(failure, lost)), cls)
        unknown: OutcomeUnknown = kind(message, delivery=failure.delivery, world_lost=failure.world_lost)
        unknown.__cause__ = failure
        return unknown


# What people read in tracebacks and reports is the name that is documented.
_UNKNOWN_AFTER: dict[type[ToolFailure], Any] = {
    lost: type("OutcomeUnknown", (OutcomeUnknown, lost), {}) for lost in (ServerDied, CallTimeout)
}


# ---------------------------------------------------------------------------------------------------------------------
# Errors out of task groups, as themselves: who connects tools need not know that task groups are used inside.


@contextlib.contextmanager
def ungrouped() -> Iterator[None]:
    """An exception group that holds errors of the bridge alone comes out as the first of them."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise_as_itself(group)


def raise_as_itself(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """As `ungrouped`, for a group that was caught."""
    plain = as_itself(group)
    if plain is group:
        raise group
    raise plain from plain.__cause__


def as_itself(error: BaseException, raised: BaseException | None = None) -> BaseException:
    """The error to raise in place of `error`.

    `raised`: what the block inside raised; groups that hold nothing else are left out around it. Of several errors
    of the bridge the first is given, with the others in its notes. Every other error is given as it is.
    """
    inner = list(_leaves(error, raised))
    if raised is not None and inner == [raised]:
        if not isinstance(raised, BaseExceptionGroup):
            return raised
        error, inner = raised, list(_leaves(raised, None))
    if not all(isinstance(one, BridgeError) for one in inner):
        return error
    first, *others = inner
    for other in others:
        first.add_note(f"besides: {type(other).__name__}: {other}")
    return first


def _leaves(error: BaseException, whole: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup) and error is not whole:
        for one in error.exceptions:
            yield from _leaves(one, whole)
    else:
        yield error


def users_frame(error: BaseException) -> FrameSummary | None:
    """Where in the user's own code an error came from: the innermost frame of neither a library nor toolbake.

    A mistyped field of a rollout is raised inside pydantic, but it is the verifier's line that needs the fix. Without
    such a frame the innermost of all; None where nothing was running.
    """
    import os
    import sysconfig
    import traceback

    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    root = os.path.dirname(os.path.dirname(__file__))
    ours = (os.path.join(root, name) for name in ("mcp_bridge", "sandboxes", "sdk"))
    elsewhere = tuple(os.path.join(folder, "") for folder in (*libraries, *ours))
    own = [f for f in frames if not f.filename.startswith(elsewhere)]
    return next(reversed(own or frames), None)


def users_line(error: BaseException) -> str:
    """`users_frame` as the end of a message: ` (verify.py:7)`; empty where there is none."""
    frame = users_frame(error)
    return f" ({frame.filename}:{frame.lineno})" if frame is not None else ""


def kind_of(value: object) -> str:
    """What a value is, for a message: `a list`, `an int`, `None`."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def is_cancelled() -> bool:
    """Whether this task was cancelled, and not only what it waits for, which raises the same error. Passed on, that one
    would end all tasks beside it in silence."""
    import asyncio

    import anyio

    try:
        task = asyncio.current_task()
    except RuntimeError:  # in trio there is no such error
        return True
    return task is None or task.cancelling() > 0 or anyio.current_effective_deadline() == -math.inf


def positive(name: str, value: float) -> float:
    """`value` where it is a finite number above zero; `SourceError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise SourceError(f"`{name}` is {value!r}; it must be a number above 0")
    return value
