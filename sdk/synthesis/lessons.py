"""Lessons: what feeds each tool's arguments, learned from their names or by trying values of the state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.errors import ToolFailure
from mcp_bridge.records import MADE_UP, Tool
from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors

from ..errors import ConfigError
from ..rollouts.seeds import derive_seed
from .words import likeness
from .worlds import Cell, Facts, Scalar, Worlds, told

LIKE = 0.85
"""From here on, a name says what an argument is."""
_TRIES = 4
"""Of each column with a tool whose argument's name says nothing."""
_READ_TRIES = 4
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


def required(tool: Tool) -> list[str]:
    return [str(name) for name in tool.input_schema.get("required", [])]


def properties(tool: Tool) -> dict[str, Mapping[str, Any]]:
    """The arguments' schemas. One that may also be null, as FastAPI writes every optional field, is the other one."""
    return {
        name: _without_null(schema)
        for name, schema in tool.input_schema.get("properties", {}).items()
        if isinstance(schema, dict)
    }


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


def _fits(value: Scalar, schema: Mapping[str, Any]) -> bool:
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
    for tool in shown:
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
        found = await _tried(worlds, facts, tool, name, feeds, lessons, chance)
        lessons.feeds[tool.name, name] = found
        if not found and not is_number(properties(tool)[name]):
            return f"nothing in the state fits the argument {name!r}"
    return ""


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
        played = await worlds.play(worlds.setups[0], [(tool.name, arguments)])
    except ToolFailure:
        return False
    return not played.results[0].is_error


async def _only_reads(worlds: Worlds, facts: Facts, tool: Tool, lessons: Lessons, chance: random.Random) -> bool:
    """Whether no call of a few changed the world. A tool none of whose calls succeeded is taken for one that acts."""
    if tool.annotations.read_only is False:
        return False
    good = 0
    for _ in range(_READ_TRIES):
        arguments = {name: _any_value(facts, tool, name, lessons, chance) for name in required(tool)}
        if None in arguments.values():
            return False
        try:
            played = await worlds.play(worlds.setups[0], [(tool.name, arguments)])
        except ToolFailure:
            continue
        if played.changes:
            return False
        good += not played.results[0].is_error
    return good > 0
