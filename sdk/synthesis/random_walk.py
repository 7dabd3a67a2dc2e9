"""A random walk through a world: calls whose arguments come from the state (told) or from earlier results (found)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.world import Setup
from sandboxes import diff

from .lessons import LIKE, Lessons, drawn_number, fitted, is_number, properties, required
from .words import likeness, verb_and_object, words
from .worlds import Call, Cell, Facts, Scalar, Worlds, content_of, leaves, told

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
        return {name: source.value for name, source in self.sources.items()}

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


class NoWalk(Exception):
    """This walk leads nowhere; the message says why."""


async def walk(worlds: Worlds, lessons: Lessons, setup: Setup, length: int, chance: random.Random) -> Walk:
    """`length` calls, all but the last of them reads. Raises `NoWalk`."""
    async with worlds.open(setup) as world:
        before = await told(world)
        found = Walk(setup, Facts.of(before))
        walker = _Walker(found, lessons, chance)
        for place in range(length):
            for tool, sources in walker.proposals(last=place == length - 1):
                arguments = {name: source.value for name, source in sources.items()}
                result = await worlds.call(world, setup, (tool.name, arguments))
                if not result.is_error:
                    found.steps.append(Step(tool, sources, result))
                    break
            else:
                raise NoWalk("no call succeeded")
        found.changes = [dict(change) for change in diff(before, await told(world))]
    if found.steps[-1].tool.name not in lessons.reads and not found.changes:
        raise NoWalk("a tool that acts changed nothing")
    if found.steps[-1].tool.name in lessons.reads and found.changes:
        raise NoWalk("a tool that reads changed the world")
    return found


async def minimised(worlds: Worlds, whole: Walk) -> Walk:
    """The walk without the calls that its end does not need: each that no other rests on is left out in turn, and the
    rest is played in a fresh world, where the end must be the same. All before the last are reads."""
    place = len(whole.steps) - 2
    while place >= 0:
        sources = (source for step in whole.steps for source in step.sources.values())
        if not any(isinstance(source, Found) and source.step == place for source in sources):
            shorter = _without(whole, place)
            again = await worlds.play(shorter.setup, [step.call for step in shorter.steps])
            works = not any(result.is_error for result in again.results) and again.changes == whole.changes
            if works and content_of(again.results[-1]) == whole.steps[-1].content:
                whole = shorter
        place -= 1
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


class _Walker:
    def __init__(self, walked: Walk, lessons: Lessons, chance: random.Random) -> None:
        self._walk, self._lessons, self._chance = walked, lessons, chance

    def proposals(self, *, last: bool) -> Iterator[tuple[Tool, dict[str, Told | Found]]]:
        """Calls to try, the first that succeeds is the step. Tools come in random order: one that refuses often is as
        likely to be tried first as one that never does."""
        acts = last and self._chance.random() < _ACTS
        names = sorted(name for name in self._lessons.tools if (name in self._lessons.reads) != acts)
        names = names or sorted(self._lessons.tools if last else self._lessons.reads)
        made = {(step.tool.name, repr(step.arguments)) for step in self._walk.steps}
        calls = 0
        for name in self._chance.sample(names, len(names)):
            tool = self._lessons.tools[name]
            for _ in range(_PROPOSALS):
                sources = self._sources(tool)
                if sources is None or (self._walk.steps and not self._goes_on(sources)):
                    continue
                key = (name, repr({argument: source.value for argument, source in sources.items()}))
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
            if name not in wanted and ("enum" in schema or self._lessons.feeds.get((tool.name, name)))
        ]
        if optional and tool.name not in self._lessons.reads and self._chance.random() < _OPTIONAL:
            wanted.append(self._chance.choice(optional))
        sources: dict[str, Told | Found] = {}
        for name in wanted:
            source = self._source(tool, name)
            # Two arguments with one value ask for the same thing twice, such as a transfer to oneself.
            if source is None or any(source.value == other.value for other in sources.values()):
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
            about = verb_and_object(step.tool.name)[1] or step.tool.name
            for path, value in leaves(step.content):
                if str(value) in said or str(value) not in fits:
                    continue
                column = next((part for part in reversed(path) if isinstance(part, str)), "")
                given = fitted(value, schema)
                if given is not None and _belongs(value, name, tool.name, about, column, fits[str(value)]):
                    found.append(Found(place, path, given))
        return found


def _belongs(value: Scalar, name: str, tool: str, about: str, column: str, cells: list[Any]) -> bool:
    if isinstance(value, str) and not value.isdecimal():
        return True
    table = "_".join(words(about))
    if likeness(name, tool, table, column, is_key=column in ("id", "key")) >= LIKE:
        return True
    return any(cell.is_key and cell.noun in " ".join([*words(column), about]) for cell, _ in cells)
