"""What counts as a verifier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from ..records import Rollout, Verdict

Score = float | bool | Verdict
"""What a verifier says. True is 1.0 and False is 0.0; a float is any finite number."""


@runtime_checkable
class Verifier(Protocol):
    """An object that judges rollouts. `verify` may be async."""

    def verify(self, rollout: Rollout, /) -> Score | Awaitable[Score]: ...


VerifierLike = Verifier | Callable[[Rollout], Score] | Callable[[Rollout], Awaitable[Score]]
"""A function of the rollout, sync or async, or a `Verifier`."""
