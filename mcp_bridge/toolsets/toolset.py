"""Several sources as one set of tools, and worlds over all of them.

Everything that holds for a call whatever is behind it happens here, once: unknown tools, arguments against the
schema, the time limit, the cap on the text.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from ..control_tools import DEFAULT_WORLD
from ..errors import (
    CallTimeout,
    SourceError,
    ToolFailure,
    as_itself,
    is_cancelled,
    positive,
    raise_as_itself,
    ungrouped,
)
from ..guard import Named, Turns, choose, dangerous, refuse_in_training, require_known, told_apart
from ..ledger import Entry, Ledger, LedgerLine, call_once
from ..records import LeftOut, ServerInfo, Tool, ToolResult, WorldKind, capped, error_result
from ..sources.specs import ServerOptions, Spec
from ..world import ForkableWorld, HeldCopy, SaidBySource, Setup, World, WorldCopy, WorldSource
from .schema_checks import split_usable
from .tool_text import tools_markdown
from .validation import ArgumentChecker, unknown_tool

logger = logging.getLogger(__name__)

_DEFAULT_WORLDS_LINES = 20_000
"""The default world lives as long as the toolset, so only the latest lines of its ledger are kept."""


@dataclass(frozen=True)
class Limits:
    """What every call is held to."""

    call_timeout_s: float
    max_result_chars: int


@dataclass(frozen=True)
class Part(SaidBySource):
    """One source among those of a toolset."""

    label: str
    source: WorldSource
    aclose: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Ends what `connect` started; `None` for what the user brought running."""
    options: ServerOptions = field(default_factory=ServerOptions)
    is_named: bool = False
    """Whether the label is the name that the user gave the source, and not made of its command or URL."""

    @functools.cached_property
    def turns(self) -> Turns | None:
        """Turns at the source, over all worlds; None where there is no limit."""
        is_free = self.options.max_concurrency is None and self.options.calls_per_second is None
        return None if is_free else Turns(self.options)

    @property
    def is_lenient(self) -> bool:
        """Whether arguments are passed on that the schemas do not allow and the source is likely to take."""
        asked = self.options.arguments
        return self.lenient_arguments if asked is None else asked == "lenient"


@dataclass(frozen=True)
class Offer:
    """What the policy is offered of one part."""

    part: Part
    tools: list[Tool]
    left_out: list[LeftOut]

    @property
    def simulated(self) -> list[Tool]:
        """The tools whose calls change nothing outside their world."""
        return self.tools if self.part.simulated else self._named(self.part.simulated_tools)

    @property
    def live_destructive(self) -> list[Tool]:
        if self.part.simulated:
            return []
        told = self.part.live_destructive
        # Connected tools behind it know the options of their servers.
        return dangerous(self.tools, self.part.options) if told is None else self._named(told)

    def _named(self, at_source: Iterable[Tool]) -> list[Tool]:
        """Those of the tools that the source gave, under the names that they have here."""
        names = {tool.name for tool in at_source}
        return [tool for tool in self.tools if (tool.name_at_source or tool.name) in names]


@dataclass(frozen=True)
class Look:
    """What the sources offered at one moment, with the checker of its tools' arguments."""

    revisions: list[int]
    offers: list[Offer]
    checker: ArgumentChecker

    @property
    def tools(self) -> list[Tool]:
        return [tool for offer in self.offers for tool in offer.tools]

    @property
    def live_destructive(self) -> list[Tool]:
        return [tool for offer in self.offers for tool in offer.live_destructive]


async def look_at(parts: Sequence[Part]) -> Look:
    """Take over what the sources offer now. Raises `SourceError` where there is no tool, or two have one name."""
    revisions = [part.revision for part in parts]
    # The sources are asked here, for they may not be made for several threads. Their tools are checked in a thread: a
    # thousand with large schemas take seconds, and other tasks go on meanwhile.
    chosen = [choose(part.source.tools, part.options, part.label) for part in parts]
    offers, checker = await anyio.to_thread.run_sync(_checked, parts, chosen, abandon_on_cancel=True)
    return Look(revisions, offers, checker)


def _checked(
    parts: Sequence[Part], chosen: Sequence[tuple[list[Tool], list[LeftOut]]]
) -> tuple[list[Offer], ArgumentChecker]:
    """The tools of all parts under names of their own, and the checker of their arguments. `chosen`: those of each part
    that the user wants, and those left out.

    What a source itself left out, and says so in an attribute `left_out`, is kept with the rest. So are tools whose
    schema cannot be used.
    """
    split = [split_usable(kept, part.label) for part, (kept, _) in zip(parts, chosen, strict=True)]
    named = told_apart(
        [
            Named(part.label, part.options.namespace, usable, part.is_named)
            for part, (usable, _) in zip(parts, split, strict=True)
        ]
    )
    offers = [
        Offer(part, tools, [*part.left_out, *left_out, *unusable])
        for part, tools, (_, left_out), (_, unusable) in zip(parts, named, chosen, split, strict=True)
    ]
    if not any(offer.tools for offer in offers):
        labels = ", ".join(part.label for part in parts)
        dropped = [f"{one.tool!r} ({one.reason})" for offer in offers for one in offer.left_out]
        if dropped:
            raise SourceError(f"{labels}: no tool is left. Left out are {', '.join(dropped)}")
        raise SourceError(f"{labels}: no tools at all; give a source that has some")
    lenient = [tool.name for offer in offers if offer.part.is_lenient for tool in offer.tools]
    return offers, ArgumentChecker([tool for offer in offers for tool in offer.tools], lenient=lenient)


class Toolset:
    """Connected tools. Made by `connect`; it is itself a `WorldSource`."""

    def __init__(
        self, parts: Sequence[Part], limits: Limits, group: anyio.abc.TaskGroup, specs: Sequence[Spec], first: Look
    ) -> None:
        """`first`: what the parts offer now."""
        self.specs = tuple(specs)
        """The servers, functions and sandboxes that `connect` read from its source, in their order."""
        self._parts = list(parts)
        self._limits = limits
        self._group = group
        self._told: set[LeftOut] = set()
        self._allowed_in_training: tuple[str, ...] | None = None
        self._apart: set[str] = set()
        self._take(first)
        self._looking = anyio.Lock()
        self._default: CheckedWorld | None = None
        self._default_lock = anyio.Lock()
        self._closing = anyio.Event()
        self._default_ended = anyio.Event()

    def __repr__(self) -> str:
        return f"Toolset({', '.join(tool.name for tool in self.tools)})"

    def _repr_markdown_(self) -> str:
        return tools_markdown(self.tools, self.left_out)

    def _take(self, look: Look) -> None:
        """Offer what the sources offered. Worlds that are open keep what they began with."""
        if self._allowed_in_training is not None:
            refuse_in_training(look.live_destructive, self._allowed_in_training)
        # Only now: tools that cannot be used must not be taken over by the next world either.
        self._look = look
        for one in self.left_out:
            if one not in self._told:
                self._told.add(one)
                logger.warning("tool %r of %s is left out: %s", one.tool, one.source, one.reason)

    @property
    def tools(self) -> list[Tool]:
        """All tools that the policy may call, in the order of the sources. Where a server's have changed since, they
        are those of the world that was opened last."""
        return self._look.tools

    @property
    def max_result_chars(self) -> int:
        """The most characters of a result, of whichever source."""
        most = self._limits.max_result_chars
        return max((min(most, part.options.max_result_chars or most) for part in self._parts), default=most)

    @property
    def servers(self) -> list[ServerInfo]:
        """The MCP servers among the sources."""
        return [part.info for part in self._parts if isinstance(part.info, ServerInfo)]

    @property
    def worlds(self) -> list[WorldKind]:
        """What each rollout gets of each source."""
        return [_world_kind(offer, apart=offer.part.label in self._apart) for offer in self._look.offers]

    def found_apart(self, name: str) -> None:
        """It was tried: what was written in one world of the source of this name, others did not show. From now on its
        worlds count as fresh, unless a process was seen to write to what all share."""
        self._apart.add(name)

    @property
    def left_out(self) -> list[LeftOut]:
        """The tools that the sources have and the policy is not shown, each with the reason."""
        return [one for offer in self._look.offers for one in offer.left_out]

    @property
    def live_destructive(self) -> list[Tool]:
        """The tools that may destroy something real: in no simulated world, and not in `allow_destructive`."""
        return self._look.live_destructive

    def for_training(self, allowed: Sequence[str] = ()) -> None:
        """From now on, refuse destructive tools of live sources, except those that `allowed` names.

        Raises `SourceError` where there are some. Where a server offers one later, opening a world raises
        `ToolFailure`.
        """
        require_known(self.tools, allowed)
        refuse_in_training(self.live_destructive, allowed)
        self._allowed_in_training = tuple(allowed)

    @property
    def simulated_tools(self) -> list[Tool]:
        """The tools whose calls change nothing outside their world."""
        return [tool for offer in self._look.offers for tool in offer.simulated]

    @property
    def shared_tools(self) -> list[Tool]:
        """The tools whose calls other worlds may see, as far as is known: those that do not say that they only read, of
        sources that give no world of its own to each rollout; and those that act outside any world (`openWorldHint`).
        """
        return [
            tool
            for offer, kind in zip(self._look.offers, self.worlds, strict=True)
            if not offer.part.simulated
            for tool in offer.tools
            if tool not in offer.simulated
            and not tool.annotations.read_only
            and (tool.annotations.open_world or not kind.is_fresh)
        ]

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
                # In a task of its own: it is opened by whoever calls first and closed by whoever closes the toolset,
                # and a sandbox may hold scopes that must be left in the task that entered them.
                self._default = await self._group.start(self._hold_default)
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

        async def make(inner: Sequence[tuple[Part, World]]) -> CheckedWorld:
            if self._look.revisions != [part.revision for part in self._parts]:
                await self._look_again()
            return CheckedWorld(world_id, self._shown(inner), inner, self._look, self._limits)

        async with _opened_together(opened, make) as world:
            yield world

    async def _look_again(self) -> None:
        async with self._looking:
            try:
                if self._look.revisions != [part.revision for part in self._parts]:
                    self._take(await look_at(self._parts))
            except SourceError as error:
                raise ToolFailure(f"the tools have changed and cannot be used: {error}", delivery="not_sent") from error

    def _shown(self, inner: Sequence[tuple[Part, World]]) -> list[Tool]:
        """The tools that the policy is shown in a world: a setup may show fewer than the source has."""
        shown: list[Tool] = []
        for offer, (part, world) in zip(self._look.offers, inner, strict=True):
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


def _world_kind(offer: Offer, *, apart: bool) -> WorldKind:
    part = offer.part
    said = part.world_kind or WorldKind(
        source=part.label, kind="copy" if part.simulated else "unknown", is_fresh=True if part.simulated else None
    )
    simulated = {tool.name for tool in offer.simulated}
    names = [tool.name for tool in offer.tools]
    return said.model_copy(
        update={
            "name": part.label,
            "is_fresh": True if apart and said.is_fresh is None else said.is_fresh,
            "may_share": part.options.allow_shared_state,
            "can_setup": part.can_setup,
            "has_state": part.has_state,
            "tools": tuple(names),
            "live_tools": tuple(name for name in names if name not in simulated),
        }
    )


class CheckedWorld:
    """One world over all sources; satisfies `World`."""

    def __init__(
        self,
        world_id: str,
        tools: Sequence[Tool],
        inner: Sequence[tuple[Part, World]],
        look: Look,
        limits: Limits,
        *,
        past: Sequence[LedgerLine] = (),
    ) -> None:
        """`past`: the ledger of the world that this one was forked from."""
        self._world_id = world_id
        self._tools = list(tools)
        self._inner = list(inner)
        self._look = look
        self._limits = limits
        self._by_name = {
            tool.name: (part, tool, world)
            for offer, (part, world) in zip(look.offers, inner, strict=True)
            for tool in offer.tools
        }
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
            told = unknown_tool(name, [tool.name for tool in self._tools])
            return entry.refused(error_result(told, "unknown_tool"))
        problem = self._look.checker.problem(name, arguments)
        if problem is not None:
            return entry.refused(error_result(problem, "invalid_arguments"))
        part, tool, world = found
        return await call_once(
            entry,
            functools.partial(self._send, entry, part, world, tool.name_at_source or name, arguments),
            tool=tool,
            retries=part.options.retries,
            limit_s=self._limits.call_timeout_s if limit_s is None else limit_s,
            turns=part.turns,
        )

    async def _send(
        self, entry: Entry, part: Part, world: World, name: str, arguments: Mapping[str, Any], left_s: float
    ) -> ToolResult:
        """One attempt. `name`: what the source calls the tool. Raises `CallTimeout` after `left_s`."""
        if self.closed:  # while the call waited for its turn, or between two attempts
            told = f"{entry.tool!r} was not called: world {self._world_id!r} was closed before its turn came"
            raise ToolFailure(told, delivery="not_sent", world_lost=True)
        began = time.perf_counter()
        try:
            with anyio.move_on_after(left_s):
                result = await world.call(name, arguments, call_id=entry.call, timeout_s=left_s)
                # A source that says how long it took knows better: a delay may only be simulated.
                took_s = result.duration_s or time.perf_counter() - began
                most = self._limits.max_result_chars
                most = min(most, part.options.max_result_chars or most)
                return capped(result, most, duration_s=took_s)
        except BaseExceptionGroup as group:
            raise_as_itself(group)
        except anyio.get_cancelled_exc_class() as error:
            if is_cancelled():
                raise
            # Passed on, it would end all rollouts of the run in silence.
            told = f"{entry.tool!r} failed in world {self._world_id!r}: something that it waited for was cancelled"
            raise ToolFailure(told, delivery="answered") from error
        raise CallTimeout(
            f"{entry.tool!r} did not answer within {left_s:g} s in world {self._world_id!r}; whether it took effect is "
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

    async def fork(self) -> HeldCopy:
        """The world as it is now, for others to go on from; their ledgers begin with the lines of this one.

        None of its calls may be under way. Raises `SourceError` where a source's worlds cannot be forked (see
        `Toolset.can_fork`), `ToolFailure` where a server does not do it.
        """
        self._require_open()
        past = self.ledger.lines
        copies: list[tuple[Part, WorldCopy]] = []

        def open_fork(world_id: str) -> AbstractAsyncContextManager[CheckedWorld]:
            async def make(inner: Sequence[tuple[Part, World]]) -> CheckedWorld:
                return CheckedWorld(world_id, self._tools, inner, self._look, self._limits, past=past)

            return _opened_together([(part, copy.open(world_id)) for part, copy in copies], make)

        async with contextlib.AsyncExitStack() as stack:
            for part, world in self._inner:
                if not (part.can_fork and isinstance(world, ForkableWorld)):
                    raise SourceError(
                        f"a world of {part.label} cannot be forked; sandboxes can, and servers with the control tool "
                        "fork_world"
                    )
                copy = await world.fork()
                stack.push_async_callback(_closed, copy)
                copies.append((part, copy))
            return HeldCopy(open_fork, stack.pop_all().aclose)

    def _require_open(self) -> None:
        if self.closed:
            raise ToolFailure(f"world {self._world_id!r} is closed; open another with `open_world`")


@contextlib.asynccontextmanager
async def _opened_together(
    parts: Sequence[tuple[Part, AbstractAsyncContextManager[World]]],
    make: Callable[[Sequence[tuple[Part, World]]], Awaitable[CheckedWorld]],
) -> AsyncIterator[CheckedWorld]:
    """The world that `make` makes of one world of each part, closed with them at the end."""
    raised: BaseException | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            world = await make([(part, await stack.enter_async_context(one)) for part, one in parts])
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


async def _closed(copy: WorldCopy) -> None:
    with anyio.CancelScope(shield=True):
        await copy.aclose()
