"""Opens a session in the way that the server understands, and remembers which that is.

Servers on mcp 1.0 to 1.8 stop at the first question of the newest revision: over stdio they neither answer nor end, so
silence is all that is heard of it. A second process is then started beside the first and greeted in the old way. Both
start from the same command, so one that answers first although it was started later has not stopped, and the other has.

A process that computes is still starting, and silent for that: a second one would only take the processor from it.
"""

from __future__ import annotations

import anyio
import anyio.abc

from ..sources.specs import HttpSpec, StdioSpec
from .session import CannotOpen, Session
from .transports import Transport

_SILENCE_S = 1.0
"""After this long without an answer, the old way is tried beside the new one."""
_LOOK_S = 0.2
"""How often it is looked at whether the silent process computes."""
_LONGEST_START_S = 10.0
"""One that computes for longer may be doing something else."""
_GRACE_S = 0.3
"""What the one that was asked first may be later than the one that was greeted in the old way."""
_NO_SUCH_POST = frozenset({400, 404, 405})
"""How a server of the old HTTP transport answers a POST to its stream of events."""


async def open_session(transport: Transport, group: anyio.abc.TaskGroup) -> Session:
    """A started session; all attempts share one time limit. Raises `CannotOpen`."""
    spec = transport.spec
    async with transport.starts:
        deadline = anyio.current_time() + transport.connect_timeout_s
        try:
            if isinstance(spec, StdioSpec) and spec.options.protocol is None and not transport.is_settled:
                session = await _Race(transport, group, deadline).run()
            elif isinstance(spec, HttpSpec) and spec.transport is None and not transport.is_settled:
                session = await _by_url(transport, group, deadline)
            else:
                session = Session(transport, transport.era, deadline)
                await session.start(group)
        except CannotOpen:
            # It may be another server by now.
            transport.forget()
            raise
        transport.remember(session.era, session.protocol_version)
        return session


async def _by_url(transport: Transport, group: anyio.abc.TaskGroup, deadline: float) -> Session:
    session = Session(transport, transport.era, deadline)
    try:
        await session.start(group)
    except CannotOpen as first:
        if session.http_status not in _NO_SUCH_POST:
            raise
        session = Session(transport, "sse", deadline)
        try:
            await session.start(group)
        except CannotOpen:
            raise CannotOpen(f"{first} The old transport over SSE was tried as well.", died=False) from None
    return session


class _Race:
    """One start of a command whose era is not known yet."""

    def __init__(self, transport: Transport, group: anyio.abc.TaskGroup, deadline: float) -> None:
        self._group = group
        self._deadline = deadline
        self._new = Session(transport, "auto", deadline)
        self._old = Session(transport, "legacy", deadline)
        self._started: list[Session] = []
        self._new_ended = anyio.Event()
        self._winner: Session | None = None
        self._failure: CannotOpen | None = None

    async def run(self) -> Session:
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._ask, both.cancel_scope)
                both.start_soon(self._greet, both.cancel_scope)
        finally:
            for session in self._started:
                if session is not self._winner:
                    # Not waited for: stopping a process may take seconds.
                    self._group.start_soon(session.close)
        if self._winner is None:
            assert self._failure is not None
            raise self._failure
        return self._winner

    async def _ask(self, race: anyio.CancelScope) -> None:
        try:
            await self._start(self._new)
        except CannotOpen as failure:
            self._failure = failure
            if not failure.died:
                race.cancel()
        else:
            self._winner = self._new
            race.cancel()
        finally:
            self._new_ended.set()

    async def _greet(self, race: anyio.CancelScope) -> None:
        await self._silence()
        try:
            await self._start(self._old)
        except CannotOpen as failure:
            # The newer one may still answer; where it ended, this is what there is to say.
            if self._failure is not None:
                self._failure = failure
            return
        with anyio.move_on_after(_GRACE_S):
            await self._new_ended.wait()
        self._winner = self._old
        race.cancel()

    async def _silence(self) -> None:
        """Until the one that was asked first has ended, or has neither answered nor computed for a while."""
        with anyio.move_on_after(_SILENCE_S):
            await self._new_ended.wait()
        # The old way needs most of the time that there is, where it is what the server speaks.
        longest_s = min(_LONGEST_START_S, (self._deadline - anyio.current_time()) / 3)
        with anyio.move_on_after(longest_s - _SILENCE_S):
            while not self._new_ended.is_set() and self._new.has_computed():
                with anyio.move_on_after(_LOOK_S):
                    await self._new_ended.wait()

    async def _start(self, session: Session) -> None:
        self._started.append(session)
        await session.start(self._group)
