"""Whether a session that waits for a world would still answer."""

from __future__ import annotations

import logging

import anyio

from ..errors import ToolFailure
from .session import Session

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
"""How often a waiting session is asked. One whose process or connection ends is noticed at once."""
FRESH_S = 5.0
"""An answer is taken to hold for so long."""
ANSWER_S = 3.0
"""A session that waits has nothing else to do: it answers in milliseconds or it hangs."""


class Spare:
    """A session that waits for its world."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._answered_at = anyio.current_time()
        self._watch = anyio.CancelScope()

    async def watch(self) -> bool:
        """Returns when the session no longer answers (True) or when it was taken (False)."""
        with self._watch:
            while not self.session.dead:
                with anyio.move_on_after(LOOK_EVERY_S):
                    await self.session.wait_dead()
                if not await self._answers():
                    return True
            return True
        return False

    async def take(self) -> bool:
        """End the watch; whether the session still answers. Asked where the last answer is some seconds old."""
        self.leave()
        if self.session.dead:
            return False
        return anyio.current_time() - self._answered_at < FRESH_S or await self._answers()

    def leave(self) -> None:
        """End the watch."""
        self._watch.cancel()

    async def _answers(self) -> bool:
        if self.session.dead:
            return False
        try:
            await self.session.check(ANSWER_S)
        except ToolFailure as error:
            logger.warning("a waiting session is given up: %s", error)
            return False
        self._answered_at = anyio.current_time()
        return True
