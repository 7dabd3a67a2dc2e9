"""Fresh worlds of a source that can be reset, the rows of their state, and random walks through them.

A walk is calls whose arguments come from the state (told) or from earlier results (found). Lessons say what feeds each
tool's arguments, learned from their names or by trying values of the state.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import anyio

from mcp_bridge import Toolset
from mcp_bridge.errors import BridgeError, CallTimeout, ServerDied, SourceError, ToolFailure
from mcp_bridge.records import MADE_UP, Tool, ToolResult
from mcp_bridge.safe_text import and_more, json_values
from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors
from mcp_bridge.toolsets.schema_parts import followed
from mcp_bridge.world import Setup, World
from sandboxes import diff

from ..errors import ConfigError
from ..progress import Progress, Silent
from ..records import Message, ToolCall
from ..rollouts import derive_seed
from .words import (
    WRAPPERS,
    last_name,
    likeness,
    noun_of,
    shares_noun,
    verb_and_object,
    without_id,
    without_identifying,
    words,
)

SEEDS = 24
"""How many worlds are walked where nobody names any: the seeds 1 to this."""
_FIX = (
    "give a sandbox or a twin in their place: sandboxes.objects.ObjectTwin for Python objects and modules, "
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
        taken down the server that they share. One that does not is no longer a suspect."""
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
            f"{and_more(live, 8)} {'is' if len(live) == 1 else 'are'} not simulated: calls would be real; {_FIX}"
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
        single column; of a list of mappings under `value`, which an object keeps, a table; mappings inside rows are
        tables of their own."""
        found = cls()
        for name, node in state.items():
            if isinstance(node, Mapping):
                found._table(str(name), node)
        return found

    def _table(self, name: str, node: Mapping[Any, Any]) -> None:
        if name.startswith("@"):
            return
        own = _own_key({str(key): row for key, row in node.items() if isinstance(row, Mapping)})
        for key, row in node.items():
            if key == "value" and isinstance(row, list) and row and all(isinstance(one, Mapping) for one in row):
                self._listed(name, row)
            if not isinstance(row, Mapping):
                continue
            inner = name if key == "value" else str(key)
            plain = {str(column): value for column, value in row.items() if _is_scalar(value)}
            if key == "value" and plain and len(plain) == len(row):
                for column, value in plain.items():
                    self._row(name, column, {"value": value})
            elif plain:
                self._row(name, str(key), {c: v for c, v in plain.items() if not c.startswith("@")}, own)
            if not plain:
                self._table(inner, row)
            else:
                for column, value in row.items():
                    if isinstance(value, Mapping) and not str(column).startswith("@"):
                        self._table(str(column), {key: value})

    def _listed(self, name: str, rows: Sequence[Mapping[Any, Any]]) -> None:
        """A list has no keys: its rows are named by the column that tells them apart by its kind, if one does."""
        naming = _naming(name, rows)
        for place, row in enumerate(rows):
            plain = {
                str(c): value
                for c, value in row.items()
                if _is_scalar(value) and words(str(c)) and not str(c).startswith("@")
            }
            self._cells(name, str(place if naming is None else plain[naming]), plain, naming)

    def _row(self, table: str, key: str, columns: dict[str, Any], own: str | None = None) -> None:
        """`own`: the column that has the last part of a key in all rows."""
        named = next((column for column, value in columns.items() if str(value) == key), own)
        self._cells(table, key, columns if named is not None else {"id": key, **columns}, named or "id")

    def _cells(self, table: str, key: str, cells: dict[str, Any], named: str | None) -> None:
        self.rows[table, key] = cells
        for column, value in cells.items():
            cell = Cell(table, key, column, value, is_key=column == named)
            self.columns.setdefault((table, column), []).append(cell)

    def named_by(self, value: Scalar) -> list[Cell]:
        """The keys with this value."""
        every = (cell for cells in self.columns.values() for cell in cells)
        return [cell for cell in every if cell.is_key and str(cell.value) == str(value)]

    def is_unique(self, cell: Cell) -> bool:
        """Whether no other row of its table has the same value there."""
        values = [str(other.value).casefold() for other in self.columns[cell.table, cell.column]]
        return values.count(str(cell.value).casefold()) == 1


def _own_key(rows: Mapping[str, Mapping[Any, Any]]) -> str | None:
    """Of a twin's nested rows, whose keys have those of the rows above before their own, the column with their own."""
    first = next(iter(rows.values()), {})
    return next(
        (
            str(column)
            for column in first
            if all("/" in key and str(row.get(column)) == key.rpartition("/")[2] for key, row in rows.items())
        ),
        None,
    )


_CODE = re.compile(r"\S*[\d@]\S*")


def _naming(table: str, rows: Sequence[Mapping[Any, Any]]) -> str | None:
    """The column by which the rows of a list are named: an id of their own, a name or a number, or else one whose texts
    look like codes. In any other, such as their days, all values may differ by chance."""
    apart = [
        str(column)
        for column in rows[0]
        if words(str(column))
        and not str(column).startswith("@")
        and all(_is_scalar(row.get(column)) for row in rows)
        and len({str(row[column]).casefold() for row in rows}) == len(rows)
    ]
    ofs = {column: without_identifying(column) for column in apart}
    identifying = [column for column in apart if ofs[column] != " ".join(words(column))]
    own = [column for column in identifying if not ofs[column] or shares_noun(ofs[column], noun_of(table))]
    if own:
        return min(own, key=lambda column: without_id(column) == " ".join(words(column)))  # an id before a name
    others = [column for column in apart if column not in identifying]  # the `member_id` of a loan names the member
    return next((column for column in others if all(_is_code(row[column]) for row in rows)), None)


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and _CODE.fullmatch(value) is not None and _DAY.match(value) is None


def content_of(result: ToolResult) -> Any:
    """What a result holds, as far as the policy reads it: of one that was cut, its text. MCP has no structured content
    that is a list: such a one comes as its text, or as the texts of its items, one after the other."""
    if result.truncated_chars:
        return result.text
    if result.structured is not None:
        return result.structured
    found = json_values(result.text) if result.text[:1] in ("[", "{") else None
    if not found:
        return result.text
    return found[0] if len(found) == 1 else found


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip()) and len(value) <= _LONGEST and "\n" not in value
    return isinstance(value, int | float) and not isinstance(value, bool)


def leaves(
    value: Any, path: tuple[str | int, ...] = (), *, is_leaf: Callable[[Any], bool] = _is_scalar
) -> Iterator[tuple[tuple[str | int, ...], Scalar]]:
    """The plain values of a result, each with its path. Yes, no and nothing are not values that one asks for."""
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


# ---------------------------------------------------------------------------------------------------------------------

LIKE = 0.85
"""From here on, a name says what an argument is."""
_TRIES = 4
"""Of each column with a tool whose argument's name says nothing."""
_READ_TRIES = 4
_ANYTHING = (7, "other", [7], ["other"])
"""For arguments that nothing in the state fits: a note that is left out may change nothing, and one that is given
does."""
_MOST_COLUMNS = 40


@dataclass(frozen=True)
class Feed:
    """A column whose values fit an argument. `likeness`: of their names, 0 to 1."""

    table: str
    column: str
    likeness: float


@dataclass
class Lessons:
    """What is known of the tools before tasks are made."""

    tools: dict[str, Tool] = field(default_factory=dict)
    """Those that can be used."""
    feeds: dict[tuple[str, str], list[Feed]] = field(default_factory=dict)
    """Tool and argument -> columns."""
    reads: set[str] = field(default_factory=set)
    """Tools that changed nothing, or say so."""
    new_keys: set[tuple[str, str]] = field(default_factory=set)
    """Tools and arguments that take a key that no row has yet."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tools that no task uses, and why."""

    def leave_out(self, tool: str, reason: str) -> None:
        """No further task uses the tool."""
        del self.tools[tool]
        self.reads.discard(tool)
        self.left_out[tool] = reason

    def values(self, facts: Facts, tool: str, argument: str) -> dict[str, list[tuple[Cell, Feed]]]:
        """What may be given for an argument in a world: text of the value -> its cells."""
        found: dict[str, list[tuple[Cell, Feed]]] = {}
        for feed in self.feeds.get((tool, argument), ()):
            for cell in facts.columns.get((feed.table, feed.column), ()):
                found.setdefault(str(cell.value), []).append((cell, feed))
        return found


_IN_PATH, _IN_BODY = "_in_path", "_in_body"


def required(tool: Tool) -> list[str]:
    asked = [str(name) for name in tool.input_schema.get("required", [])]
    joined = {name: key for key, names in _keys_given_twice(tool).items() for name in names}
    return list(dict.fromkeys(joined.get(name, name) for name in asked))


def properties(tool: Tool) -> dict[str, Mapping[str, Any]]:
    """The arguments' schemas, with what they refer to. One that may also be null, as FastAPI writes every optional
    field, is the other one. A key that is given twice is one argument: `given` makes two of it."""
    known: dict[str, Mapping[str, Any]] = {
        name: followed(_without_null(followed(schema, tool.input_schema)), tool.input_schema)
        for name, schema in tool.input_schema.get("properties", {}).items()
        if isinstance(schema, dict)
    }
    for key, (in_path, in_body) in _keys_given_twice(tool).items():
        known = {key if name == in_path else name: schema for name, schema in known.items() if name != in_body}
    return known


def deed_of(tool: Tool) -> tuple[str, str]:
    """What a tool does and with what, by its name; see `verb_and_object`."""
    return verb_and_object(tool.name, properties(tool))


def given(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of `properties`, as the tool takes them."""
    twice = _keys_given_twice(tool)
    return {name: value for key, value in arguments.items() for name in twice.get(key, (key,))}


def _keys_given_twice(tool: Tool) -> dict[str, tuple[str, str]]:
    """Keys that stand in the path and, for the same row, in the body, as in most PUTs: the key's name -> the names of
    both arguments, which `mcp_bridge.openapi` makes of it."""
    known = tool.input_schema.get("properties", {})
    keys = [name.removesuffix(_IN_PATH) for name in known if name.endswith(_IN_PATH)]
    both = {key: (key + _IN_PATH, key + _IN_BODY) for key in keys if key + _IN_BODY in known and key not in known}
    return {key: names for key, names in both.items() if _kind(known[names[0]]) == _kind(known[names[1]])}


def _kind(schema: Any) -> Any:
    return _without_null(schema).get("type") if isinstance(schema, dict) else None


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    either = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(either, list):
        return schema
    others = [one for one in either if isinstance(one, dict) and one.get("type") != "null"]
    return others[0] if len(others) == 1 < len(either) else schema


def fitted(value: Scalar, schema: Mapping[str, Any]) -> Scalar | None:
    """The value as the schema has it, a number out of a key's text where one is wanted; None where it does not fit."""
    if "$ref" in schema:
        return None
    kinds = schema.get("type")
    numeric = kinds in ("integer", "number") or (isinstance(kinds, list) and "string" not in kinds)
    if numeric and isinstance(value, str):
        if not value.isdecimal() or value != str(int(value)):
            return None
        value = int(value)
    return value if _fits(value, schema) else None


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    try:
        return not schema_errors(compiled_schema(dict(schema), is_known_valid=True), value, most=1)
    except SchemaTimeout:
        return False


def is_number(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("integer", "number")


async def learn(worlds: Worlds, seed: int) -> Lessons:
    """Try the tools in the first world. Raises `ConfigError` where none can be used."""
    lessons = Lessons()
    async with worlds.open(worlds.setups[0]) as world:
        facts, shown = Facts.of(await told(world)), list(world.tools)
    # Those that create come last: what others take for a name tells which keys theirs are like.
    for tool in sorted(shown, key=lambda one: deed_of(one)[0] in _CREATING):
        chance = random.Random(derive_seed(seed, "learn", tool.name))
        reason = _unusable(tool) or await _learn_arguments(worlds, facts, tool, lessons, chance)
        if tool.name in worlds.suspects:
            reason = worlds.why_broken(tool.name)
        if reason:
            lessons.left_out[tool.name] = reason
            continue
        lessons.tools[tool.name] = tool
        if tool.annotations.read_only or await _only_reads(worlds, facts, tool, lessons, chance):
            lessons.reads.add(tool.name)
        if tool.name in worlds.suspects:  # no other call is under way: it broke by itself
            lessons.leave_out(tool.name, worlds.why_broken(tool.name))
    if not lessons.tools:
        raise ConfigError(
            "no tool can be used to make tasks: "
            + "; ".join(f"{name}: {reason}" for name, reason in list(lessons.left_out.items())[:8])
        )
    return lessons


def _unusable(tool: Tool) -> str:
    if why := tool.meta.get(MADE_UP):
        return f"its results are made up: {why}"
    known = properties(tool)
    for name in required(tool):
        kind = known.get(name, {}).get("type")
        if "enum" not in known.get(name, {}) and kind not in ("string", "integer", "number", "boolean"):
            return f"the argument {name!r} is not a plain value ({kind or 'no type'})"
    return ""


async def _learn_arguments(worlds: Worlds, facts: Facts, tool: Tool, lessons: Lessons, chance: random.Random) -> str:
    """Fill `lessons.feeds` of a tool; the reason why it cannot be used, or nothing."""
    unclear = []
    for name, schema in properties(tool).items():
        if "enum" in schema or schema.get("type") not in ("string", "integer", "number"):
            continue
        feeds = [
            Feed(table, column, likeness(name, tool.name, table, column, is_key=cells[0].is_key))
            for (table, column), cells in facts.columns.items()
            if any(fitted(cell.value, schema) is not None for cell in cells)
        ]
        named = [feed for feed in feeds if feed.likeness >= LIKE]
        if is_number(schema):
            # Any number fits any other by its type; only those that name a row are worth trying.
            feeds = [feed for feed in feeds if facts.columns[feed.table, feed.column][0].is_key]
        lessons.feeds[tool.name, name] = named
        if not named and name in required(tool):
            unclear.append((name, feeds[:_MOST_COLUMNS]))
    for name, feeds in unclear:
        found = await _keys_of_what_it_creates(worlds, facts, tool, name, lessons, chance)
        found = found or await _tried(worlds, facts, tool, name, feeds, lessons, chance)
        lessons.feeds[tool.name, name] = found
        if not found and not is_number(properties(tool)[name]):
            return f"nothing in the state fits the argument {name!r}"
    # The `sku` of an order, by its name, is none that a new product may have.
    for name in [one for one in required(tool) if one not in dict(unclear)]:
        known = [facts.columns[feed.table, feed.column][0] for feed in lessons.feeds.get((tool.name, name), ())]
        if known and not any(_creates(tool, cell) for cell in known):
            found = await _keys_of_what_it_creates(worlds, facts, tool, name, lessons, chance)
            lessons.feeds[tool.name, name] = found or lessons.feeds[tool.name, name]
    await _learn_new_keys(worlds, facts, tool, lessons, chance)
    return ""


async def _keys_of_what_it_creates(
    worlds: Worlds, facts: Facts, tool: Tool, name: str, lessons: Lessons, chance: random.Random
) -> list[Feed]:
    """Of an argument whose name tells nothing, the key column of the rows that the tool creates: where another tool
    takes it under this name, or where a key that is there is refused, as taken, and a new one is accepted."""
    schema = properties(tool)[name]
    found = [
        Feed(table, column, 1.0)
        for (table, column), cells in facts.columns.items()
        if cells[0].is_key and _creates(tool, cells[0]) and fitted(cells[0].value, schema) is not None
    ]
    if not found:
        return []
    taken = {
        (one.table, one.column) for (_, argument), feeds in lessons.feeds.items() if argument == name for one in feeds
    }
    for feed in found:
        if (feed.table, feed.column) in taken:
            return [feed]
    others = {one: _any_value(facts, tool, one, lessons, chance) for one in required(tool) if one != name}
    for feed in found if None not in others.values() else ():
        keys = [cell.value for cell in facts.columns[feed.table, feed.column]]
        old, new = (fitted(one, schema) for one in (keys[0], new_key(keys, chance)))
        is_taken = new is not None and not await _succeeds(worlds, tool, {**others, name: old})
        if is_taken and await _succeeds(worlds, tool, {**others, name: new}):
            return [feed]
    return []


async def _learn_new_keys(worlds: Worlds, facts: Facts, tool: Tool, lessons: Lessons, chance: random.Random) -> None:
    """Whether a tool that creates rows by its name takes keys that no row has: it may also add one to something."""
    for name in properties(tool):
        columns = [facts.columns[one.table, one.column] for one in lessons.feeds.get((tool.name, name), ())]
        cells = next((cells for cells in columns if _creates(tool, cells[0])), None)
        if cells is None:
            continue
        value = fitted(new_key([cell.value for cell in cells], chance), properties(tool)[name])
        others = {one: _any_value(facts, tool, one, lessons, chance) for one in required(tool) if one != name}
        untried = value is None or None in others.values()
        if untried or await _succeeds(worlds, tool, {**others, name: value}):
            lessons.new_keys.add((tool.name, name))


async def _tried(
    worlds: Worlds, facts: Facts, tool: Tool, name: str, feeds: list[Feed], lessons: Lessons, chance: random.Random
) -> list[Feed]:
    """The columns whose values are taken for an argument. Where all are, they say nothing, and none is."""
    taken, refused, schemas = [], 0, properties(tool)
    for feed in feeds:
        cells = facts.columns[feed.table, feed.column]
        good = 0
        for cell in chance.sample(cells, min(_TRIES, len(cells))):
            value = fitted(cell.value, schemas[name])
            others: dict[str, Any] = {}
            for other in [one for one in required(tool) if one != name]:
                others[other] = _any_value(facts, tool, other, lessons, chance)
                if others[other] is None and value is not None:
                    # Two that nothing is known of may be of one kind, such as the accounts of a transfer.
                    fits = [fitted(one.value, schemas[other]) for one in cells]
                    fits = [one for one in fits if one is not None and one != value]
                    others[other] = chance.choice(fits) if fits else None
            if value is not None and None not in others.values():
                good += await _succeeds(worlds, tool, {**others, name: value})
        if good:
            taken.append(feed)
        else:
            refused += 1
    return taken if refused else []


def _any_value(facts: Facts, tool: Tool, name: str, lessons: Lessons, chance: random.Random) -> Any:
    schema = properties(tool)[name]
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if schema.get("type") == "boolean":
        return chance.random() < 0.5
    feeds = lessons.feeds.get((tool.name, name))
    if feeds:
        feed = chance.choice(feeds)
        return fitted(chance.choice(facts.columns[feed.table, feed.column]).value, schema)
    return drawn_number(schema, chance) if is_number(schema) else None


def drawn_number(schema: Mapping[str, Any], chance: random.Random) -> int | None:
    """A small whole number that the schema allows."""
    numbers = [number for number in range(1, 13) if _fits(number, schema)]
    return chance.choice(numbers) if numbers else None


async def _succeeds(worlds: Worlds, tool: Tool, arguments: Mapping[str, Any]) -> bool:
    try:
        played = await worlds.play(worlds.setups[0], [(tool.name, given(tool, arguments))])
    except ToolFailure:
        return False
    return not played.results[0].is_error


async def _only_reads(worlds: Worlds, facts: Facts, tool: Tool, lessons: Lessons, chance: random.Random) -> bool:
    """Whether no call of a few changed the world. A tool none of whose calls succeeded is taken for one that acts."""
    if tool.annotations.read_only is False:
        return False
    good = 0
    for turn in range(_READ_TRIES):
        arguments = {name: _any_value(facts, tool, name, lessons, chance) for name in required(tool)}
        if None in arguments.values():
            return False
        if turn % 2:  # `update_ticket(number)` alone changes nothing
            for name, schema in properties(tool).items():
                value = _any_value(facts, tool, name, lessons, chance)
                if value is None and "$ref" not in str(schema):
                    value = next((one for one in _ANYTHING if _fits(one, schema)), None)
                if value is not None:
                    arguments.setdefault(name, value)
        try:
            played = await worlds.play(worlds.setups[0], [(tool.name, given(tool, arguments))])
        except ToolFailure:
            continue
        if played.changes:
            return False
        good += not played.results[0].is_error
    return good > 0


_PROPOSALS = 3
"""Of each tool at one step."""
_CALL_TRIES = 6
"""Of one step, until a call succeeds."""
_FOUND = 0.8
"""How often an argument that an earlier result has is taken from there, and not from the state."""
_OPTIONAL = 0.6
"""How often a tool that acts is given one of its optional arguments."""
_ACTS = 0.5

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Told:
    """An argument that the request says. `cell`: where the state has it; None for a number or a choice drawn."""

    value: Any
    cell: Cell | None = None


@dataclass(frozen=True)
class Found:
    """An argument out of the result of an earlier step."""

    step: int
    path: Path
    value: Any


@dataclass
class Step:
    """One call that succeeded."""

    tool: Tool
    sources: dict[str, Told | Found]
    result: ToolResult

    @property
    def arguments(self) -> dict[str, Any]:
        return given(self.tool, {name: source.value for name, source in self.sources.items()})

    @property
    def call(self) -> Call:
        return self.tool.name, self.arguments

    @property
    def content(self) -> Any:
        """The result as JSON; its text where there is none."""
        return content_of(self.result)


@dataclass
class Walk:
    """Steps in one world; the last is the end that a task asks for."""

    setup: Setup
    facts: Facts
    steps: list[Step] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Of the world, by all steps."""
    read_by: frozenset[tuple[str, str]] = frozenset()
    """Tables and columns whose values tools that read are given."""


def demonstration(calls: Iterable[Call], closing: str) -> list[Message]:
    """The assistant's messages that make these calls, one after the other, and end with `closing`."""
    made = [ToolCall(id=f"call_{n}", name=name, arguments=dict(args)) for n, (name, args) in enumerate(calls, 1)]
    return [*(Message(role="assistant", tool_calls=[one]) for one in made), Message(role="assistant", content=closing)]


class NoWalk(Exception):
    """This walk leads nowhere; the message says why."""


async def walk(worlds: Worlds, lessons: Lessons, setup: Setup, length: int, chance: random.Random) -> Walk:
    """`length` calls, all but the last of them reads. Raises `NoWalk`."""
    async with worlds.open(setup) as world:
        before = await told(world)
        feeds = (feed for (tool, _), of in lessons.feeds.items() if tool in lessons.reads for feed in of)
        found = Walk(setup, Facts.of(before), read_by=frozenset((feed.table, feed.column) for feed in feeds))
        walker = _Walker(found, lessons, chance)
        for place in range(length):
            for tool, sources in walker.proposals(last=place == length - 1):
                arguments = {name: source.value for name, source in sources.items()}
                result = await worlds.call(world, setup, (tool.name, given(tool, arguments)))
                if not result.is_error:
                    found.steps.append(Step(tool, sources, result))
                    break
            else:
                raise NoWalk("no call succeeded")
        after = await told(world)
        found.changes = [dict(change) for change in diff(before, after)]
    if found.steps[-1].tool.name not in lessons.reads and not found.changes:
        raise NoWalk("a tool that acts changed nothing")
    if found.steps[-1].tool.name in lessons.reads and found.changes:
        raise NoWalk("a tool that reads changed the world")
    if column := _cleared(found, after):
        raise NoWalk(f"it clears {column!r}, which the request does not name")
    return found


def _cleared(walked: Walk, after: Mapping[str, Any]) -> str | None:
    """A column that the last call could have set, did not, and emptied or changed: a PUT puts a whole row in a row's
    place. Nobody asked for that, and who keeps the value is right."""
    last = walked.steps[-1]
    left = {name: schema.get("default") for name, schema in properties(last.tool).items() if name not in last.sources}
    whole = deed_of(last.tool)[0] in ("replace", "put")
    for change in walked.changes:
        before, now = change.get("before"), change.get("after")
        if before is None or after.get(str(change.get("table")), {}).get(change.get("key")) is None:
            continue
        # The dict of an object is one value: its entries are the columns.
        was = leaves(before) if isinstance(before, Mapping | list) else [((), before)]
        for path, value in was:
            column = str([change.get("column"), *path][-1])
            changed = at(now, path)
            if column in left and changed != value and (whole or changed in (None, left[column])):
                return column
    return None


def adds(walked: Walk) -> bool:
    """Whether there is a row, or an entry, after the walk that was not there before."""
    for change in walked.changes:
        before, after = change.get("before"), change.get("after")
        if isinstance(after, Mapping | list):
            if len(list(leaves(after))) > len(list(leaves(before))):
                return True
        elif before is None and (change.get("table"), change.get("key")) not in walked.facts.rows:
            return True
    return False


async def minimised(worlds: Worlds, whole: Walk) -> Walk:
    """The walk without the calls that its end does not need: each that no other rests on is left out in turn, and the
    rest is played in a fresh world, where the end must be the same. All before the last are reads."""
    for place in reversed(range(len(whole.steps) - 1)):
        sources = (source for step in whole.steps for source in step.sources.values())
        if not any(isinstance(source, Found) and source.step == place for source in sources):
            shorter = _without(whole, place)
            again = await worlds.play(shorter.setup, [step.call for step in shorter.steps])
            works = not any(result.is_error for result in again.results) and again.changes == whole.changes
            if works and content_of(again.results[-1]) == whole.steps[-1].content:
                whole = shorter
    return whole


def _without(walked: Walk, place: int) -> Walk:
    def moved(source: Told | Found) -> Told | Found:
        if isinstance(source, Found) and source.step > place:
            return Found(source.step - 1, source.path, source.value)
        return source

    steps = [
        Step(step.tool, {name: moved(source) for name, source in step.sources.items()}, step.result)
        for number, step in enumerate(walked.steps)
        if number != place
    ]
    return Walk(walked.setup, walked.facts, steps, walked.changes)


_CREATING = frozenset({"create", "add", "post", "save", "register", "insert"})
_UNIQUE = frozenset({"email", "username", "login", "slug", "sku", "handle"})
"""Last words of columns that no two rows may have alike, as a rule."""
_PARTS = re.compile(r"\d+|[^\W\d_]+|[\W_]+")


def _creates(tool: Tool, cell: Cell) -> bool:
    """Whether the column names the rows that the tool creates, by its name."""
    verb, about = deed_of(tool)
    names_row = cell.is_key or not _UNIQUE.isdisjoint(words(cell.column)[-1:])
    return names_row and verb in _CREATING and noun_of(about) == cell.noun


def new_key(keys: Sequence[Scalar], chance: random.Random) -> Scalar:
    """A key like the others, and none of them: of parts of several, with other digits. Example: of `early-pine-7` and
    `calm-field-2`, `early-field-4`. Numbers go on after the highest."""
    if (made := _of_form([str(key) for key in keys], chance)) is not None:
        return made
    numbers = [key for key in keys if not isinstance(key, str)]
    if numbers:
        return int(max(numbers)) + chance.randint(1, 20)
    taken = {str(key).casefold() for key in keys}
    while True:
        split = [_PARTS.findall(str(key)) for key in keys]
        for _ in range(_TRIES * len(keys)):
            shape = chance.choice(split)
            alike = [parts for parts in split if len(parts) == len(shape)]
            made = "".join(_other_digits(chance.choice(alike)[place], chance) for place in range(len(shape)))
            if made.casefold() not in taken:
                return made
        keys = [f"{key}{'1' if str(key)[-1:].isdigit() else '-1'}" for key in keys]


_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(rf"{_DAY.pattern}T\d\d:\d\d(?::\d\d)?Z?")


def _of_form(keys: Sequence[str], chance: random.Random) -> str | None:
    """Of days, moments and UUIDs another one, later than all of them; None of others."""
    try:
        if all(map(_DAY.fullmatch, keys)):
            return (max(map(date.fromisoformat, keys)) + timedelta(days=chance.randint(1, 60))).isoformat()
        if all(map(_MOMENT.fullmatch, keys)):
            latest = max(keys, key=datetime.fromisoformat)
            later = datetime.fromisoformat(latest) + timedelta(minutes=chance.randint(1, 6000))
            return later.isoformat().replace("+00:00", "Z")
        if all(len(key) == _UUID for key in keys):
            return str(UUID(int=chance.getrandbits(128), version=UUID(keys[0]).version or 4))
    except (ValueError, TypeError, OverflowError):
        pass
    return None


_UUID = len(str(UUID(int=0)))


def _other_digits(part: str, chance: random.Random) -> str:
    return "".join(chance.choice("123456789") for _ in part) if part.isdigit() else part


def _as_key(sources: Mapping[str, Told | Found]) -> str:
    return repr({name: source.value for name, source in sources.items()})


class _Walker:
    def __init__(self, walked: Walk, lessons: Lessons, chance: random.Random) -> None:
        self._walk, self._lessons, self._chance = walked, lessons, chance

    def proposals(self, *, last: bool) -> Iterator[tuple[Tool, dict[str, Told | Found]]]:
        """Calls to try, the first that succeeds is the step. Tools come in random order: one that refuses often is as
        likely to be tried first as one that never does."""
        acts = last and self._chance.random() < _ACTS
        names = sorted(name for name in self._lessons.tools if (name in self._lessons.reads) != acts)
        names = names or sorted(self._lessons.tools if last else self._lessons.reads)
        made = {(step.tool.name, _as_key(step.sources)) for step in self._walk.steps}
        calls = 0
        for name in self._chance.sample(names, len(names)):
            tool = self._lessons.tools[name]
            for _ in range(_PROPOSALS):
                sources = self._sources(tool)
                if sources is None or (self._walk.steps and not self._goes_on(sources)):
                    continue
                key = (name, _as_key(sources))
                if key in made:
                    continue
                if calls == _CALL_TRIES:
                    return
                made.add(key)
                calls += 1
                yield tool, sources

    def _goes_on(self, sources: Mapping[str, Told | Found]) -> bool:
        """Whether a call rests on an earlier one: as a rule on the latest, without which that one would be idle."""
        steps = {source.step for source in sources.values() if isinstance(source, Found)}
        return len(self._walk.steps) - 1 in steps or (bool(steps) and self._chance.random() > _FOUND)

    def _sources(self, tool: Tool) -> dict[str, Told | Found] | None:
        wanted = list(required(tool))
        optional = [
            name
            for name, schema in properties(tool).items()
            if name not in wanted
            and ("enum" in schema or schema.get("type") == "boolean" or self._lessons.feeds.get((tool.name, name)))
        ]
        if deed_of(tool)[0] in ("replace", "put"):
            wanted += optional  # what it is not sent it puts back to the default
        elif optional and tool.name not in self._lessons.reads and self._chance.random() < _OPTIONAL:
            wanted.append(self._chance.choice(optional))
        sources: dict[str, Told | Found] = {}
        for name in wanted:
            source = self._source(tool, name)
            if source is None:
                return None
            # Two arguments with one value ask for the same thing twice, such as a transfer to oneself. Switches do not.
            others = [other.value for other in sources.values() if not isinstance(other.value, bool)]
            if not isinstance(source.value, bool) and source.value in others:
                return None
            sources[name] = source
        return sources

    def _source(self, tool: Tool, name: str) -> Told | Found | None:
        schema = properties(tool)[name]
        if "enum" in schema:
            choices = [choice for choice in schema["enum"] if isinstance(choice, str | int)]
            return Told(self._chance.choice(choices)) if choices else None
        if schema.get("type") == "boolean":
            return Told(self._chance.random() < 0.5)
        found = self._found(tool, name, schema)
        if found and self._chance.random() < _FOUND:
            latest = [one for one in found if one.step == len(self._walk.steps) - 1]
            return self._chance.choice(latest if latest and self._chance.random() < _FOUND else found)
        told_of = self._told(tool, name, schema)
        if told_of is None and is_number(schema):
            number = drawn_number(schema, self._chance)
            return Told(number) if number is not None else None
        return told_of

    def _told(self, tool: Tool, name: str, schema: Mapping[str, Any]) -> Told | None:
        feeds = self._lessons.feeds.get((tool.name, name), [])
        if not feeds:
            return None
        best = [feed for feed in feeds if feed.likeness >= 1.0]
        feed = self._chance.choice(best or feeds)
        cells = self._walk.facts.columns.get((feed.table, feed.column), [])
        if cells and (tool.name, name) in self._lessons.new_keys and _creates(tool, cells[0]):
            value = fitted(new_key([cell.value for cell in cells], self._chance), schema)
            return None if value is None else Told(value)
        for cell in self._chance.sample(cells, min(4, len(cells))):
            value = fitted(cell.value, schema)
            if value is not None:
                return Told(value, cell)
        return None

    def _found(self, tool: Tool, name: str, schema: Mapping[str, Any]) -> list[Found]:
        """Values of earlier results that fit by what they are: a value of a column that feeds the argument, under a
        name like it where it is a number, which would otherwise fit by accident."""
        fits = self._lessons.values(self._walk.facts, tool.name, name)
        said = {str(source.value) for step in self._walk.steps for source in step.sources.values()}
        found = []
        for place, step in enumerate(self._walk.steps):
            if step.tool.name == tool.name:
                continue  # what a tool said of something, asked of itself again
            about = deed_of(step.tool)[1] or step.tool.name
            for path, value in leaves(step.content):
                if str(value) in said or str(value) not in fits:
                    continue
                if _OF_PAGES.search(last_name(path)):
                    continue
                given = fitted(value, schema)
                if given is not None and _belongs(value, name, tool.name, about, path, fits[str(value)]):
                    found.append(Found(place, path, given))
        return found


_OF_PAGES = re.compile(r"cursor|marker|(page|next|continuation)_?token", re.IGNORECASE)
"""Where a list goes on: that it may be a row's key, nobody asks for."""


def _belongs(value: Scalar, name: str, tool: str, about: str, path: Path, cells: Sequence[tuple[Cell, Feed]]) -> bool:
    """`about`: what the earlier tool acts on. Where ids count from 1, any small number is some row's id by accident: it
    is meant as one only under a name like an id's."""
    if isinstance(value, str) and not value.isdecimal():
        return True
    *above, column = [part for part in path if isinstance(part, str)] or [""]
    holder = next((part for part in reversed(above) if part not in WRAPPERS), about)  # in {"pet": {"id": 3}}, the pet
    if likeness(name, tool, "_".join(words(holder)), column, is_key=column in ("id", "key")) >= LIKE:
        return True
    of = without_identifying(column) if column not in WRAPPERS else ""
    if not of:
        of = noun_of(without_identifying(holder))
    elif isinstance(path[-1], int):  # {"pets": [3, 7]} lists pets, and {"pets": 3} counts them
        of = noun_of(of)
    return any(cell.is_key and shares_noun(cell.noun, of) for cell, _ in cells)
