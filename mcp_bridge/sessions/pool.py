"""Sessions for worlds: one for each, from a pool that keeps some ready; or one for all."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import anyio.abc

from ..errors import ServerDied, ToolFailure
from .session import Session

logger = logging.getLogger(__name__)

FRESH_S = 5.0
"""An answer is taken to hold for so long."""
ANSWER_S = 3.0
"""A session that waits has nothing else to do: it answers in milliseconds or it hangs."""


@dataclass(eq=False)
class Spare:
    """A session that waits for its world."""

    session: Session
    answered_at: float = field(default_factory=anyio.current_time)
    watch: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Ends where the session does, or is cancelled when it is taken."""

    async def answers(self) -> bool:
        """Whether the session still answers. Asked where the last answer is some seconds old."""
        if not self.session.dead and anyio.current_time() - self.answered_at >= FRESH_S:
            try:
                await self.session.check(ANSWER_S)
            except ToolFailure as error:
                logger.warning("a waiting session is given up: %s", error)
                return False
        return not self.session.dead


_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0

Opening = Callable[[], Awaitable[Session]]
"""A new session; raises `ToolFailure` where there is none to be had."""


class SharedSession:
    """One session for all worlds; a dead one is replaced by the next lease. Leased and given back as of a pool."""

    def __init__(self, opening: Opening, first: Session) -> None:
        self._opening = opening
        self._session = first
        self._lock = anyio.Lock()

    async def lease(self) -> Session:
        async with self._lock:
            if self._session.doubtful and not self._session.dead:
                # One that hangs is dead after it. A server behind a URL may answer later: whoever calls waits for it.
                with contextlib.suppress(ToolFailure):
                    await self._session.check(ANSWER_S)
            if self._session.dead:
                await self._session.close()
                self._session = await self._opening()
            return self._session

    async def give_back(self, session: Session) -> None:
        """Others use it too."""

    async def aclose(self) -> None:
        await self._session.close()


class SessionPool:
    """A session for each world.

    Up to `warm` sessions are opened ahead while worlds are opened, from the second lease on: who opens one world
    only pays for one. At most `most` sessions exist at once; further leases wait, in their order.
    """

    def __init__(
        self, opening: Opening, group: anyio.abc.TaskGroup, first: Session, *, label: str, warm: int, most: float
    ) -> None:
        """`most`: a whole number or `math.inf`. `first`: an open session, which the first lease gets."""
        self._opening = opening
        self._group = group
        self._label = label
        self._warm = warm
        self._most = most
        self._sessions = {first}
        """Those that are open or are being closed."""
        self._leases = 0
        self._starting = 0
        self._spares: deque[Spare] = deque()
        self._waiting: deque[_Waiter] = deque()
        self._starts: set[anyio.CancelScope] = set()
        """Of sessions that are opened, and of pauses before one is."""
        self._closed = False
        self._is_told_full = False
        """Whether a log line said that worlds wait, since they last did not."""
        self._losses = 0
        self._fill_from = 0.0
        self._keep(first)

    async def lease(self) -> Session:
        """A session that answers. Raises `ToolFailure` where none can be opened."""
        self._leases += 1
        while self._spares:
            spare = self._spares.popleft()
            spare.watch.cancel()
            self._fill()
            try:
                answers = await spare.answers()
            except BaseException:
                # Cancelled while it was asked: it goes with the world that would have had it.
                with anyio.CancelScope(shield=True):
                    await self.give_back(spare.session)
                raise
            if answers:
                self._losses = 0
                return spare.session
            # Ending a process that hangs takes seconds; the world need not wait for it.
            self._group.start_soon(self.give_back, spare.session)
        return await self._next()

    @property
    def _count(self) -> int:
        return len(self._sessions) + self._starting

    async def give_back(self, session: Session) -> None:
        """End the session: it has served a world, and what it holds is that world's. Bounded; shield it. Twice does no
        harm."""
        await session.close()
        self._sessions.discard(session)
        self._fill()

    async def aclose(self) -> None:
        """End all that wait and all that start."""
        self._closed = True
        for scope in self._starts:
            scope.cancel()
        while self._waiting:
            self._waiting.popleft().settle(_closed(self._label))
        async with anyio.create_task_group() as closing:
            while self._spares:
                spare = self._spares.popleft()
                spare.watch.cancel()
                closing.start_soon(spare.session.close)

    async def _next(self) -> Session:
        """The next session that is opened."""
        waiter = _Waiter()
        self._waiting.append(waiter)
        self._fill()
        if self._count >= self._most and self._starting < len(self._waiting) and not self._is_told_full:
            self._is_told_full = True
            logger.warning("all %s sessions of %s are in use; waiting for one (max_sessions)", self._most, self._label)
        try:
            await waiter.settled.wait()
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif isinstance(waiter.outcome, Session):
                self._hand_out(waiter.outcome)
            raise
        assert waiter.outcome is not None
        if isinstance(waiter.outcome, Exception):
            raise waiter.outcome
        return waiter.outcome

    def _fill(self) -> None:
        """Start as many sessions as are waited for or wanted ahead, within the limit."""
        if self._closed:
            return
        self._is_told_full = self._is_told_full and bool(self._waiting)
        ahead = self._warm if self._leases > 1 and anyio.current_time() >= self._fill_from else 0
        wanted = max(len(self._waiting), len(self._waiting) + ahead - len(self._spares)) - self._starting
        for _ in range(int(min(wanted, self._most - self._count))):
            self._starting += 1
            self._group.start_soon(self._start)

    async def _start(self) -> None:
        session: Session | None = None
        failure: Exception = _closed(self._label)
        scope = anyio.CancelScope()
        self._starts.add(scope)
        try:
            with scope:
                session = await self._opening()
        except Exception as error:
            # Whoever waits raises it; here it would end every other session.
            failure = error
        finally:
            self._starts.remove(scope)
            self._starting -= 1
        if session is not None:
            self._sessions.add(session)
            self._hand_out(session)
        elif self._waiting:
            self._waiting.popleft().settle(failure)
            self._fill()
        elif not self._closed:
            logger.warning("no session of %s could be opened ahead: %s", self._label, failure)
            await self._fill_later()

    def _hand_out(self, session: Session) -> None:
        """To the first who waits, or kept."""
        if self._waiting:
            self._waiting.popleft().settle(session)
        elif self._closed or len(self._spares) >= self._warm:
            self._group.start_soon(self.give_back, session)
        else:
            self._keep(session)

    def _keep(self, session: Session) -> None:
        spare = Spare(session)
        self._spares.append(spare)
        self._group.start_soon(self._watch, spare)

    async def _watch(self, spare: Spare) -> None:
        with spare.watch:
            await spare.session.wait_dead()
        if spare not in self._spares:  # it was taken
            return
        self._spares.remove(spare)
        logger.warning("a waiting session of %s ended; another one takes its place", self._label)
        self._group.start_soon(self.give_back, spare.session)
        await self._fill_later()

    async def _fill_later(self) -> None:
        """After a pause, longer each time until a spare is of use: a server that cannot stay up is not started all
        the time."""
        pause: float = min(_FIRST_PAUSE_S * 2**self._losses, _LONGEST_PAUSE_S)
        self._losses += 1
        self._fill_from = anyio.current_time() + pause
        scope = anyio.CancelScope()
        self._starts.add(scope)
        with scope:
            await anyio.sleep(pause)
        self._starts.remove(scope)
        self._fill()


class _Waiter:
    """A lease that waits for a session to open, or for one to end."""

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.outcome: Session | Exception | None = None

    def settle(self, outcome: Session | Exception) -> None:
        self.outcome = outcome
        self.settled.set()


def _closed(label: str) -> ServerDied:
    return ServerDied(f"the sessions of {label} are closed", delivery="not_sent")
