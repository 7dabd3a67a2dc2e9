"""The worlds that one published server holds, each opened and closed in a task of its own."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.abc

from ..control import CALL_META, CLOSE_WORLD, IDEMPOTENCY_META
from ..errors import SourceError
from ..records import ToolResult
from ..world import ForkableWorld, World, WorldSource
from .repeats import Repeats

logger = logging.getLogger(__name__)

_CLOSE_S = 15.0
"""How long all worlds together may take to close when the server ends."""


_Opening = Callable[[str], contextlib.AbstractAsyncContextManager[World]]
"""From the id of a world to the world."""


class HeldWorld:
    """One open world. It closes when it is told to, and when nothing was asked of it for `idle_s` seconds."""

    def __init__(self, world: World, idle_s: float) -> None:
        self.world = world
        self.repeats = Repeats()
        self._idle_s = idle_s
        self._in_use = 0
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + idle_s)
        self.told = anyio.Event()
        self.ended = anyio.Event()

    async def close(self) -> None:
        """Returns when it is closed."""
        self.told.set()
        await self.ended.wait()

    @contextlib.contextmanager
    def used(self) -> Iterator[World]:
        """While the block runs the world is not idle."""
        self._in_use += 1
        self.scope.deadline = math.inf
        try:
            yield self.world
        finally:
            self._in_use -= 1
            if self._in_use == 0:
                self.scope.deadline = anyio.current_time() + self._idle_s


class Desk:
    """The worlds of a source, by key: the id that a client gave, or the connection that it has."""

    def __init__(self, source: WorldSource, *, max_worlds: int, idle_s: float) -> None:
        self._source = source
        self._max_worlds = max_worlds
        self._idle_s = idle_s
        self._held: dict[Hashable, HeldWorld] = {}
        self._first_asked: dict[Hashable, anyio.Lock] = {}
        self._opening: set[Hashable] = set()
        self._group: anyio.abc.TaskGroup | None = None
        self._opened = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Desk]:
        """Worlds can be open while the block runs."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield self
            finally:
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    open_now = list(self._held.values())
                    for held in open_now:
                        held.told.set()
                    for held in open_now:
                        await held.ended.wait()
                group.cancel_scope.cancel()

    async def open(self, name: str, setup: Mapping[str, Any] | None) -> World:
        """A world that clients name. Raises `SourceError` where the id is taken or too many worlds are open."""
        self._require_free(name)
        opening = partial(self._source.open_world, setup=setup or None)
        return (await self._open(name, opening, idle_s=self._idle_s)).world

    async def fork(self, name: str, into: str) -> None:
        """A further world that clients name, which goes on from where the other is. Raises `SourceError` as `open`
        does, and where there is no world `name` or it cannot be forked."""
        self._require_free(into)
        with self.find(name).used() as world:
            if not isinstance(world, ForkableWorld):
                raise SourceError(f"world {name!r} cannot be forked")
            await self._open(into, partial(_opened_fork, world), idle_s=self._idle_s)

    def _require_free(self, name: str) -> None:
        if name in self._held or name in self._opening:
            raise SourceError(f"world {name!r} is open already; every rollout needs an id of its own")

    async def of(self, key: Hashable) -> HeldWorld:
        """The world of that connection, opened when it is first asked for. It stays as long as the connection does."""
        lock = self._first_asked.setdefault(key, anyio.Lock())
        async with lock:
            held = self._held.get(key)
            return held if held is not None else await self._open(key, self._source.open_world, idle_s=math.inf)

    def find(self, name: str) -> HeldWorld:
        """Raises `SourceError` where no world of that name is open."""
        held = self._held.get(name)
        if held is None or held.told.is_set():
            raise SourceError(
                f"there is no world {name!r} here; open it first, or it was idle for more than {self._idle_s:g} s, or "
                "the server has restarted since"
            )
        return held

    async def close(self, key: Hashable) -> None:
        """Close the world of that key, if there is one."""
        self._first_asked.pop(key, None)
        held = self._held.get(key)
        if held is not None:
            await held.close()

    async def _open(self, key: Hashable, opening: _Opening, *, idle_s: float) -> HeldWorld:
        if len(self._held) + len(self._opening) >= self._max_worlds:
            raise SourceError(
                f"{self._max_worlds} worlds are open, the most that this server holds; disconnect clients, or "
                f"close worlds with the control tool {CLOSE_WORLD!r}"
            )
        assert self._group is not None, "the server is not running"
        self._opened += 1
        self._opening.add(key)
        try:
            held = await self._group.start(self._hold, key, f"served-{self._opened}", opening, idle_s)
        finally:
            self._opening.discard(key)
        assert isinstance(held, HeldWorld)
        return held

    async def _hold(
        self,
        key: Hashable,
        world_id: str,
        opening: _Opening,
        idle_s: float,
        *,
        task_status: anyio.abc.TaskStatus[HeldWorld],
    ) -> None:
        held: HeldWorld | None = None
        try:
            async with opening(world_id) as world:
                held = self._held[key] = HeldWorld(world, idle_s)
                task_status.started(held)
                with held.scope:
                    await held.told.wait()
                held.told.set()
        except Exception:
            if held is None:
                raise
            # The world is gone either way, and other worlds must not go with it.
            logger.exception("closing world %r failed", world_id)
        finally:
            if held is not None:
                self._held.pop(key, None)
                held.ended.set()


@contextlib.asynccontextmanager
async def _opened_fork(world: ForkableWorld, world_id: str) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        copy = await world.fork()
        try:
            fork = await stack.enter_async_context(copy.open(world_id))
        finally:
            with anyio.CancelScope(shield=True):
                await copy.aclose()
        yield fork


async def call_in(held: HeldWorld, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> ToolResult:
    """A call, during which the world does not count as idle. One that is repeated with its idempotency key is answered
    from memory."""
    with held.used() as world:

        async def call() -> ToolResult:
            return await world.call(name, arguments, call_id=meta.get(CALL_META))

        return await held.repeats.once(meta.get(IDEMPOTENCY_META), name, arguments, call)
