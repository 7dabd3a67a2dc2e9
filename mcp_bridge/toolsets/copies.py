"""Worlds over several sources: opened together, and copied together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

import anyio

from ..errors import SourceError
from ..exception_groups import as_itself
from ..world import ForkableWorld, World, WorldCopy
from .parts import Part


class _Closable(Protocol):
    closed: bool


W = TypeVar("W", bound=_Closable)


@contextlib.asynccontextmanager
async def opened_together(
    parts: Sequence[tuple[Part, AbstractAsyncContextManager[World]]],
    make: Callable[[Sequence[tuple[Part, World]]], W],
) -> AsyncIterator[W]:
    """The world that `make` makes of one world of each part, closed with them at the end."""
    raised: BaseException | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            world = make([(part, await stack.enter_async_context(one)) for part, one in parts])
            try:
                yield world
            except BaseException as error:
                raised = error
                raise
            finally:
                world.closed = True
    except BaseExceptionGroup as group:
        # A source may hold a task group while its world is open.
        plain = as_itself(group, raised)
        if plain is group:
            raise
        raise plain from plain.__cause__


class ToolsetCopy(Generic[W]):
    """A world over all sources as it was at one moment; satisfies `WorldCopy`. Made by `CheckedWorld.fork`."""

    def __init__(
        self,
        parts: Sequence[tuple[Part, WorldCopy]],
        make: Callable[[str, Sequence[tuple[Part, World]]], W],
        held: contextlib.AsyncExitStack,
    ) -> None:
        self._parts = parts
        self._make = make
        self._held = held

    def open(self, world_id: str) -> AbstractAsyncContextManager[W]:
        """See `WorldCopy.open`."""
        parts = [(part, copy.open(world_id)) for part, copy in self._parts]
        return opened_together(parts, lambda inner: self._make(world_id, inner))

    async def aclose(self) -> None:
        """See `WorldCopy.aclose`."""
        await self._held.aclose()


async def copy_all(
    parts: Sequence[tuple[Part, World]], make: Callable[[str, Sequence[tuple[Part, World]]], W]
) -> ToolsetCopy[W]:
    """Copies of all worlds. Raises as `CheckedWorld.fork` does, and then none is held."""
    copies: list[tuple[Part, WorldCopy]] = []
    async with contextlib.AsyncExitStack() as stack:
        for part, world in parts:
            if not (part.can_fork and isinstance(world, ForkableWorld)):
                raise SourceError(
                    f"a world of {part.label} cannot be forked; sandboxes can, and servers with the control tool "
                    "fork_world"
                )
            copy = await world.fork()
            stack.push_async_callback(_closed, copy)
            copies.append((part, copy))
        return ToolsetCopy(copies, make, stack.pop_all())


async def _closed(copy: WorldCopy) -> None:
    with anyio.CancelScope(shield=True):
        await copy.aclose()
