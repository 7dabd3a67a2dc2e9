"""Descriptions of a walk's values for a request: "the order with the product lamp of customer C11".

Everything is named by what the state and the results call it. A description that fits more than one thing is refused.
Phrases are how people ask for a tool, in the user's own words.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.records import Tool

from ..errors import ConfigError
from .walks import Found, NoWalk, Path, Step, Told, Walk, properties
from .words import IDENTIFYING, noun_of, singular, verb_and_object, without_id, words
from .worlds import Cell, Facts, at

_WRAPPERS = frozenset({"data", "items", "results", "result", "list", "records", "entries", "values", "content"})
"""Keys that say nothing of what is in them."""
_LONGEST_NAME = 40
"""Characters of a text that names something."""
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")
_PLAIN = re.compile(r"[\w@.+-]+")


@dataclass
class Describer:
    """Describes the parts of one walk. `said` collects the values that the request must have, word for word."""

    walked: Walk
    phrases: Phrases
    said: list[Any] = field(default_factory=list)

    @property
    def facts(self) -> Facts:
        return self.walked.facts

    def argument(self, name: str, source: Told | Found) -> str:
        """What an argument is. Raises `NoWalk` where that is not one thing."""
        if isinstance(source, Found):
            step = self.walked.steps[source.step]
            inside = inside_names(source.path)
            of = self._noun(step, source.path) if len(inside) < 2 else noun_of(inside[-2])
            thing = self.thing(step, source.path)
            if not inside or names_itself(inside[-1], source.value, of, self.facts):
                return thing if len(inside) < 2 else f"the {_nested(inside[:-1])} of {thing}"
            return f"the {_nested([*inside[:-1], without_id(inside[-1]) or inside[-1]])} of {thing}"
        if source.cell is None:
            return f"the {spoken(name)} {self.value(source.value)}"
        return self._cell(self._canonical(source.cell))

    def noun_of_argument(self, source: Told | Found) -> str:
        """What kind of thing an argument names; empty where it names none."""
        if isinstance(source, Told):
            return "" if source.cell is None else self._canonical(source.cell).noun
        named = self.facts.named_by(source.value)
        nouns = {cell.noun for cell in named}
        column = without_id(last_name(source.path)) or self._noun(self.walked.steps[source.step], source.path)
        return next((noun for noun in nouns if noun in column), column)

    def thing(self, step: Step, path: Path, asked: str = "") -> str:
        """What a step's result, or the element of it at `path`, is. `asked`: what will be asked of it."""
        require_one_description(step)
        element = element_path(path)
        if element:
            if described := self._only_element(step, element):
                return described
            name, value = self._selector(step, element, last_name(path))
            return f"the {self._noun(step, path)} {self._with(name, value)}{self._listed_for(step)}"
        # "The order numbered {order_id}" is for a number. One that is described needs no words around it.
        is_described = len(step.sources) == 1 and any(isinstance(source, Found) for source in step.sources.values())
        if not is_described and (phrase := self.phrases.words(step, self)) is not None:
            return phrase
        about = verb_and_object(step.tool.name)[1] or " ".join(words(step.tool.name))
        if not step.sources:
            return f"the {about}"
        if len(step.sources) > 1:
            return f"the {about}{self._by_several(step)}"
        (name, source), *_ = step.sources.items()
        noun, described = self.noun_of_argument(source), self.argument(name, source)
        if noun and (_shares(noun, about) or self._has(noun, source.value, asked) or asked == about):
            return described
        return f"the {about} of {described}"

    def _only_element(self, step: Step, element: Path) -> str:
        """The element of a list that the call's own argument names already, as an e-mail may name its only customer."""
        if len(at(step.content, element[:-1])) != 1 or len(step.sources) != 1:
            return ""
        (source,) = step.sources.values()
        if isinstance(source, Told) and source.cell is not None and source.cell.noun == self._noun(step, element):
            return self._cell(source.cell)
        return ""

    def value(self, value: Any) -> str:
        """A value as it stands in a request, quoted where it is more than a word."""
        self.said.append(value)
        text = str(value)
        return text if _PLAIN.fullmatch(text) else f'"{text}"'

    def named(self, name: str, source: Told | Found, joint: str = "") -> str:
        """An argument with its name before it: "the quantity 3". `joint`: what stands between, such as "to"."""
        between = f" {joint} " if joint else " "
        if isinstance(source, Told):
            return f"the {spoken(name)}{between}{self.value(source.value)}"
        described = self.argument(name, source)
        if not joint and described.startswith(f"the {spoken(name)} of "):
            return described
        return f"the {spoken(name)}{between if joint else ': '}{described}"

    def names_a_thing(self, name: str, source: Told | Found) -> bool:
        """Whether an argument is the identifier of something: `order_id`, given an order's."""
        noun = self.noun_of_argument(source)
        return bool(noun) and _shares(noun, without_id(name)) and without_id(name) != spoken(name)

    def _by_several(self, step: Step) -> str:
        """The arguments that together name a result: "of order 1480 with the number 1"."""
        ofs, parts = [], []
        for name, source in step.sources.items():
            if self.names_a_thing(name, source):
                ofs.append(f" of {self.argument(name, source)}")
            else:
                parts.append(self.named(name, source))
        return "".join(ofs) + (f" with {listed(parts)}" if parts else "")

    def _listed_for(self, step: Step) -> str:
        """For whom or of what a list is."""
        if step.sources and (phrase := self.phrases.words(step, self)) is not None:
            return f" among {phrase}"
        said = [(name, source, self.noun_of_argument(source)) for name, source in step.sources.items()]
        if len(said) == 1 and said[0][2]:
            return f" of {self.argument(said[0][0], said[0][1])}"
        parts = [self.named(name, source) for name, source, _ in said]
        return f" among those with {listed(parts)}" if parts else ""

    def _canonical(self, cell: Cell) -> Cell:
        """The key that a cell repeats, where it stands for another row: the customer of an order."""
        if not cell.is_key:
            for other in self.facts.named_by(cell.value):
                if other.table != cell.table and _shares(other.noun, without_id(cell.column)):
                    return other
        return cell

    def _cell(self, cell: Cell) -> str:
        if not self.facts.is_unique(cell):
            raise NoWalk("a value that the request names belongs to several rows")
        if cell.is_key and (words(cell.column)[-1] in IDENTIFYING or " ".join(words(cell.column)) == cell.noun):
            return f"{cell.noun} {self.value(cell.value)}"
        return f"the {cell.noun} {self._with(cell.column, cell.value)}"

    def _with(self, column: str, value: Any) -> str:
        return f"with the {spoken(column)} {self.value(value)}"

    def _has(self, noun: str, value: Any, asked: str) -> bool:
        """Whether what is asked is a column of the row that an argument names."""
        return any(
            cell.noun == noun and any(spoken(column) == asked for column in self.facts.rows[cell.table, cell.key])
            for cell in self.facts.named_by(value)
        )

    def _noun(self, step: Step, path: Path) -> str:
        """What a step's result is, or each element of it."""
        element = element_path(path)
        names = [part for part in element if isinstance(part, str) and part not in _WRAPPERS]
        if names:
            return noun_of(names[-1])
        about = verb_and_object(step.tool.name)[1] or " ".join(words(step.tool.name))
        found = about.split()
        return " ".join([*found[:-1], singular(found[-1])]) if element and found else about

    def _selector(self, step: Step, element: Path, asked: str) -> tuple[str, Any]:
        """A value by which one element of a list is told from the others. Raises `NoWalk` where there is none."""
        everyone = at(step.content, element[:-1])
        one = at(step.content, element)
        if not isinstance(one, dict):
            raise NoWalk("the elements of a list have no names")

        def says(other: Any, column: str, value: Any) -> bool:
            return isinstance(other, dict) and str(other.get(column, "")).casefold() == str(value).casefold()

        fits = [
            (column, value)
            for column, value in one.items()
            if column != asked
            and isinstance(value, str | int)
            and not isinstance(value, bool)
            and str(value).strip()
            and len(str(value)) <= _LONGEST_NAME
            # Who knows an element's id needs no list to find it in.
            and without_id(column) == spoken(column)
            and not _TIME.fullmatch(str(value))
            and sum(says(other, column, value) for other in everyone) == 1
            and self._is_alone(step, one, column, value)
        ]
        if not fits:
            raise NoWalk("nothing tells an element of a list from the others")
        return min(fits, key=lambda fit: _awkwardness(*fit))

    def _is_alone(self, step: Step, one: dict[str, Any], column: str, value: Any) -> bool:
        """Whether the state has no other row that the description fits: lists may be cut short."""
        keys = {str(inner) for inner in one.values() if isinstance(inner, str | int)}
        tables = {
            table
            for (table, key), row in self.facts.rows.items()
            if key in keys and column in row and str(row[column]) == str(value)
        }
        asked = [str(inner) for inner in step.arguments.values()]
        for table in tables:
            alike = [
                row
                for (name, _), row in self.facts.rows.items()
                if name == table
                and str(row.get(column, "")).casefold() == str(value).casefold()
                and all(any(str(inner) == part for inner in row.values()) for part in asked)
            ]
            if len(alike) > 1:
                return False
        return True


def require_one_description(step: Step) -> None:
    """Raises `NoWalk` where several arguments come from earlier results: each would be a description of its own, one
    within the other."""
    if sum(isinstance(source, Found) for source in step.sources.values()) > 1:
        raise NoWalk("two of its values are only described, and what belongs to which would not be clear")


def element_path(path: Path) -> Path:
    """Up to the innermost place in a list; empty where there is none."""
    places = [place for place, part in enumerate(path) if isinstance(part, int)]
    return path[: places[-1] + 1] if places else ()


def inside_names(path: Path) -> list[str]:
    """The names below the innermost list of a path, without those that say nothing."""
    below = [part for part in path[len(element_path(path)) :] if isinstance(part, str)]
    return [name for name in below[:-1] if name not in _WRAPPERS] + below[-1:]


def asked_for(path: Path) -> str:
    """What stands at a path, in words: "id of the book" for `book.id`."""
    return _nested(inside_names(path))


def _nested(names: list[str]) -> str:
    return " of the ".join(spoken(name) for name in reversed(names))


def last_name(path: Path) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def spoken(name: str) -> str:
    return " ".join(words(name)) or name


def names_itself(column: str, value: Any, noun: str, facts: Facts) -> bool:
    """Whether a value is the name of what it stands in, such as an order's id, and not of something else."""
    if not without_id(column) or _shares(without_id(column), noun):
        return True
    return words(column)[-1] in IDENTIFYING and any(_shares(cell.noun, noun) for cell in facts.named_by(value))


def _shares(one: str, other: str) -> bool:
    """Whether one noun is the other's last words. Example: "order" and "customer order"."""
    return bool(one and other) and (one == other or one.endswith(f" {other}") or other.endswith(f" {one}"))


def _awkwardness(column: str, value: Any) -> tuple[int, str]:
    """Names before other texts, those before numbers."""
    if words(column)[-1] in IDENTIFYING:
        return 0, column
    return (1 if isinstance(value, str) else 2), column


def listed(parts: list[str]) -> str:
    """Example: `listed(["a", "b", "c"]) == "a, b and c"`"""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


_THING = re.compile(r"(?:the|a|an|all|any|each|every|my|our|this|that)\s", re.IGNORECASE)


class Phrases:
    """One phrase for a tool, with its arguments in braces: `{"book": "Book {room} for {person} on {day}"}`.

    That of a tool that acts says what to do. That of a tool that only reads names what it returns: "the free slots of
    {room}". A phrase is used for calls that give all the arguments that it has, and no others.
    """

    def __init__(self, given: Mapping[str, str] | None, tools: Sequence[Tool]) -> None:
        """Raises `ConfigError` for a tool or an argument that there is not."""
        self._parts: dict[str, list[tuple[str, str]]] = {}
        known = {tool.name: tool for tool in tools}
        for name, text in (given or {}).items():
            if name not in known:
                raise ConfigError(f"phrases: there is no tool {name!r}; the tools are {', '.join(known)}")
            self._parts[name] = _parsed(name, text, list(properties(known[name])))

    def check_reads(self, reads: Collection[str]) -> None:
        """Raises `ConfigError` where a tool that only reads has a phrase that names no thing."""
        for name, parts in self._parts.items():
            if name in reads and not _THING.match(parts[0][0]):
                raise ConfigError(
                    f"phrases: {name!r} only reads, so its phrase names what it returns, and begins with an article, "
                    f'for example "the {" ".join(name.split("_"))}"; it begins with {parts[0][0][:40]!r}'
                )

    def words(self, step: Step, describer: Describer) -> str | None:
        """The phrase with the arguments of a call; None where it does not fit the call. Raises `NoWalk` as
        `Describer.argument` does."""
        parts = self._parts.get(step.tool.name)
        if parts is None or {name for _, name in parts if name} != set(step.sources):
            return None
        said = ""
        for literal, name in parts:
            said += literal
            if not name:
                continue
            source = step.sources[name]
            if isinstance(source, Found):
                described = describer.argument(name, source)
                # "Book room {room}" with "the room with the name Oak" has the noun twice.
                before, _, last = said.rstrip().rpartition(" ")
                if described.startswith(f"the {last.lower()} "):
                    said = f"{before.removesuffix('the').rstrip()} "
                said += described
            else:
                describer.said.append(source.value)
                said += str(source.value)
        return said


def _parsed(tool: str, text: str, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Texts, each with the argument that follows it; "" after the last."""
    example = f'"{tool.split("_")[0].capitalize()} ... {{{next(iter(arguments), "argument")}}}"'
    plain = text.strip().rstrip(".?!") if isinstance(text, str) else ""
    if not plain:
        raise ConfigError(f"phrases: that of {tool!r} is {text!r}; write for example {example}")
    try:
        found = [(literal, name or "") for literal, name, _, _ in string.Formatter().parse(plain)]
    except ValueError as error:
        raise ConfigError(f"phrases: that of {tool!r} cannot be read ({error}); write for example {example}") from None
    for _, name in found:
        if name and name not in arguments:
            raise ConfigError(
                f"phrases: that of {tool!r} has {{{name}}}, which is none of its arguments: {', '.join(arguments)}"
            )
    first = found[0][0]
    if first[:2].istitle() or len(first) < 2:
        found[0] = (first[:1].lower() + first[1:], found[0][1])
    return found
