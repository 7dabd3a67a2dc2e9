"""A source of worlds whose tools fail as they are told to."""

from __future__ import annotations

import contextlib
import fnmatch
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import anyio

from mcp_bridge.errors import CallTimeout, ServerDied, SourceError
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.toolsets.results import error
from mcp_bridge.world import Setup, World, WorldSource

from ..recorded.lines import canonical
from ..wrapping import WrappedSource, WrappedWorld
from .kinds import (
    ErrorAnswer,
    Fault,
    InjectedInstruction,
    Latency,
    Outage,
    PartialAnswer,
    RateLimit,
    RenamedFields,
    StaleRead,
    Timeout,
)
from .log import FaultLog, InjectedFault
from .spoiling import part_of, renamed, with_instruction

SameFor = Literal["world", "setup"]

_BEFORE = (RateLimit, ErrorAnswer, StaleRead, Timeout, Outage)
"""These answer in place of the tool. The others spoil its answer."""


@dataclass(frozen=True)
class _Given:
    """A fault as it was given: under which name, and in which place."""

    fault: Fault
    pattern: str
    number: int


class Faulty(WrappedSource):
    """The tools of `source` with faults.

    `faults`: name of a tool, or a pattern with `*` and `?`, -> a fault or several. A tool has those of every entry that
    fits it, in their order; the first that answers in place of the tool is the only one. `seed` and the world's id say
    which calls are hit: the same calls in a world of the same id are hit in the same way, whatever happens in other
    worlds. `same_for="setup"`: worlds of one setup are hit alike whatever their ids, so that the rollouts of a group
    have the same luck. A fork of a world goes on with the luck of that world, and with what it has counted.

    `report()` counts what was put in, `injected` lists it. Raises `SourceError` for a name that no tool has, and for
    `StaleRead` on a named tool that does not say that it only reads.
    """

    def __init__(
        self,
        source: WorldSource,
        faults: Mapping[str, Fault | Sequence[Fault]],
        *,
        seed: int = 0,
        same_for: SameFor = "world",
    ) -> None:
        super().__init__(source)
        if same_for not in ("world", "setup"):
            raise SourceError(f"same_for is {same_for!r}; choose 'world' or 'setup'")
        self._seed = seed
        self._same_for = same_for
        self._given = _given(faults)
        self._log = FaultLog()
        plans = self._plan(source.tools).values()
        for one in self._given:
            if not any(one in plan for plan in plans):
                raise SourceError(_fits_nothing(one, source.tools))

    @property
    def injected(self) -> list[InjectedFault]:
        """The latest faults of all worlds, at most 10 000."""
        return self._log.kept

    def report(self) -> dict[str, Any]:
        """Calls and faults by tool; `unscored` counts the faults that were raised as failures."""
        return self._log.as_json()

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[FaultyWorld]:
        """A world of the source, with its own faults."""
        luck = world_id if self._same_for == "world" else canonical(dict(setup or {}))
        async with self.source.open_world(world_id, setup) as world:
            # A server's tools may have changed since.
            yield FaultyWorld(world, world_id, f"{self._seed}/{luck}", self._plan(world.tools), self._log)

    def _plan(self, tools: Sequence[Tool]) -> dict[str, list[_Given]]:
        """The faults of each tool."""
        return {tool.name: [one for one in self._given if _fits(one, tool)] for tool in tools}


class FaultyWorld(WrappedWorld):
    """One world with faults. `faults` holds those that were put in so far."""

    def __init__(
        self, world: World, world_id: str, luck: str, plan: Mapping[str, Sequence[_Given]], log: FaultLog
    ) -> None:
        super().__init__(world, world_id)
        self._luck = luck
        self._plan = plan
        self._log = log
        self._made: Counter[tuple[str, str]] = Counter()
        self._limited: Counter[str] = Counter()
        self._reading = {tool.name for tool in world.tools if tool.annotations.read_only}
        self._changes = 0
        self._earlier: dict[tuple[str, str], tuple[int, ToolResult]] = {}
        self.faults: list[InjectedFault] = []

    def copied(self) -> Self:
        """See `WrappedWorld.copied`. A fork keeps its luck: what comes next is hit as it would have been here."""
        twin = super().copied()
        twin._made, twin._limited = self._made.copy(), self._limited.copy()
        twin._earlier, twin.faults = dict(self._earlier), list(self.faults)
        return twin

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """Call a tool. Raises `CallTimeout` and `ServerDied` where a fault says so, beside what the tool raises."""
        plan = self._plan.get(name, ()) if isinstance(name, str) and _is_json(arguments) else ()
        if name not in self._reading:
            self._changes += 1
        if not plan:
            return await self.world.call(name, arguments, call_id=call_id, timeout_s=timeout_s)
        self._log.called(name)
        key = (name, canonical(dict(arguments)))
        number, self._made[key] = self._made[key], self._made[key] + 1
        call = _Call(self, name, dict(arguments), call_id, timeout_s, f"{self._luck}/{name}/{key[1]}/{number}")
        for given in plan:
            if isinstance(given.fault, _BEFORE) and (answer := await self._instead(given, call, key)) is not None:
                return answer
        result = await call.really()
        if not result.is_error:
            self._earlier[key] = (self._changes, result)
        for given in plan:
            if not isinstance(given.fault, _BEFORE):
                result = await _spoiled(given, call, result, self._luck)
        return result

    async def _instead(self, given: _Given, call: _Call, key: tuple[str, str]) -> ToolResult | None:
        """What comes back in place of the tool's answer; None where this fault does not hit the call."""
        fault, chance = given.fault, call.chance(given)
        if isinstance(fault, RateLimit):
            return call.noted(given, fault.text, fault.text) if self._is_over(given, fault) else None
        if isinstance(fault, StaleRead):
            changes, old = self._earlier.get(key, (self._changes, None))
            if old is None or changes == self._changes or chance.random() >= fault.p:
                return None
            return call.note(given, "what the same call returned before", old)
        if chance.random() >= fault.p:
            return None
        if isinstance(fault, ErrorAnswer):
            text = chance.choice(list(fault.texts))
            return call.noted(given, text, text)
        assert isinstance(fault, Timeout | Outage)
        return await _lost(given, fault, call, chance)

    def _is_over(self, given: _Given, fault: RateLimit) -> bool:
        """Whether the limit refuses this call; counts it."""
        if random.Random(f"{self._luck}/{given.number}").random() >= fault.p:
            return False
        turn = self._limited[str(given.number)] % (fault.calls + fault.refused)
        self._limited[str(given.number)] += 1
        return turn >= fault.calls


class _Call:
    """One call on its way through the faults."""

    def __init__(
        self,
        world: FaultyWorld,
        tool: str,
        arguments: dict[str, Any],
        call_id: str | None,
        timeout_s: float | None,
        luck: str,
    ) -> None:
        self._world = world
        self._tool = tool
        self._arguments = arguments
        self._call_id = call_id
        self.timeout_s = timeout_s
        self._luck = luck

    def chance(self, given: _Given) -> random.Random:
        """The fault's own dice for this call: others that are drawn before or beside it change nothing."""
        return random.Random(f"{self._luck}/{given.number}")

    async def really(self) -> ToolResult:
        return await self._world.world.call(
            self._tool, self._arguments, call_id=self._call_id, timeout_s=self.timeout_s
        )

    def note(self, given: _Given, detail: str, result: ToolResult) -> ToolResult:
        """The result, which says of itself that a fault is in it."""
        fault = self.log(given, detail, scored=True)
        return result.model_copy(update={"notes": (*result.notes, str(fault))})

    def noted(self, given: _Given, detail: str, text: str) -> ToolResult:
        return self.note(given, detail, error(text, "tool_error"))

    def log(self, given: _Given, detail: str, *, scored: bool) -> InjectedFault:
        fault = InjectedFault(
            world_id=self._world.world_id,
            tool=self._tool,
            arguments=self._arguments,
            fault=given.fault.name,
            detail=detail,
            scored=scored,
            call_id=self._call_id,
        )
        self._world.faults.append(fault)
        self._world._log.add(fault)
        return fault


async def _lost(given: _Given, fault: Timeout | Outage, call: _Call, chance: random.Random) -> ToolResult:
    """The answer to a call whose answer is lost. Raises `CallTimeout` or `ServerDied` unless it is told."""
    took_effect = chance.random() < fault.took_effect
    if took_effect:
        await call.really()
    effect = "after it took effect" if took_effect else "before it took effect"
    is_timeout = isinstance(fault, Timeout)
    if fault.answered:
        told = "The request timed out" if is_timeout else "The connection to the server was lost"
        return call.noted(given, f"{told.lower()}, {effect}", f"{told}; whether it took effect is unknown.")
    noted = call.log(given, f"the answer was lost, {effect}", scored=False)
    raise (CallTimeout if is_timeout else ServerDied)(f"put in on purpose: {noted}")


async def _spoiled(given: _Given, call: _Call, result: ToolResult, luck: str) -> ToolResult:
    """The answer with this fault in it, or as it is where it is not hit."""
    fault, chance = given.fault, call.chance(given)
    of_world = isinstance(fault, RenamedFields)
    draw = random.Random(f"{luck}/{given.number}") if of_world else chance
    if draw.random() >= fault.p:
        return result
    if isinstance(fault, Latency):
        return await _late(given, fault, call, result, chance)
    if result.is_error:
        return result
    found: tuple[ToolResult, str] | None = None
    if isinstance(fault, PartialAnswer):
        found = part_of(result, fault.keep)
    elif isinstance(fault, RenamedFields):
        found = renamed(result, fault.fields)
    elif isinstance(fault, InjectedInstruction):
        text = chance.choice(list(fault.texts))
        found = with_instruction(result, text), text
    return call.note(given, found[1], found[0]) if found is not None else result


async def _late(given: _Given, fault: Latency, call: _Call, result: ToolResult, chance: random.Random) -> ToolResult:
    seconds = chance.uniform(*fault.bounds)
    took_s = result.duration_s + seconds
    if not fault.real and call.timeout_s is not None and took_s > call.timeout_s:
        noted = call.log(given, f"{took_s:.3f} s, above the limit of {call.timeout_s:g} s", scored=False)
        raise CallTimeout(f"put in on purpose: {noted}")
    late = call.note(given, f"{seconds:.3f} s later", result.model_copy(update={"duration_s": took_s}))
    if fault.real:
        await anyio.sleep(seconds)
    return late


def _is_json(arguments: Any) -> bool:
    """Whether these may be the arguments of a call; of what else is given the tool itself says what is wrong."""
    try:
        return isinstance(arguments, Mapping) and bool(canonical(dict(arguments)))
    except (TypeError, ValueError, RecursionError):
        return False


def _given(faults: Mapping[str, Fault | Sequence[Fault]]) -> list[_Given]:
    found: list[_Given] = []
    for pattern, one in faults.items():
        several = [one] if isinstance(one, Fault) else list(one)
        for fault in several:
            if not isinstance(fault, Fault) or type(fault) is Fault:
                raise SourceError(f"{pattern!r} is given {fault!r}, which is no fault; see sandboxes.faults.kinds")
            found.append(_Given(fault, pattern, len(found)))
    return found


def _fits(given: _Given, tool: Tool) -> bool:
    if not fnmatch.fnmatchcase(tool.name, given.pattern):
        return False
    return bool(tool.annotations.read_only) or not isinstance(given.fault, StaleRead)


def _fits_nothing(given: _Given, tools: Sequence[Tool]) -> str:
    names = [tool.name for tool in tools]
    if fnmatch.filter(names, given.pattern):
        reading = [tool.name for tool in tools if tool.annotations.read_only]
        told = ", ".join(reading) or "none does"
        return f"StaleRead is for tools that say that they only read ({told}), not for {given.pattern!r}"
    return f"faults are given to {given.pattern!r}, which is no tool; the tools are {', '.join(names)}"
