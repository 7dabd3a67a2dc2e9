"""Rollouts that were played to their end go on to their verdict a few at a time, and those under way go first.

What follows a rollout's last word is the dearest moment of it: the verifier's copy, the verdict, the trace, and the
next rollout's beginning. Where a hundred end together, the replies and results that a thousand others wait for would
come after all of that; those would be delayed alike and come back together in turn, and the policy would be idle while
they wait. A few at a time they spread out by themselves within some rollouts' length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio
import anyio.abc

from .simulation.clock import computing_takes_time

AT_ONCE = 8
"""Rollouts of one opening. One at a time would spread them as well, at a fifth more of the processor's time: neighbours
that do the same thing find it in its caches."""
PAUSE_S = 0.005
"""Between openings, and longer where the event loop has that much else to do: then it comes back late."""
FEW = 4 * AT_ONCE
"""With so many in flight or fewer, nobody waits."""


class Turnstile:
    """Of one stream of rollouts, on one event loop."""

    def __init__(self, group: anyio.abc.TaskGroup, in_flight: Callable[[], int]) -> None:
        """`group` runs what opens it; `in_flight` tells how many rollouts have begun and not ended."""
        self._group = group
        self._in_flight = in_flight
        self._waiting: deque[anyio.Event] = deque()
        self._is_opening = False

    async def through(self) -> None:
        """Returns when it is this rollout's turn."""
        if self._in_flight() <= FEW or not computing_takes_time():
            return
        turn = anyio.Event()
        self._waiting.append(turn)
        if not self._is_opening:
            self._is_opening = True
            self._group.start_soon(self._open)
        await turn.wait()

    async def _open(self) -> None:
        while self._waiting:
            # Where all that are left wait here, there is nobody to give way to.
            await anyio.sleep(PAUSE_S if len(self._waiting) < self._in_flight() else 0)
            for _ in range(min(AT_ONCE, len(self._waiting))):
                self._waiting.popleft().set()
        self._is_opening = False
