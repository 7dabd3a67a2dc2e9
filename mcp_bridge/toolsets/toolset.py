"""Several sources as one set of tools, and worlds over all of them.

Everything that holds for a call whatever is behind it happens here, once: unknown tools, arguments against the
schema, the time limit, the cap on the text.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc

from ..control import DEFAULT_WORLD
from ..errors import CallTimeout, SourceError, ToolFailure
from ..exception_groups import raise_as_itself, ungrouped
from ..guard.destructive import refuse_in_training, require_known
from ..guard.rate_limit import Turns
from ..ledger.lines import Entry, Ledger, LedgerLine
from ..ledger.once import call_once
from ..records import LeftOut, ServerInfo, Tool, ToolResult, WorldKind
from ..world import Setup, World
from .copies import ToolsetCopy, copy_all, opened_together
from .parts import Limits as Limits
from .parts import Offer, offers_of
from .parts import Part as Part
from .results import capped, error, positive
from .validation import ArgumentChecker, unknown_tool

logger = logging.getLogger(__name__)

_DEFAULT_WORLDS_LINES = 20_000
"""The default world lives as long as the toolset, so only the latest lines of its ledger are kept."""


class Toolset:
    """Connected tools. Made by `connect`; it is itself a `WorldSource`."""

    def __init__(self, parts: Sequence[Part], limits: Limits, group: anyio.abc.TaskGroup) -> None:
        """Raises `SourceError` where a source has two tools of one name, there is none, or a schema is invalid."""
        self._parts = list(parts)
        self._limits = limits
        self._group = group
        self._turns = [Turns.of(part.options) for part in self._parts]
        self._told: set[LeftOut] = set()
        self._allowed_in_training: tuple[str, ...] | None = None
        self._look()
        self._default: CheckedWorld | None = None
        self._default_lock = anyio.Lock()
        self._closing = anyio.Event()
        self._default_ended = anyio.Event()

    def __repr__(self) -> str:
        return f"Toolset({', '.join(tool.name for tool in self._tools)})"

    def _look(self) -> None:
        """Take over what the sources offer now. Worlds that are open keep what they began with."""
        revisions, offers = self._sources_revisions(), offers_of(self._parts)
        tools = [tool for offer in offers for tool in offer.tools]
        checker = ArgumentChecker(tools)
        if self._allowed_in_training is not None:
            refuse_in_training(_live_destructive(offers), self._allowed_in_training)
        # Only now: tools that cannot be used must not be taken over by the next world either.
        self._revisions, self._offers, self._tools, self._checker = revisions, offers, tools, checker
        self._routes = [_Route(*one, self._limits) for one in zip(self._offers, self._turns, strict=True)]
        for one in self.left_out:
            if one not in self._told:
                self._told.add(one)
                logger.warning("tool %r of %s is left out: %s", one.tool, one.source, one.reason)

    def _sources_revisions(self) -> list[int]:
        return [getattr(part.source, "revision", 0) for part in self._parts]

    @property
    def tools(self) -> list[Tool]:
        """All tools that the policy may call, in the order of the sources. Where a server's have changed since, they
        are those of the world that was opened last."""
        return list(self._tools)

    @property
    def servers(self) -> list[ServerInfo]:
        """The MCP servers among the sources."""
        infos = [getattr(part.source, "info", None) for part in self._parts]
        return [info for info in infos if isinstance(info, ServerInfo)]

    @property
    def worlds(self) -> list[WorldKind]:
        """What each rollout gets of each source."""
        return [
            part.world_kind
            or WorldKind(
                source=part.label,
                kind="copy" if part.is_simulated else "unknown",
                is_fresh=True if part.is_simulated else None,
            )
            for part in self._parts
        ]

    @property
    def left_out(self) -> list[LeftOut]:
        """The tools that the sources have and the policy is not shown, each with the reason."""
        return [one for offer in self._offers for one in offer.left_out]

    @property
    def live_destructive(self) -> list[Tool]:
        """The tools that may destroy something real: in no simulated world, and not in `allow_destructive`."""
        return _live_destructive(self._offers)

    def for_training(self, allowed: Sequence[str] = ()) -> None:
        """From now on, refuse destructive tools of live sources, except those that `allowed` names.

        Raises `SourceError` where there are some. Where a server offers one later, opening a world raises
        `ToolFailure`.
        """
        require_known(self._tools, allowed)
        refuse_in_training(self.live_destructive, allowed)
        self._allowed_in_training = tuple(allowed)

    @property
    def simulated_tools(self) -> list[Tool]:
        """The tools whose calls change nothing outside their world."""
        return [tool for offer in self._offers for tool in offer.simulated]

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of the default world; None before its first call. Other worlds: `world.ledger`."""
        return None if self._default is None else self._default.ledger

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not be written down: those in the servers' environments, headers, arguments and URLs."""
        return tuple(secret for part in self._parts for secret in part.secrets)

    @property
    def has_state(self) -> bool:
        """True when worlds can tell their state."""
        return any(part.has_state for part in self._parts)

    @property
    def can_setup(self) -> bool:
        """True when a world can begin with a setup."""
        return any(part.can_setup for part in self._parts)

    @property
    def can_fork(self) -> bool:
        """True when the worlds can be forked: those of every source."""
        return all(part.can_fork for part in self._parts)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """Call a tool in a world named `default`, which is opened by the first call and lives as the toolset does."""
        async with self._default_lock:
            if self._default is None:
                self._default = await self._open_default()
        return await self._default.call(name, arguments, call_id=call_id, timeout_s=timeout_s)

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[CheckedWorld]:
        """A fresh world over all sources.

        `setup` goes to the source that can set up; where several can, it must be keyed by their labels.
        Raises `SourceError` for a setup that nobody can do and `ToolFailure` where a server cannot be started.
        """
        if self._closing.is_set():
            raise RuntimeError(f"world {world_id!r} cannot be opened: the toolset is closed")
        setups = self._shares(setup or {})
        opened = [(part, part.source.open_world(world_id, setups.get(part.label) or None)) for part in self._parts]

        def make(inner: Sequence[tuple[Part, World]]) -> CheckedWorld:
            if self._revisions != self._sources_revisions():
                self._look_again()
            return CheckedWorld(world_id, self._shown(inner), inner, self._routes, self._checker)

        async with opened_together(opened, make) as world:
            yield world

    def _look_again(self) -> None:
        try:
            self._look()
        except SourceError as error:
            raise ToolFailure(f"the tools have changed and cannot be used: {error}", delivery="not_sent") from error

    def _shown(self, inner: Sequence[tuple[Part, World]]) -> list[Tool]:
        """The tools that the policy is shown in a world: a setup may show fewer than the source has."""
        shown: list[Tool] = []
        for offer, (part, world) in zip(self._offers, inner, strict=True):
            if len(world.tools) == len(part.source.tools):
                shown += offer.tools
            else:
                there = {tool.name for tool in world.tools}
                shown += [tool for tool in offer.tools if (tool.name_at_source or tool.name) in there]
        return shown

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

    async def _open_default(self) -> CheckedWorld:
        # In a task of its own: it is opened by whoever calls first and closed by whoever closes the toolset,
        # and a sandbox may hold scopes that must be left in the task that entered them.
        world: CheckedWorld = await self._group.start(self._hold_default)
        return world

    async def _hold_default(self, *, task_status: anyio.abc.TaskStatus[CheckedWorld]) -> None:
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


def _live_destructive(offers: Sequence[Offer]) -> list[Tool]:
    return [tool for offer in offers for tool in offer.live_destructive]


class _Route:
    """How calls reach the tools of one part; the same in all worlds."""

    def __init__(self, offer: Offer, turns: Turns | None, limits: Limits) -> None:
        options = offer.part.options
        self.tools = {tool.name: tool for tool in offer.tools}
        self.retries = options.retries
        self.turns = turns
        self.call_timeout_s = limits.call_timeout_s
        self.max_result_chars = min(limits.max_result_chars, options.max_result_chars or limits.max_result_chars)


class CheckedWorld:
    """One world over all sources; satisfies `World`."""

    def __init__(
        self,
        world_id: str,
        tools: Sequence[Tool],
        inner: Sequence[tuple[Part, World]],
        routes: Sequence[_Route],
        checker: ArgumentChecker,
        *,
        past: Sequence[LedgerLine] = (),
    ) -> None:
        """`past`: the ledger of the world that this one was forked from."""
        self._world_id = world_id
        self._tools = list(tools)
        self._inner = list(inner)
        self._routes = routes
        self._by_name = {
            name: (route, world) for route, (_, world) in zip(routes, inner, strict=True) for name in route.tools
        }
        self._checker = checker
        most_lines = _DEFAULT_WORLDS_LINES if world_id == DEFAULT_WORLD else None
        self.ledger = Ledger(world_id, most_lines=most_lines, past=past)
        """What was called and how it ended; see `mcp_bridge.ledger`."""
        self.closed = False

    @property
    def tools(self) -> list[Tool]:
        return list(self._tools)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        # Others get their turn here, where this call holds nothing yet: whatever it made on its way would wait with it,
        # and the garbage collector goes through all that waits. One cancelled here has not called anything.
        await anyio.lowlevel.checkpoint()
        if self.closed:
            self._require_open()
        limit_s = None if timeout_s is None else positive("timeout_s", timeout_s)
        entry = self.ledger.open(name, arguments, call_id)
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None:
            return self._refused(entry, error(unknown_tool(name, [tool.name for tool in self._tools]), "unknown_tool"))
        problem = self._checker.problem(name, arguments, known_plain=entry.has_plain_arguments)
        if problem is not None:
            return self._refused(entry, error(problem, "invalid_arguments"))
        route, world = found
        tool = route.tools[name]
        return await call_once(
            entry,
            functools.partial(self._send, entry, route, world, tool.name_at_source or name, arguments),
            tool=tool,
            retries=route.retries,
            limit_s=route.call_timeout_s if limit_s is None else limit_s,
            turns=route.turns,
        )

    async def _send(
        self, entry: Entry, route: _Route, world: World, name: str, arguments: Mapping[str, Any], left_s: float
    ) -> ToolResult:
        """One attempt. `name`: what the source calls the tool. Raises `CallTimeout` after `left_s`."""
        began = time.perf_counter()
        try:
            with anyio.move_on_after(left_s):
                result = await world.call(name, arguments, call_id=entry.call, timeout_s=left_s)
                # A source that says how long it took knows better: a delay may only be simulated.
                took_s = result.duration_s or time.perf_counter() - began
                return capped(result, route.max_result_chars, duration_s=took_s)
        except BaseExceptionGroup as group:
            raise_as_itself(group)
        raise CallTimeout(
            f"{entry.tool!r} did not answer within {left_s:g} s in world {self._world_id!r}; whether it took effect is "
            "unknown. Raise call_timeout_s if it is only slow."
        )

    def _refused(self, entry: Entry, result: ToolResult) -> ToolResult:
        entry.refused(result)
        return result

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

    async def fork(self) -> ToolsetCopy[CheckedWorld]:
        """The world as it is now, for others to go on from; their ledgers begin with the lines of this one.

        None of its calls may be under way. Raises `SourceError` where a source's worlds cannot be forked (see
        `Toolset.can_fork`), `ToolFailure` where a server does not do it.
        """
        self._require_open()
        past = self.ledger.lines

        def make(world_id: str, inner: Sequence[tuple[Part, World]]) -> CheckedWorld:
            return CheckedWorld(world_id, self._tools, inner, self._routes, self._checker, past=past)

        return await copy_all(self._inner, make)

    def _require_open(self) -> None:
        if self.closed:
            raise ToolFailure(f"world {self._world_id!r} is closed; open another with `open_world`")
