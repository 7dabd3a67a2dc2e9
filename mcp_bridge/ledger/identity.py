"""The call that is being made, for whoever sends it: its id, its key and its rollout.

It travels beside the arguments, so that a source of worlds which wraps another one cannot lose it on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import NamedTuple, Protocol

from ..control import CALL_META, DEFAULT_WORLD, IDEMPOTENCY_META, ROLLOUT_META


class CallIdentity(NamedTuple):
    """Which call this is. `key` is the same in every attempt of one call, and that of no other call anywhere."""

    call: str
    key: str
    rollout: str
    attempt: int
    accepted: Callable[[str], None] | None = None
    """Writes a line into the ledger: the server has taken the call and works on it under this name."""


class Known(Protocol):
    """What knows which call is made: its entry in the ledger."""

    @property
    def call(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def rollout(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    def accepted(self, note: str) -> None: ...


_current: ContextVar[tuple[Known, int] | None] = ContextVar("toolbake_call", default=None)
"""The call and its attempt. A `CallIdentity` is made of it for whoever asks: most calls are never asked about."""


def current_call() -> CallIdentity | None:
    """The call that this task makes; None outside of calls. A Python function that is a tool may ask too."""
    found = _current.get()
    if found is None:
        return None
    call, attempt = found
    return CallIdentity(call.call, call.key, call.rollout, attempt, call.accepted)


def current_call_meta() -> dict[str, str] | None:
    """What a server is told of it in the call's `_meta`; the default world is no rollout."""
    found = _current.get()
    if found is None:
        return None
    call = found[0]
    meta = {CALL_META: call.call, IDEMPOTENCY_META: call.key}
    if call.rollout != DEFAULT_WORLD:
        meta[ROLLOUT_META] = call.rollout
    return meta


def set_current_call(call: Known) -> Token[tuple[Known, int] | None]:
    """From here on `current_call` tells of this call; `reset_current_call` takes what it gives and ends that."""
    # Not a context manager: those take four times as long.
    return _current.set((call, call.attempt))


reset_current_call = _current.reset
