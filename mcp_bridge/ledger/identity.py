"""The call that is being made, for whoever sends it: its id, its key and its rollout.

It travels beside the arguments, so that a source of worlds which wraps another one cannot lose it on the way.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from ..control import CALL_META, DEFAULT_WORLD, IDEMPOTENCY_META, ROLLOUT_META


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Which call this is. `key` is the same in every attempt of one call, and that of no other call anywhere."""

    call: str
    key: str
    rollout: str
    attempt: int

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


class Calling:
    """A context in which `current_call` tells of this call. No generator: those take four times as long."""

    __slots__ = ("_identity", "_token")

    def __init__(self, identity: CallIdentity) -> None:
        self._identity = identity

    def __enter__(self) -> None:
        self._token = _current.set(self._identity)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
