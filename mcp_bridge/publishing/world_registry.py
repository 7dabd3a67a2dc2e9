"""The registry of a published server's worlds, each opened and closed in its own task, with their repeated calls."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.abc

from ..control_tools import CALL_META, CLOSE_WORLD, IDEMPOTENCY_META
from ..errors import SourceError
from ..records import ToolResult
from ..world import ForkableWorld, World, WorldSource

logger = logging.getLogger(__name__)

MOST_KEPT = 256
"""Answers of one world. A call is repeated right after its answer was lost, not hundreds of calls later."""


class _Call:
    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.arguments = arguments
        self.result: ToolResult | None = None
        self.ended: anyio.Event | None = None
        """Made by whoever waits for it: most calls are never repeated."""


class Repeats:
    """The answers of one world, by the key that came in the call's `_meta` (`IDEMPOTENCY_META`)."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, _Call] = OrderedDict()

    async def once(
        self, key: object, name: str, arguments: Mapping[str, Any], call: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """What `call` gives, or what it gave before under this key. A repeat waits for the call that is under way.

        A call that raised has no answer: a repeat of it is made. Without a key (a string) every call is made. Raises
        `SourceError` where the key was another call's.
        """
        if not isinstance(key, str):
            return await call()
        while (known := self._calls.get(key)) is not None:
            if (known.name, known.arguments) != (name, arguments):
                raise SourceError(
                    f"the idempotency key of this call of {name!r} was that of another call, of {known.name!r}; every "
                    "call needs a key of its own"
                )
            if known.result is None:
                known.ended = known.ended or anyio.Event()
                await known.ended.wait()
            if known.result is not None:
                logger.info("a repeated call of %r is answered from memory", name)
                return known.result
        return await self._make(key, _Call(name, arguments), call)

    async def _make(self, key: str, made: _Call, call: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        self._calls[key] = made
        try:
            made.result = await call()
        finally:
            if made.result is None:
                del self._calls[key]
            if made.ended is not None:
                made.ended.set()
        while len(self._calls) > MOST_KEPT and next(iter(self._calls.values())).result is not None:
            self._calls.popitem(last=False)
        return made.result


_CLOSE_S = 15.0
"""How long all worlds together may take to close when the server ends."""


_Opening = Callable[[str], contextlib.AbstractAsyncContextManager[World]]
"""From the id of a world to the world."""


class HeldWorld:
    """One open world. It closes on request, and when it was not used for `idle_s` seconds."""

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
        self._idled: set[Hashable] = set()
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

    async def of(self, key: Hashable, *, idles: bool = False) -> HeldWorld:
        """The world of that connection, opened when it is first asked for. It stays as long as the connection does, or
        where it `idles` until nobody has used it for a while: then `SourceError` is raised."""
        lock = self._first_asked.setdefault(key, anyio.Lock())
        async with lock:
            held = self._held.get(key)
            if held is None and key in self._idled:
                raise SourceError(f"this world was idle for more than {self._idle_s:g} s and is closed; connect again")
            idle_s = self._idle_s if idles else math.inf
            return held if held is not None else await self._open(key, self._source.open_world, idle_s=idle_s)

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
                if held.scope.cancelled_caught and key in self._first_asked:
                    self._idled.add(key)
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
