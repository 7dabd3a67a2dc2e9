"""Several sources as one set of tools, and worlds over all of them.

Everything that holds for a call whatever is behind it happens here, once: unknown tools, arguments against the
schema, the time limit, the cap on the text.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

from .control import DEFAULT_WORLD
from .errors import CallTimeout, SourceError, ToolFailure
from .grouping import as_itself, ungrouped
from .records import Tool, ToolResult
from .results import capped, error, positive
from .validation import ArgumentChecker, unknown_tool
from .world import Setup, World, WorldSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What every call is held to."""

    call_timeout_s: float
    max_result_chars: int


@dataclass(frozen=True)
class Part:
    """One source among those of a toolset."""

    label: str
    source: WorldSource
    aclose: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Ends what `connect` started; `None` for what the user brought running."""

    @property
    def has_state(self) -> bool:
        """Sources of others need not tell; their worlds are asked then."""
        return bool(getattr(self.source, "has_state", True))

    @property
    def can_setup(self) -> bool:
        return bool(getattr(self.source, "can_setup", True))


class Toolset:
    """Connected tools. Made by `connect`; it is itself a `WorldSource`."""

    def __init__(self, parts: Sequence[Part], limits: Limits, group: anyio.abc.TaskGroup) -> None:
        """Raises `SourceError` where two tools have one name, there is none, or a schema is invalid."""
        self._parts = list(parts)
        self._limits = limits
        self._group = group
        self._tools = _merge(self._parts)
        self._checker = ArgumentChecker(self._tools)
        self._default: World | None = None
        self._default_lock = anyio.Lock()
        self._closing = anyio.Event()
        self._default_ended = anyio.Event()

    def __repr__(self) -> str:
        return f"Toolset({', '.join(tool.name for tool in self._tools)})"

    @property
    def tools(self) -> list[Tool]:
        """All tools, in the order of the sources."""
        return list(self._tools)

    @property
    def has_state(self) -> bool:
        """True when worlds can tell their state."""
        return any(part.has_state for part in self._parts)

    @property
    def can_setup(self) -> bool:
        """True when a world can begin with a setup."""
        return any(part.can_setup for part in self._parts)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """Call a tool in a world named `default`, which is opened by the first call and lives as the toolset does."""
        async with self._default_lock:
            if self._default is None:
                self._default = await self._open_default()
        return await self._default.call(name, arguments, call_id=call_id, timeout_s=timeout_s)

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[World]:
        """A fresh world over all sources.

        `setup` goes to the source that can set up; where several can, it must be keyed by their labels.
        Raises `SourceError` for a setup that nobody can do and `ToolFailure` where a server cannot be started.
        """
        if self._closing.is_set():
            raise RuntimeError(f"world {world_id!r} cannot be opened: the toolset is closed")
        setups = self._shares(setup or {})
        raised: BaseException | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                inner: list[tuple[Part, World]] = []
                for part in self._parts:
                    opened = part.source.open_world(world_id, setups.get(part.label) or None)
                    inner.append((part, await stack.enter_async_context(opened)))
                world = _CheckedWorld(world_id, self._tools, inner, self._checker, self._limits)
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

    def _shares(self, setup: Setup) -> dict[str, Setup]:
        """Which source gets which part of a setup."""
        able = [part.label for part in self._parts if part.can_setup]
        if not setup:
            return {}
        if not able:
            labels = ", ".join(part.label for part in self._parts)
            raise SourceError(
                f"cannot set up a world with {sorted(setup)}: none of {labels} can. Leave `setup` empty, "
                "or use a sandbox or a server that takes a setup."
            )
        if len(able) == 1:
            return {able[0]: setup}
        strangers = [key for key in setup if key not in able]
        if strangers or not all(isinstance(value, Mapping) for value in setup.values()):
            raise SourceError(
                f"several sources take a setup, so it must have one entry for each that gets one, keyed by {able!r}; "
                f"it has the keys {sorted(setup)}"
            )
        return dict(setup)

    async def _open_default(self) -> World:
        # In a task of its own: it is opened by whoever calls first and closed by whoever closes the toolset,
        # and a sandbox may hold scopes that must be left in the task that entered them.
        world: World = await self._group.start(self._hold_default)
        return world

    async def _hold_default(self, *, task_status: anyio.abc.TaskStatus[World]) -> None:
        held = False
        try:
            async with self.open_world(DEFAULT_WORLD) as world:
                held = True
                task_status.started(world)
                await self._closing.wait()
        except Exception:
            if not held:
                raise
            logger.exception("closing the default world failed")
        finally:
            self._default_ended.set()

    async def aclose(self) -> None:
        """End the default world, then the servers' sessions. Called by `connect`."""
        self._closing.set()
        if self._default is not None:
            await self._default_ended.wait()
        with ungrouped():
            async with anyio.create_task_group() as closing:
                for part in self._parts:
                    if part.aclose is not None:
                        closing.start_soon(part.aclose)


class _CheckedWorld:
    """One world over all sources; satisfies `World`."""

    def __init__(
        self,
        world_id: str,
        tools: Sequence[Tool],
        inner: Sequence[tuple[Part, World]],
        checker: ArgumentChecker,
        limits: Limits,
    ) -> None:
        self._world_id = world_id
        self._tools = list(tools)
        self._inner = list(inner)
        self._by_name = {tool.name: world for part, world in inner for tool in part.source.tools}
        self._checker = checker
        self._limits = limits
        self.closed = False

    @property
    def tools(self) -> list[Tool]:
        return list(self._tools)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        self._require_open()
        limit = self._limits.call_timeout_s if timeout_s is None else positive("timeout_s", timeout_s)
        began = time.perf_counter()
        with ungrouped():
            result = await self._checked(name, arguments, call_id, limit)
        return capped(result, self._limits.max_result_chars, duration_s=time.perf_counter() - began)

    async def _checked(
        self, name: str, arguments: Mapping[str, Any], call_id: str | None, limit_s: float
    ) -> ToolResult:
        world = self._by_name.get(name) if isinstance(name, str) else None
        if world is None:
            return error(unknown_tool(name, [tool.name for tool in self._tools]), "unknown_tool")
        problem = self._checker.problem(name, arguments)
        if problem is not None:
            return error(problem, "invalid_arguments")
        with anyio.move_on_after(limit_s):
            return await world.call(name, arguments, call_id=call_id, timeout_s=limit_s)
        raise CallTimeout(
            f"{name!r} did not answer within {limit_s:g} s in world {self._world_id!r}; whether it took effect is "
            "unknown. Raise call_timeout_s if it is only slow."
        )

    async def state(self) -> dict[str, Any] | None:
        """The state of the one source that has one; of several, keyed by their labels; `None` without any."""
        self._require_open()
        told: dict[str, dict[str, Any]] = {}
        for part, world in self._inner:
            state = await world.state() if part.has_state else None
            if state is not None:
                told[part.label] = state
        stateful = sum(part.has_state for part, _ in self._inner)
        if not told:
            return None
        return told if stateful > 1 else next(iter(told.values()))

    def _require_open(self) -> None:
        if self.closed:
            raise ToolFailure(f"world {self._world_id!r} is closed; open another with `open_world`")


def _merge(parts: Sequence[Part]) -> list[Tool]:
    owners: dict[str, str] = {}
    tools: list[Tool] = []
    for part in parts:
        for tool in part.source.tools:
            origin = tool.source or part.label
            if tool.name in owners:
                raise SourceError(
                    f"two tools are called {tool.name!r}: one from {owners[tool.name]}, one from {origin}. "
                    "Rename one of them, or leave one source out."
                )
            owners[tool.name] = origin
            tools.append(tool)
    if not tools:
        raise SourceError(f"{', '.join(part.label for part in parts)}: no tools at all; give a source that has some")
    return tools
