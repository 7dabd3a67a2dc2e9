"""Isolation, tried out: one world of a live source is written to, and others are looked at.

Only tools that training may call are called: no destructive ones that are not allowed by name, and none to write with
that say that they reach an open world. Where no demonstration shows a call, only tools that add something are called.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio

from mcp_bridge import Toolset
from mcp_bridge.errors import BridgeError, ToolFailure
from mcp_bridge.guard import is_destructive, is_named
from mcp_bridge.records import Tool, WorldKind
from mcp_bridge.sources.environment import WORLD_DIR
from mcp_bridge.sources.specs import WARM_PROCESSES, Spec, StdioSpec
from mcp_bridge.world import World

from ..errors import ConfigError
from ..probing.probes import some_calls
from ..records import Task, ToolCall
from ..synthesis.shared_state import changes_shared
from ..synthesis.words import VERBS, verb_and_object, words
from ..synthesis.worlds import leaves

_MOST_WRITES = 4
_MOST_READS = 12
_MOST_WAITING = 4
"""So many of these are used up to get a process that started later."""
_LOOK_S = 3.0
"""What is not read by then, in the first look at a world, is not read at all: a trial takes up to ten looks."""
_TICK_S = 1.1
"""What counts seconds changes in that time."""
_CALL_S = 5.0
_SECONDS = 30.0
"""All calls of one source together: after them no further one is begun."""
_WORD = re.compile(r"\w+")
_SHORTEST = 3
"""Of a word that counts as a trace of the write."""
_TIME = re.compile(r"T?\d{1,2}:\d\d(:\d\d)?([.,]\d+)?(Z|[+-]\d\d:?\d\d)?|T\d{6}Z?|\d{9,}([.,]\d+)?")
"""Times of day, and seconds since 1970: they pass by themselves."""
_WRITING = frozenset(
    {"save", "write", "clear", "drop", "reset", "insert", "upsert", "append", "store", "import", "upload", "submit"}
)
"""First words after which `list`, `view` or `count` is a noun."""
_ADDING = frozenset({"create", "add", "make", "write", "save", "append", "insert", "remember"})
"""Verbs of tools that only add, where they say nothing of themselves: with made-up arguments no others are called."""
_ADDING_FIRST = _ADDING | {"store", "register", "record", "note"}
"""Those that are verbs only where they come first."""
_NOT_ADDING = frozenset(
    {
        *("delete", "remove", "update", "clear", "purge", "drop", "cancel", "edit", "send", "reset", "wipe", "erase"),
        *("destroy", "truncate", "overwrite", "replace", "revoke", "unregister", "deactivate", "disable", "archive"),
        *("move", "rename", "publish", "pay", "refund", "all", "or", "and"),
    }
)
"""Words in the name of a tool that does more than to add something, wherever they stand."""
_T = TypeVar("_T")
_STATE = "its state"
ONLY_READ = "all its tools only read"


@dataclass(frozen=True)
class Tried:
    """What the worlds of one source showed."""

    world: WorldKind
    wrote: str = ""
    """The tool that wrote, where something was written."""
    saw: str = ""
    """What showed it: a tool's name, or the state."""
    is_apart: bool | None = None
    """Whether the other worlds did not show it; None where that could not be found out."""
    why: str = ""
    """Why it could not."""
    later: bool = False
    """Whether it was a world that was opened afterwards that showed it."""

    @property
    def found(self) -> str:
        """What was found, in words."""
        if self.is_apart is None:
            return f"whether worlds share state was not found out: {self.why}"
        wrote = f"what {self.wrote} wrote in one world, {self.saw} shows"
        if self.is_apart:
            return f"{wrote} there and in no other"
        return f"{wrote} in {'a world that was opened afterwards' if self.later else 'another world'}"

    def __str__(self) -> str:
        return f"{self.world.name}: {self.found}"

    @property
    def fix(self) -> str:
        """How to give each rollout a world of its own, for a source of this kind."""
        if _is_functions(self.world):
            return "put the state into an object, and give sandboxes.objects.ObjectTwin (docs/sandboxes.md)"
        own = "in a server of yours, use mcp_bridge.worlds (docs/servers.md#worlds-in-your-own-server)"
        if self.world.has_folder:
            return f"its {WORLD_DIR} does not hold all that it keeps: name each of its files in there, or {own}"
        if self.world.kind == "process":
            return (
                f"if it keeps state in files, name them in {WORLD_DIR}, a folder for each world, with "
                f'"toolbake": {{"world": {{"folder": "seed/"}}}} for what each begins with (docs/tools.md#isolation), '
                f"or {own}"
            )
        return own


def require_known_sources(source: Toolset, allowed: Iterable[str]) -> None:
    """Raises `ConfigError` where a name or a pattern in `allowed` fits none of the sources."""
    names = [world.name for world in source.worlds]
    for one in allowed:
        if not any(is_named(name, [one]) for name in names):
            raise ConfigError(f"allow_shared_state names {one!r}, which is none of the sources: {', '.join(names)}")


def refuse_shared_state(tried: Iterable[Tried]) -> None:
    """Raises `ConfigError` that names each source whose worlds share state, with what showed it and the fix."""
    shared = [one for one in tried if one.is_apart is False]
    if not shared:
        return
    names = [one.world.name for one in shared]
    raise ConfigError(
        "rollouts would share state, so that each is scored for what others did too: "
        + "; ".join(f"{one}. To give each rollout its own, {one.fix}" for one in shared)
        + '. To train on it all the same: "toolbake": {"allow_shared_state": true} in its entry of the mcp.json, or '
        + f"config={{'allow_shared_state': {names!r}}}"
    )


async def try_isolation(
    source: Toolset, tasks: Sequence[Task], *, destructive: Sequence[str] = (), allowed: Sequence[str] = ()
) -> list[Tried]:
    """What the worlds of each source show that is neither simulated nor allowed to share state.

    The trial writes with the calls of the tasks' demonstrations. If there are none, it calls tools that only add, with
    arguments made from the schemas. `destructive`, `allowed`: as `allow_destructive` and `allow_shared_state` of the
    training. Worlds of sources that turn out to be apart count as fresh from now on. Raises `ConfigError` where
    `allowed` names no source.
    """
    require_known_sources(source, allowed)
    plans = [
        _Plan.of(source, world, tasks, destructive)
        for world in source.worlds
        if not (_is_simulated(world) or world.may_share or is_named(world.name, allowed))
    ]
    able = [plan for plan in plans if not plan.why]
    found = {plan.world.name: Tried(plan.world, why=plan.why) for plan in plans}
    shown = next((task for task in tasks if task.demonstration), tasks[0] if tasks else None)

    def open_world(number: int) -> AbstractAsyncContextManager[World]:
        return source.open_world(f"isolation/{number}", shown.setup if shown is not None else None)

    try:
        trials = await _tried(able, open_world, source.specs) if able else []
        found |= {one.world.name: one for one in trials}
    except BridgeError as error:
        found |= {plan.world.name: Tried(plan.world, why=str(error)) for plan in able}
    for one in found.values():
        if one.is_apart:
            source.found_apart(one.world.name)
    return list(found.values())


async def _tried(
    plans: Sequence[_Plan], open_world: Callable[[int], AbstractAsyncContextManager[World]], specs: Sequence[Spec]
) -> list[Tried]:
    """Raises `BridgeError` where worlds cannot be opened."""
    one_at_a_time = any(getattr(getattr(spec, "options", None), "max_sessions", None) == 1 for spec in specs)
    trials = [_Trial(plan) for plan in plans]
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(open_world(1))
        for trial in trials:
            await trial.begin(other)
        if one_at_a_time:
            await stack.aclose()
        async with open_world(2) as written:
            for trial in trials:
                await trial.write(written, None if one_at_a_time else other)
    open_still = [trial for trial in trials if trial.is_seen and not trial.is_shared]
    # What a process reads from a file when it starts is seen only in one that started after the write.
    waiting = _waiting(specs)
    for number in range(waiting + 1 if open_still else 0):
        async with open_world(number + 3) as later:
            if number == waiting:
                for trial in open_still:
                    await trial.end(later)
    return [trial.found() for trial in trials]


def _is_simulated(world: WorldKind) -> bool:
    """Whether its worlds are apart by the way in which they are made. A folder for each may be ignored."""
    return world.kind in ("copy", "control") or (world.kind == "unknown" and not world.live_tools)


def _is_functions(world: WorldKind) -> bool:
    """Whether it is that of all Python functions. A server may have their name."""
    return world.source == "functions"


@dataclass(frozen=True)
class _Plan:
    """The calls that one source is tried with."""

    world: WorldKind
    writes: Sequence[ToolCall] = ()
    reads: Sequence[ToolCall] = ()
    why: str = ""
    """Why nothing can be tried."""

    @classmethod
    def of(cls, source: Toolset, world: WorldKind, tasks: Sequence[Task], destructive: Sequence[str]) -> _Plan:
        tools = [tool for tool in source.tools if tool.name in world.tools]
        live, changing = {tool.name for tool in source.live_destructive}, changes_shared(source)
        reading = [
            tool
            for tool in tools
            if tool.annotations.read_only
            or (_is_functions(world) and tool.name not in changing)
            or (_reads_by_name(tool) and (tool.name not in live or is_named(tool.name, destructive)))
        ]
        writing = [
            tool
            for tool in tools
            if tool not in reading
            and not tool.annotations.open_world
            and (
                is_named(tool.name, destructive)
                or not (
                    tool.name in live
                    or (tool.name not in world.live_tools and is_destructive(tool))  # its folder may not hold it
                )
            )
        ]
        if len(reading) == len(tools):
            return cls(world, why=ONLY_READ)
        if not writing:
            return cls(world, why="every tool that may write is destructive, or reaches an open world")
        if not reading and not world.has_state:
            return cls(world, why="none of its tools is known to read")
        names = {tool.name for tool in writing}
        tasks = sorted(tasks, key=lambda task: names.isdisjoint(call.name for call in _gold([task])))
        written = [call for call in _gold(tasks) if call.name in names][:_MOST_WRITES]
        trace = f"toolbake-{secrets.token_hex(4)}"
        if not written and _is_functions(world):  # of these it is known anyway that all rollouts share them
            return cls(world, why="no demonstration calls a function that may change something")
        made_up = [tool for tool in writing if _only_adds(tool) or is_named(tool.name, destructive)]
        if not written and not made_up:
            return cls(
                world, why="no demonstration calls a tool that may write, and none is known to only add something"
            )
        values = [str(value) for call in written for _, value in leaves(call.arguments)]
        short = [value for value in dict.fromkeys(values) if " " not in value]  # a statement may do what it says
        names = {tool.name for tool in reading}
        reading.sort(key=lambda tool: len(tool.input_schema.get("required", ())))
        return cls(
            world,
            writes=written or some_calls(made_up, [trace])[:_MOST_WRITES],
            reads=_distinct(
                [
                    *[call for call in _gold(tasks) if call.name in names][: _MOST_READS // 2],
                    *some_calls(reading, [*short[:3], trace]),
                ]
            )[:_MOST_READS],
        )


def _reads_by_name(tool: Tool) -> bool:
    """Whether a tool that says nothing of itself has the name of one that reads."""
    says, found = tool.annotations, words(tool.name_at_source or tool.name) or [""]
    if "or" in found or "and" in found or found[:2] in (["check", "in"], ["check", "out"]):
        return False  # get_or_create does more
    known = found[0] in VERBS or (found[-1] in VERBS and found[0] not in _WRITING)  # campaign_list, but not clear_list
    return says.read_only is None and not says.destructive and known and not verb_and_object("_".join(found))[0]


def _only_adds(tool: Tool) -> bool:
    """By its annotations; by its name, where it says nothing of itself: MCP takes such a tool for destructive."""
    if tool.annotations.destructive is not None:
        return not tool.annotations.destructive
    found = words(tool.name_at_source or tool.name) or [""]
    first, last = found[0], found[-1]
    adds = first in _ADDING_FIRST or (last in _ADDING and first not in VERBS | _WRITING)  # campaign_add
    return adds and _NOT_ADDING.isdisjoint(found)


def _gold(tasks: Iterable[Task]) -> list[ToolCall]:
    """The calls of the tasks' demonstrations, each once."""
    calls = [call for task in tasks for message in task.demonstration for call in message.tool_calls]
    return _distinct(call for call in calls if call.error is None)


def _distinct(calls: Iterable[ToolCall]) -> list[ToolCall]:
    return list({json.dumps([one.name, one.arguments], sort_keys=True, default=str): one for one in calls}.values())


def _waiting(specs: Sequence[Spec]) -> int:
    """How many processes may have started before they were needed."""
    asked = [spec.options.warm for spec in specs if isinstance(spec, StdioSpec)]
    return min(max((WARM_PROCESSES if warm is None else warm for warm in asked), default=0), _MOST_WAITING)


class _Trial:
    """What one source showed so far."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._reads = plan.reads
        self._left_s = _SECONDS
        self._silent: set[str] = set()
        """Tools that did not answer: they are not waited for again."""
        self._refused: set[str] = set()
        """What was answered as an error."""
        self._before: list[list[str | None]] = []
        """What fresh worlds showed, in each read once."""
        self._traces: set[str] = set()
        self._problem = ""
        self._wrote = ""
        self._place: int | None = None
        """Of the read that showed, in the world that was written to, what was written."""
        self._shown: list[str | None] = []
        """What that world showed from then on, in each read."""
        self._shared: str | None = None
        self._is_later = False

    @property
    def is_seen(self) -> bool:
        return self._place is not None

    @property
    def is_shared(self) -> bool:
        return self._shared is not None

    async def begin(self, other: World) -> None:
        """Look at a world that nobody writes to, twice: what differs by itself is not a trace of a write."""
        first: list[str | None] = []
        for call in self._reads:
            first.append(await self._text(other, call))
            if self._left_s < _SECONDS - _LOOK_S:
                break
        self._reads = self._reads[: len(first)]
        self._before = [[*first, *await self._states(other)]]
        self._before.append(await self._look(other))

    async def write(self, written: World, other: World | None) -> None:
        """Write to one world until it shows that, and then look at the other."""
        self._before.append(await self._look(written))
        if all(text is None for look in self._before for text in look):  # then nothing would show what is written
            self._problem = self._problem or "no call that reads was answered"
            return
        for call in self._plan.writes:
            result = await self._text(written, call, writes=True)
            if result is None:
                continue
            self._wrote, self._traces = call.name, _traces(call)
            self._shown = await self._look(written)
            for place, text in enumerate(self._shown):
                if text is not None and self._differs(place, text):
                    self._place = place
                    if other is not None:
                        await self._look_for_it(other)
                    return

    async def _look_for_it(self, other: World) -> None:
        now = await self._look(other)
        self._take(now)
        if self.is_shared:
            return
        changed = [place for place, text in enumerate(now) if text is not None and self._differs(place, text)]
        if not changed:
            return
        # Nothing of the write is in it, so that it may have changed by itself: then it changes again, or is not what
        # the world shows that was written to.
        await anyio.sleep(_TICK_S)
        again = await self._look(other)
        same = [place for place in changed if again[place] == now[place] == self._shown[place]]
        self._shared = self._name(same[0]) if same else None
        if self._shared is None:
            self._problem = f"{self._name(changed[0])} changed in another world, perhaps by itself"
            self._place = None

    async def end(self, later: World) -> None:
        """Look at a world that was opened after the one that was written to was closed."""
        now = await self._look(later)
        self._take(now)
        if not self.is_shared and self._place is not None and now[self._place] == self._shown[self._place]:
            self._shared = self._name(self._place)
        self._is_later = self.is_shared

    def _take(self, now: Sequence[str | None]) -> None:
        """Shared is what another world shows of the write; a world that does not answer tells nothing."""
        self._shared = next((self._name(place) for place, text in enumerate(now) if self._shows(place, text)), None)
        if self._shared is None and self._place is not None and now[self._place] is None:
            self._place = None

    def found(self) -> Tried:
        world = self._plan.world
        if self._shared is not None:
            return Tried(world, self._wrote, self._shared, is_apart=False, later=self._is_later)
        if self._place is not None:
            return Tried(world, self._wrote, self._name(self._place), is_apart=True)
        why = self._problem or (
            f"nothing showed what {self._wrote} wrote" if self._wrote else "no call that writes was accepted"
        )
        return Tried(world, why=why)

    def _name(self, place: int) -> str:
        return self._reads[place].name if place < len(self._reads) else _STATE

    async def _look(self, world: World) -> list[str | None]:
        shown = [await self._text(world, call) for call in self._reads]
        told = [None if self._is_unable(place, text) else text for place, text in enumerate(shown)]
        return told + await self._states(world)

    def _is_unable(self, place: int, text: str | None) -> bool:
        """Whether a read was refused that was answered before, for reasons of its own as far as it tells: too many
        calls, say. An error that names what was written tells of it."""
        known = self._known(place)
        answered = bool(known) and self._refused.isdisjoint(known)
        return answered and text in self._refused and not (_words(text or "") & self._traces)

    async def _states(self, world: World) -> list[str | None]:
        """The state, where the world has one."""
        if not self._plan.world.has_state:
            return []
        state = await self._answer(_STATE, world.state)
        return [None if state is None else _TIME.sub("", json.dumps(state, sort_keys=True, default=str))]

    async def _text(self, world: World, call: ToolCall, *, writes: bool = False) -> str | None:
        """What a call returned; None where it did not, and for a write that was refused."""
        result = await self._answer(call.name, partial(world.call, call.name, call.arguments, timeout_s=_CALL_S))
        if result is None or (writes and result.is_error):
            return None
        text = result.text if result.structured is None else f"{result.text} {json.dumps(result.structured)}"
        text = _TIME.sub("", text)
        if result.is_error:
            self._refused.add(text)
        return text

    async def _answer(self, name: str, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        """What `ask` returns; None where it takes too long or fails, and from then on."""
        if name in self._silent:
            return None
        if self._left_s < 0:
            self._problem = f"its calls took longer than {_SECONDS:g} s"
            return None
        began = anyio.current_time()
        try:
            with anyio.move_on_after(_CALL_S + 1):
                return await ask()
            self._problem = f"{name} did not answer within {_CALL_S:g} s"
        except ToolFailure as error:
            self._problem = str(error)
        finally:
            self._left_s -= anyio.current_time() - began
        self._silent.add(name)
        return None

    def _known(self, place: int) -> list[str]:
        return [text for look in self._before if (text := look[place]) is not None]

    def _shows(self, place: int, now: str | None) -> bool:
        """Whether words of the write have come or gone since, in what fresh worlds agree on."""
        known = [_words(text) for text in self._known(place)]
        if now is None or not known:
            return False
        said = _words(now)
        come, gone = said.difference(*known), known[0].intersection(*known) - said
        return bool((come | gone) & self._traces)

    def _differs(self, place: int, now: str) -> bool:
        """Whether a read shows the write, or is another one although it was always the same."""
        known = self._known(place)
        return self._shows(place, now) or (len(known) > 1 and all(one == known[0] != now for one in known))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text))


def _traces(call: ToolCall) -> set[str]:
    """The words by which a write is recognised: those of its arguments. What it returned may be the time that it took,
    or a number that counts calls, and another world shows such a one too."""
    given = " ".join(str(value) for _, value in leaves(call.arguments))
    return {word for word in _words(given) if len(word) >= _SHORTEST}
