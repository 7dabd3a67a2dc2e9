"""How many rollouts may be in flight: fewer while the policy's cache is full or servers give way, more again after."""

from __future__ import annotations

from collections.abc import Callable

FULL = 0.9
"""Cache pressure above which fewer rollouts are kept in flight: the policy would soon throw conversations out and
compute them again."""
ROOM = 0.75
"""Cache pressure below which one more is tried."""
_BACK_OFF = 0.75
"""What is left of the limit each time something gives way."""


class AdaptiveConcurrency:
    """Additive increase, multiplicative decrease, as TCP does (Jacobson, SIGCOMM 1988), between 1 and `most`.

    Example: `AdaptiveConcurrency(64, pressure=agent.pressure)`; without `pressure` only failures lower it.
    """

    def __init__(self, most: int, *, pressure: Callable[[], float] | None = None) -> None:
        self.most = most
        self.limit = most
        """In flight at once now."""
        self.lowest = most
        """The lowest that the limit has been."""
        self.decreases = 0
        self._pressure = pressure
        self._exact = float(most)
        self._since_decrease = 0

    def ended(self, *, overloaded: bool = False) -> None:
        """A rollout ended. `overloaded`: something broke that fewer rollouts at once may spare."""
        self._since_decrease += 1
        full = self._pressure() if self._pressure is not None else 0.0
        if overloaded or full > FULL:
            # At most once for each generation of rollouts: those in flight were started under the old limit.
            if self._since_decrease >= self._exact or not self.decreases:
                self._set(self._exact * _BACK_OFF)
                self.decreases += 1
                self._since_decrease = 0
        elif full < ROOM:
            # One more for each generation that ended well.
            self._set(self._exact + 1 / max(1.0, self._exact))

    def _set(self, limit: float) -> None:
        self._exact = min(float(self.most), max(1.0, limit))
        self.limit = int(self._exact)
        self.lowest = min(self.lowest, self.limit)
