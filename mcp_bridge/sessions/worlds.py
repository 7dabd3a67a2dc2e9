"""One world on a session: what is said to the server for it, and whether it outlives the session."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol

import anyio

from ..access.hiding import Hiding
from ..control import CALL_META, CLOSE_WORLD, DEFAULT_WORLD, FORK_WORLD, OPEN_WORLD, WORLD_META, WORLD_STATE
from ..errors import CallTimeout, ServerDied, SourceError, ToolFailure
from ..ledger.identity import current_call_meta
from ..records import Tool, ToolResult
from ..world import Setup
from .pool import Sessions
from .session import Session
from .shared_files import SharedFiles

logger = logging.getLogger(__name__)


class Host(Protocol):
    """The source of a world, as the world sees it."""

    @property
    def label(self) -> str: ...

    @property
    def tools(self) -> Sequence[Tool]: ...

    @property
    def control(self) -> Mapping[str, str]:
        """Verb to the name of the control tool."""
        ...

    @property
    def hiding(self) -> Hiding | None: ...

    @property
    def sessions(self) -> Sessions: ...

    @property
    def is_shared(self) -> bool: ...

    @property
    def shared_files(self) -> SharedFiles | None: ...

    @property
    def verb_timeout_s(self) -> float: ...

    @property
    def check_timeout_s(self) -> float: ...

    def wire_id(self, world_id: str) -> str: ...

    def open_copy(self, world_id: str, origin: ServerWorld) -> AbstractAsyncContextManager[ServerWorld]:
        """A world that goes on from where `origin` is."""
        ...


class ServerWorld:
    """One world. Made by `ServerSource.open_world`.

    When its session ends, the world goes on in a new one wherever nothing is lost by that: the session is shared, or
    the server keeps nothing for it, or only reading tools have been called, or the server has control tools and still
    knows the world. Otherwise the world is lost, and every further call says so.
    """

    def __init__(self, host: Host, session: Session, world_id: str, *, origin: ServerWorld | None = None) -> None:
        """`origin`: the world that it goes on from; None: it begins with a setup."""
        self._host = host
        self._hiding = host.hiding
        self._origin = origin
        self._copies = 0
        self.session = session
        self.world_id = world_id
        self._wire_id = host.wire_id(world_id)
        self._is_named = bool(host.control) or world_id != DEFAULT_WORLD
        self._tools = tuple(host.tools)
        self._reads = {tool.name for tool in self._tools if tool.annotations.read_only}
        self._moving: anyio.Lock | None = None
        self._setup: Setup = {}
        self._touches = 0
        """How many calls may have changed something."""
        self._is_unsure = False
        """Whether the server, which has control tools, may have forgotten the world."""
        self._lost: str | None = None
        self._shown: set[str] | None = None
        """The names of the tools that this world shows; None where it shows all of them."""
        self.begun = False

    @property
    def tools(self) -> Sequence[Tool]:
        if self._shown is None:
            return self._tools
        return [tool for tool in self._tools if tool.name in self._shown]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,
        timeout_s: float | None = None,
    ) -> ToolResult:
        """`timeout_s` is kept by the toolset. Half of it at most goes into finding out whether the session lives."""
        session = self.session
        if session.doubtful or self._is_unsure or session.dead:
            session = await self._usable(math.inf if timeout_s is None else timeout_s / 2)
        touches = name not in self._reads
        self._touches += touches
        given = arguments if type(arguments) is dict else dict(arguments)
        shared = self._host.shared_files if touches else None
        files = None if shared is None else shared.before(session.process_id)
        try:
            result = await session.call(name, given, self._meta(call_id))
            if files is not None and shared is not None and session.process_id is not None:
                shared.after(session.process_id, files, name)
            return result if self._hiding is None else self._hiding.result(result)
        except ToolFailure as error:
            self._touches -= touches and error.delivery in ("not_sent", "refused")
            if isinstance(error, ServerDied) or error.delivery == "refused":
                self._is_unsure = bool(self._host.control)
            error.world_lost = session.dead and not self._can_move(session)
            raise

    def _meta(self, call_id: str | None) -> dict[str, Any]:
        # Every other world is named also where the server cannot keep worlds apart, so that it can refuse.
        meta: dict[str, Any] = {WORLD_META: self._wire_id} if self._is_named else {}
        if (call := current_call_meta()) is not None:
            meta.update(call)
        elif call_id is not None:
            meta[CALL_META] = call_id
        return meta

    async def state(self) -> dict[str, Any] | None:
        """What `world_state` tells, or `None` where the server has no such control tool."""
        if WORLD_STATE not in self._host.control:
            return None
        await self._usable()
        return await self._state()

    async def begin(self, setup: Setup) -> None:
        """Open the world in a server with control tools.

        Raises `SourceError` where it refuses the setup, `ToolFailure` where it does not fork the world's origin.
        """
        self._setup = setup
        # From here on the server may hold the world, whatever becomes of the answer.
        self.begun = True
        try:
            if self._origin is not None:
                await self._go_on_from(self._origin)
                return
            result = await self._verb(OPEN_WORLD, {"setup": dict(setup)})
        except ToolFailure as error:
            # A world of this id that it holds all the same is somebody else's, and not ours to close.
            self.begun = error.delivery == "unknown"
            raise
        if result.is_error:
            self.begun = False
            raise SourceError(f"{self._host.label} refused the setup {dict(setup)!r}: {result.text[:500]}")
        told = result.structured.get("tools") if isinstance(result.structured, dict) else None
        self._shown = {str(name) for name in told} if isinstance(told, list) else None

    async def _go_on_from(self, origin: ServerWorld) -> None:
        self._shown = origin._shown
        result = await self._verb(FORK_WORLD, {"world": origin._wire_id, "into": self._wire_id})
        if result.is_error:
            raise ToolFailure(
                f"{self._host.label} did not fork world {origin.world_id!r}: {result.text[:300]}", delivery="answered"
            )

    async def fork(self) -> ServerCopy:
        """See `ForkableWorld.fork`; a world of its own in the server, which nobody calls."""
        await self._usable()
        self._copies += 1
        async with AsyncExitStack() as stack:
            opened = self._host.open_copy(f"{self.world_id}/copy-{self._copies}", self)
            return ServerCopy(self._host, await stack.enter_async_context(opened), stack.pop_all())

    async def end(self) -> None:
        result = await self._verb(CLOSE_WORLD, {})
        if result.is_error:
            raise ToolFailure(result.text[:300])

    async def move(self) -> None:
        """Go on in another session; the world is not looked for there."""
        left, self.session = self.session, await self._host.sessions.lease()
        await self._host.sessions.give_back(left)

    async def _usable(self, most_s: float = math.inf) -> Session:
        """The session to call in; asking it takes `most_s` at most.

        Raises `ServerDied` where the world is lost or no session is to be had.
        """
        if not (self.session.dead or self.session.doubtful or self._is_unsure):
            return self.session
        if self._moving is None:
            self._moving = anyio.Lock()
        async with self._moving:
            if self._lost is not None:
                raise ServerDied(self._lost, delivery="not_sent", world_lost=True)
            if self.session.doubtful and not self.session.dead:
                # Raises where a server behind a URL is still away; what is dead after it is left.
                try:
                    await self.session.check(min(most_s, self._host.check_timeout_s))
                except ServerDied:
                    if not self.session.dead:
                        raise
            moves = self.session.dead
            if moves:
                await self._leave_dead()
            if self._host.control and (moves or self._is_unsure):
                await self._find(moved=moves)
            return self.session

    async def _leave_dead(self) -> None:
        if not self._can_move(self.session):
            raise self._is_lost("its session ended, and what the server held for it with it")
        logger.warning("world %r goes on in a new session: the last one to %s ended", self.world_id, self._host.label)
        await self.move()

    def _can_move(self, session: Session) -> bool:
        return bool(self._host.control) or self._host.is_shared or not session.keeps_state or self._touches == 0

    async def _find(self, *, moved: bool) -> None:
        """Make sure that a server with control tools still has the world; open it again where nothing had happened."""
        self._is_unsure = True
        found = not moved
        if WORLD_STATE in self._host.control:
            try:
                found = await self._state() is not None
            except ServerDied:
                raise
            except ToolFailure as error:
                found = False
                logger.warning("world %r is not found: %s", self.world_id, error)
        if not found:
            if self._touches:
                raise self._is_lost("the server does not know it any more")
            try:
                await self.begin(self._setup)
            except ServerDied:
                raise
            except (ToolFailure, SourceError) as error:
                raise self._is_lost(f"it cannot be opened again: {error}") from error
        self._is_unsure = False

    def _is_lost(self, why: str) -> ServerDied:
        self._lost = f"world {self.world_id!r} in {self._host.label} is lost: {why}"
        if self.session.dead:
            self._lost += f" ({self.session.epitaph})"
        return ServerDied(self._lost, delivery="not_sent", world_lost=True)

    async def _state(self) -> dict[str, Any]:
        result = await self._verb(WORLD_STATE, {})
        if result.is_error or not isinstance(result.structured, dict):
            raise ToolFailure(f"{self._host.label} did not tell the state of {self.world_id!r}: {result.text[:300]}")
        shown = result if self._hiding is None else self._hiding.result(result)
        return dict(shown.structured)

    async def _verb(self, verb: str, arguments: dict[str, Any]) -> ToolResult:
        arguments = {"world": self._wire_id, **arguments}
        limit_s = self._host.verb_timeout_s
        try:
            with anyio.fail_after(limit_s):
                return await self.session.call(self._host.control[verb], arguments, {WORLD_META: self._wire_id})
        except TimeoutError:
            raise CallTimeout(
                f"{self._host.label} did not answer {verb!r} for world {self.world_id!r} within {limit_s:g} s"
            ) from None


class ServerCopy:
    """A world in the server that nobody calls, from which others begin."""

    def __init__(self, host: Host, world: ServerWorld, held: AsyncExitStack) -> None:
        self._host = host
        self._world = world
        self._held = held

    def open(self, world_id: str) -> AbstractAsyncContextManager[ServerWorld]:
        """See `WorldCopy.open`."""
        return self._host.open_copy(world_id, self._world)

    async def aclose(self) -> None:
        """See `WorldCopy.aclose`."""
        await self._held.aclose()
