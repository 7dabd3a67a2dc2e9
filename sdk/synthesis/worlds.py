"""Fresh worlds of a source that can be reset, played through once each, and the rows of their state."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcp_bridge import Toolset
from mcp_bridge.errors import BridgeError, CallTimeout, ServerDied, SourceError, ToolFailure
from mcp_bridge.records import ToolResult
from mcp_bridge.safe_text import and_more
from mcp_bridge.world import Setup, World
from sandboxes import diff

from ..errors import ConfigError
from ..progress import Progress, Silent
from .words import noun_of

SEEDS = 24
"""How many worlds are walked where nobody names any: the seeds 1 to this."""
_FIX = (
    "give a sandbox or a twin in its place: sandboxes.objects.ObjectTwin for Python objects and modules, "
    "sandboxes.api.ApiTwin for an OpenAPI document, or an MCP server that keeps a world for each rollout "
    '(docs/servers.md) or whose entry in the mcp.json has "toolbake": {"world": {"folder": ..., "state": ...}} '
    "(docs/tools.md)"
)

MISSING_STATE = (
    "its worlds lack only their state: give mcp_bridge.worlds the argument state=, a function that returns the whole "
    "state of a backend, or add the control tool world_state (docs/servers.md#worlds-in-your-own-server)"
)
"""What to do about a server that keeps a world for each rollout and does not tell what is in it."""

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and the arguments."""


@dataclass(frozen=True)
class Played:
    """Calls in a world of their own: what each returned, and what they changed."""

    results: list[ToolResult]
    changes: list[dict[str, Any]]


_MOST_FAILURES = 3
"""In a row; then no more time is lost on a tool."""
_SHORTER = 15
"""By so much, where a call was not answered in time: the next ones only tell whether that was chance."""
_SLOWER = 3
"""Times as long as its longest answer a tool may take all the same."""


class BrokenTool(ToolFailure):
    """A call of a tool broke: it did not answer in time, took its server with it, or raised what no tool should."""

    def __init__(self, tool: str, failure: ToolFailure) -> None:
        super().__init__(str(failure), delivery=failure.delivery, world_lost=failure.world_lost)
        self.tool = tool
        self.kind = type(failure).__name__


class Worlds:
    """The worlds that tasks are made in. Example: `await worlds.play({"seed": 1}, [("get_order", {...})])`"""

    def __init__(self, source: Toolset, setups: Sequence[Setup], progress: Progress | None = None) -> None:
        self.source = source
        self.setups = list(setups)
        self._progress = progress or Silent()
        self._numbers = itertools.count()
        self._failed: dict[str, list[tuple[Setup, Call, BrokenTool]]] = {}
        """Tool -> its latest calls, where all of them cost time or a server."""
        self._longest_s: dict[str, float] = {}
        """Tool -> the time of its slowest answer."""
        self._hung_s: dict[str, float] = {}
        """Tool -> how long the first of its latest calls was waited for in vain."""
        self._told: set[str] = set()
        self.first_state: Mapping[str, Any] = {}
        """Of a fresh world with the first setup."""

    @asynccontextmanager
    async def open(self, setup: Setup) -> AsyncIterator[World]:
        async with self.source.open_world(f"synthesis/{next(self._numbers)}", setup or None) as world:
            yield world

    async def call(self, world: World, setup: Setup, call: Call) -> ToolResult:
        """One call in a world that is open. Raises `BrokenTool`; for a tool that broke too often, without a call."""
        tool = call[0]
        self._require_unbroken(tool)
        return await self._call(world, setup, call)

    def _require_unbroken(self, tool: str) -> None:
        if tool in self.suspects:
            raise self._failed[tool][-1][2]

    async def _call(self, world: World, setup: Setup, call: Call) -> ToolResult:
        tool, arguments = call
        began, limit_s = anyio.current_time(), None
        if tool in self._hung_s:
            limit_s = max(self._hung_s[tool] / _SHORTER, _SLOWER * self._longest_s.get(tool, 0.0))
            limit_s = min(limit_s, self._hung_s[tool])
        try:
            result = await world.call(tool, arguments, timeout_s=limit_s)
        except ToolFailure as failure:
            broken = BrokenTool(tool, failure)
            if isinstance(failure, CallTimeout):
                self._hung_s.setdefault(tool, anyio.current_time() - began)
            if isinstance(failure, CallTimeout | ServerDied):  # others take no time, and come of what was tried
                self._failed.setdefault(tool, []).append((setup, call, broken))
                if tool not in self._told:
                    self._told.add(tool)
                    self._progress.say(f"a call of {tool} broke: {failure}")
            raise broken from failure
        self._failed.pop(tool, None)
        self._hung_s.pop(tool, None)
        self._longest_s[tool] = max(self._longest_s.get(tool, 0.0), anyio.current_time() - began)
        return result

    @property
    def suspects(self) -> list[str]:
        """Tools whose latest calls were not answered in time or ended the server, a few in a row."""
        return [tool for tool, failed in self._failed.items() if len(failed) >= _MOST_FAILURES]

    def why_broken(self, tool: str) -> str:
        """What is known of a suspect, in words."""
        return f"{_MOST_FAILURES} calls in a row broke: {self._failed[tool][0][2]}"

    async def breaks_alone(self, tool: str) -> bool:
        """Whether the latest call of a suspect breaks again while no other call is under way: another tool may have
        taken down the server that they share. One that does not is no suspect any more."""
        setup, call, _ = self._failed[tool][-1]
        try:
            async with self.open(setup) as world:
                await self._call(world, setup, call)
        except ToolFailure as failure:  # a world that does not open says nothing of the tool
            return isinstance(failure, BrokenTool)
        return False

    async def play(self, setup: Setup, calls: Sequence[Call]) -> Played:
        for tool, _ in calls:
            self._require_unbroken(tool)
        async with self.open(setup) as world:
            before = await told(world)
            results = [await self.call(world, setup, call) for call in calls]
            return Played(results, [dict(change) for change in diff(before, await told(world))])


async def told(world: World) -> dict[str, Any]:
    """The state. Raises `ConfigError` where the world cannot tell it."""
    state = await world.state()
    if state is None:
        raise ConfigError(f"the tools' worlds cannot tell their state, so that no end of a task can be checked; {_FIX}")
    return state


async def open_worlds(source: Toolset, setups: Sequence[Setup] | None, progress: Progress | None = None) -> Worlds:
    """The worlds of a connected source. Raises `ConfigError` where it has none that can be reset and compared."""
    simulated = {tool.name for tool in source.simulated_tools}
    live = [tool.name for tool in source.tools if tool.name not in simulated]
    if live:
        raise ConfigError(
            f"tasks are made by trying tools, and {and_more(live, 8)} are not simulated: calls would be real; {_FIX}"
        )
    if not source.has_state:
        fix = MISSING_STATE if any(one.kind == "control" for one in source.worlds) else _FIX
        raise ConfigError(f"the tools' worlds cannot tell their state, so that no end of a task can be checked; {fix}")
    if setups is not None and not setups:
        raise ConfigError('setups is empty; give at least one, such as [{"seed": 1}], or leave it out')
    if setups is None and not source.can_setup:
        (progress or Silent()).say("the tools take no setup: all tasks are made in one world")
        setups = [{}]
    worlds = Worlds(
        source, setups if setups is not None else [{"seed": seed} for seed in range(1, SEEDS + 1)], progress
    )
    states = []
    for _ in range(2):
        try:
            async with worlds.open(worlds.setups[0]) as world:
                states.append(await told(world))
        except BridgeError as error:
            fix = ". Give `setups` that fit the tools" if isinstance(error, SourceError) else ""
            raise ConfigError(f"a world with the setup {worlds.setups[0]!r} cannot be used: {error}{fix}") from error
    if states[0] != states[1]:
        places = ", ".join(sorted(name for name in states[0] if states[0][name] != states[1].get(name)))
        raise ConfigError(
            f"two fresh worlds with the setup {worlds.setups[0]!r} differ in {places or 'their parts'}: they cannot be "
            "reset, so that no solution can be played again. Take chance and time from the setup's seed"
        )
    worlds.first_state = states[0]
    return worlds


Scalar = str | int | float
_LONGEST = 80
"""Characters of a value that a request may name."""


@dataclass(frozen=True)
class Cell:
    """One value of the state. `is_key`: it names its row."""

    table: str
    key: str
    column: str
    value: Scalar
    is_key: bool = False

    @property
    def noun(self) -> str:
        return noun_of(self.table)


@dataclass
class Facts:
    """The rows of a state. Parts whose names begin with `@` are a sandbox's own and are left out."""

    rows: dict[tuple[str, str], dict[str, Scalar]] = field(default_factory=dict)
    columns: dict[tuple[str, str], list[Cell]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Facts:
        """Of the JSON that a world tells. A mapping of mappings is a table; of plain values under `value`, one with a
        single column; mappings inside rows are tables of their own."""
        found = cls()
        for name, node in state.items():
            if isinstance(node, Mapping):
                found._table(str(name), node)
        return found

    def _table(self, name: str, node: Mapping[Any, Any]) -> None:
        if name.startswith("@"):
            return
        for key, row in node.items():
            if not isinstance(row, Mapping):
                continue
            inner = name if key == "value" else str(key)
            plain = {str(column): value for column, value in row.items() if _is_scalar(value)}
            if key == "value" and plain and len(plain) == len(row):
                for column, value in plain.items():
                    self._row(name, column, {"value": value})
            elif plain:
                self._row(name, str(key), {c: v for c, v in plain.items() if not c.startswith("@")})
            if not plain:
                self._table(inner, row)
            else:
                for column, value in row.items():
                    if isinstance(value, Mapping) and not str(column).startswith("@"):
                        self._table(str(column), {key: value})

    def _row(self, table: str, key: str, columns: dict[str, Any]) -> None:
        named = next((column for column, value in columns.items() if str(value) == key), None)
        cells = {**columns} if named is not None else {"id": key, **columns}
        self.rows[table, key] = cells
        for column, value in cells.items():
            cell = Cell(table, key, column, value, is_key=column == (named or "id"))
            self.columns.setdefault((table, column), []).append(cell)

    def named_by(self, value: Scalar) -> list[Cell]:
        """The keys with this value."""
        every = (cell for cells in self.columns.values() for cell in cells)
        return [cell for cell in every if cell.is_key and str(cell.value) == str(value)]

    def is_unique(self, cell: Cell) -> bool:
        """Whether no other row of its table has the same value there."""
        values = [str(other.value).casefold() for other in self.columns[cell.table, cell.column]]
        return values.count(str(cell.value).casefold()) == 1


def content_of(result: ToolResult) -> Any:
    """What a result holds. MCP has no structured content that is a list: such a one comes as its text."""
    if result.structured is not None:
        return result.structured
    if result.text[:1] in ("[", "{"):
        try:
            return json.loads(result.text)
        except ValueError:
            return result.text
    return result.text


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip()) and len(value) <= _LONGEST and "\n" not in value
    return isinstance(value, int | float) and not isinstance(value, bool)


def leaves(
    value: Any, path: tuple[str | int, ...] = (), *, is_leaf: Callable[[Any], bool] = _is_scalar
) -> Iterator[tuple[tuple[str | int, ...], Scalar]]:
    """The plain values of a result, each with its path. Yes, no and nothing are no values that one asks for."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(inner, (*path, str(name)), is_leaf=is_leaf)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place), is_leaf=is_leaf)
    elif is_leaf(value):
        yield path, value


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    """What stands at a path of `leaves`; None where there is nothing."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value
