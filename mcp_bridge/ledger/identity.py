"""The call that is being made, for whoever sends it: its id, its key and its rollout.

It travels beside the arguments, so that a source of worlds which wraps another one cannot lose it on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from ..control import CALL_META, DEFAULT_WORLD, IDEMPOTENCY_META, ROLLOUT_META


class CallIdentity(NamedTuple):
    """Which call this is. `key` is the same in every attempt of one call, and that of no other call anywhere."""

    call: str
    key: str
    rollout: str
    attempt: int
    accepted: Callable[[str], None] | None = None
    """Writes a line into the ledger: the server has taken the call and works on it under this name."""

    def meta(self) -> dict[str, str]:
        """What a server is told in the call's `_meta`; the default world is no rollout."""
        meta = {CALL_META: self.call, IDEMPOTENCY_META: self.key}
        if self.rollout != DEFAULT_WORLD:
            meta[ROLLOUT_META] = self.rollout
        return meta


_current: ContextVar[CallIdentity | None] = ContextVar("toolbake_call", default=None)


def current_call() -> CallIdentity | None:
    """The call that this task makes; None outside of calls. A Python function that is a tool may ask too."""
    return _current.get()


# Functions of their own, not a context manager: those take four times as long.
set_current_call = _current.set
"""From here on `current_call` tells of this call; `reset_current_call` takes what it gives and ends that."""
reset_current_call = _current.reset
