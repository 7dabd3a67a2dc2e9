"""The request that a walk answers: its values described, put in words by templates, and reworded by a model.

Everything is named by what the state and the results call it: "the order with the product lamp of customer C11". A
description that fits more than one thing is refused. Phrases are how people ask for a tool, in the user's own words.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.records import Tool

from ..errors import ConfigError, PolicyFailure
from ..policies.protocol import Agent, Sampling
from ..records import Message
from ..rollouts import derive_seed
from ..verifiers.text_tokens import numbers_and_names, positions, tokenize
from .words import (
    IDENTIFYING,
    MAKING,
    SETTING,
    VERBS,
    WRAPPERS,
    last_name,
    listed,
    noun_of,
    shares_noun,
    singular,
    without_id,
    without_identifying,
    words,
)
from .worlds import Cell, Facts, Found, NoWalk, Path, Scalar, Step, Told, Walk, adds, at, deed_of, leaves, properties

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
            of = self._holder(step, source.path)
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
        column = without_id(last_name(source.path)) or self._holder(self.walked.steps[source.step], source.path)
        return next((noun for noun in nouns if noun in column), column)

    def keys_in(self, source: Told | Found) -> list[Cell]:
        """The keys of rows that there are, where an argument is one."""
        if isinstance(source, Told) and (source.cell is None or source.cell.is_key):
            return [source.cell] if source.cell is not None else []
        # A number that some row is named by may be any other number.
        is_name = isinstance(source, Found) or (isinstance(source.value, str) and not source.value.isdecimal())
        return self.facts.named_by(source.value) if is_name else []

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
        about = _about(step)
        if not step.sources:
            return f"the {about}"
        if len(step.sources) > 1:
            return f"the {about}{self._by_several(step)}"
        (name, source), *_ = step.sources.items()
        noun, described = self.noun_of_argument(source), self.argument(name, source)
        if noun and (shares_noun(noun, about) or self._has(noun, source.value, asked) or asked == about):
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
        return bool(noun) and shares_noun(noun, without_id(name)) and without_id(name) != spoken(name)

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
                if other.table != cell.table and shares_noun(other.noun, without_id(cell.column)):
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
        names = [part for part in element if isinstance(part, str) and part not in WRAPPERS]
        if names:
            return noun_of(names[-1])
        return noun_of(_about(step)) if element else _about(step)

    def _holder(self, step: Step, path: Path) -> str:
        """What the value at a path is a column of: in {"book": {"id": 3}}, the book."""
        inside = inside_names(path)
        return self._noun(step, path) if len(inside) < 2 else noun_of(inside[-2])

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
            and words(column)
            and isinstance(value, str | int)
            and not isinstance(value, bool)
            and str(value).strip()
            and len(str(value)) <= _LONGEST_NAME
            # Who knows an element's id needs no list to find it in, and so of a key of another name. One that takes no
            # arguments is asked for as such.
            and without_id(column) == spoken(column)
            and not (step.sources and self._is_key_of(one, column, value))
            and not _TIME.fullmatch(str(value))
            and sum(says(other, column, value) for other in everyone) == 1
            and self._is_alone(step, one, column, value)
        ]
        if not fits:
            raise NoWalk("nothing tells an element of a list from the others")
        return min(fits, key=lambda fit: _awkwardness(*fit))

    def _is_key_of(self, one: Mapping[str, Any], column: str, value: Any) -> bool:
        """Whether a value is the key of the row that an element shows: a part's `part_no`. An order's `product` is the
        key of a row that is not like the order."""
        given = (cell.value for place in self.walked.read_by for cell in self.facts.columns.get(place, ()))
        if str(value) not in map(str, given):  # no tool reads the row by it
            return False
        rows = (self.facts.rows[cell.table, cell.key] for cell in self.facts.named_by(value))
        both = [[(row[name], one[name]) for name in row.keys() & one.keys() - {column}] for row in rows]
        return any(pairs and all(str(said) == str(shown) for said, shown in pairs) for pairs in both)

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
    return [name for name in below[:-1] if name not in WRAPPERS] + below[-1:]


def _nested(names: list[str]) -> str:
    """Names in words, the last first: "id of the book" for `book.id`."""
    return " of the ".join(spoken(name) for name in reversed(names))


def spoken(name: str) -> str:
    return " ".join(words(name)) or name


def names_itself(column: str, value: Any, noun: str, facts: Facts) -> bool:
    """Whether a value is the name of what it stands in, such as an order's id, and not of something else."""
    if not without_id(column) or shares_noun(without_id(column), noun):
        return True
    if words(column)[-1] not in IDENTIFYING:
        return False
    named = [cell for cell in facts.named_by(value) if shares_noun(cell.noun, noun)]
    of = without_identifying(column)
    if not of or shares_noun(of, noun):
        return bool(named)
    # The `customer_id` of an order, or its `parent_id`, may be the key of another order.
    return any(cell.column == column for cell in named)


def _awkwardness(column: str, value: Any) -> tuple[int, str]:
    """Names before other texts, those before numbers."""
    if words(column)[-1] in IDENTIFYING:
        return 0, column
    return (1 if isinstance(value, str) else 2), column


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


# ---------------------------------------------------------------------------------------------------------------------

ASKING = (
    "{What} {is_} {x}?",
    "Tell me {x}.",
    "Please look up {x}.",
    "I need to know {x}.",
    "Can you find out {x}?",
    "Could you check {x} for me?",
)
DOING = (
    "{Act}.",
    "Please {act}.",
    "Can you {act}?",
    "I need you to {act}.",
    "Could you {act} for me?",
    "I would like you to {act}.",
)
REPORTING = ("Then tell me {x}.", "What is {x}?", "Afterwards, I need to know {x}.")
_TIMELIKE = ("at", "date", "time", "timestamp")
_MOST_OPTIONS = 8


@dataclass(frozen=True)
class Request:
    """A request before it is checked. `said`: values that it must have. `wording`: which template."""

    prompt: str
    said: tuple[Any, ...]
    field: str
    answer: Scalar
    options: tuple[str, ...]
    wording: int
    closing: str
    """The last message of the demonstration."""


def request(walked: Walk, phrases: Phrases, chance: random.Random) -> Request:
    """A request whose end is that of the walk. Raises `NoWalk` where it cannot be put clearly."""
    return (_deed if walked.changes else _question)(walked, phrases, chance)


def _question(walked: Walk, phrases: Phrases, chance: random.Random) -> Request:
    step = walked.steps[-1]
    earlier = {str(v).casefold() for one in walked.steps[:-1] for _, v in leaves(one.content)}
    choices = [
        (path, value)
        for path, value in _asked_of(step.content)
        if str(value).casefold() not in earlier and _may_be_asked(path, value, step)
    ]
    chance.shuffle(choices)
    reason = "its result has nothing that was not known before"
    for path, value in choices[:8]:
        describer = Describer(walked, phrases)
        about = _about(step)
        is_whole = last_name(path) in ("", "result", "value")
        field = about if is_whole else _nested(inside_names(path))
        try:
            described = describer.thing(step, path, field)
            _require_unsaid(walked, describer, value)
        except NoWalk as problem:
            reason = str(problem)
            continue
        whole = described if described == f"the {field}" else f"the {_quoted(field)} of {described}"
        is_ = "are" if _is_plural(field) else "is"
        if is_whole and _counts(step, value):
            whole, is_ = _number_of(field, described), "is"
            field = f"number of {field}"
        number = chance.randrange(len(ASKING))
        prompt = ASKING[number].format(What="What", is_=is_, x=whole)
        closing = f"The {field} {is_} {value}."
        options = _options(walked, last_name(path), value)
        return Request(prompt, tuple(describer.said), field, value, options, number, closing)
    raise NoWalk(reason)


def _counts(step: Step, value: Scalar) -> bool:
    """Whether a value is how many things there are that a tool counts, such as `count_loans`."""
    return words(step.tool.name)[0] == "count" and bool(deed_of(step.tool)[1]) and str(value).isdecimal()


def _number_of(things: str, described: str) -> str:
    """ "the number of loans of member M-104", of `described`: the member, or "the loans of" it already."""
    if described.startswith("the number of "):  # a phrase of the user's own
        return described
    for said in (f"the {things}", f"the {noun_of(things)}"):  # "the loan with the due date ..." is one of those counted
        if f"{described} ".startswith(f"{said} "):
            return f"the number of {things}{described.removeprefix(said)}"
    return f"the number of {things} of {described}"


def _asked_of(content: Any) -> Iterator[tuple[Path, Scalar]]:
    """The values of a result that one may ask for. Beside a list of things, others are about its pages."""
    found = list(leaves(content))
    has_list = any(
        isinstance(part, int) and len(path) > place + 1 for path, _ in found for place, part in enumerate(path)
    )
    for path, value in found:
        if not has_list or any(isinstance(part, int) for part in path):
            yield path, value


def _require_unsaid(walked: Walk, describer: Describer, answer: Scalar | None = None) -> None:
    """Raises `NoWalk` where the request says what is to be found out."""
    sources = (source for step in walked.steps for source in step.sources.values())
    found = [source.value for source in sources if isinstance(source, Found)]
    secret = {str(value).casefold() for value in (*found, answer) if value is not None}
    if secret & {str(value).casefold() for value in describer.said}:
        raise NoWalk("the request would say what is to be found out")


def _may_be_asked(path: Path, value: Scalar, step: Step) -> bool:
    if str(value).casefold() in {str(inner).casefold() for inner in step.arguments.values()}:
        return False
    # A text as a whole is an answer where it is one word.
    return bool(path) or step.result.structured is not None or bool(_PLAIN.fullmatch(str(value)))


def _deed(walked: Walk, phrases: Phrases, chance: random.Random) -> Request:
    step, describer = walked.steps[-1], Describer(walked, phrases)
    require_one_description(step)
    deed = phrases.words(step, describer) or _imperative(step, describer)
    _require_unsaid(walked, describer)
    if adds(walked):
        told = [one for one in step.sources.values() if isinstance(one, Told) and (one.cell is None or one.cell.is_key)]
        left = str(walked.changes).casefold()
        if any(isinstance(one.value, str) and one.value.casefold() not in left for one in told):
            raise NoWalk("what it makes has not the key that the request names")
    number = chance.randrange(len(DOING))
    prompt = DOING[number].format(Act=deed[0].upper() + deed[1:], act=deed)
    field, answer, closing = _outcome(walked, describer)
    what = _outcome_name(step, field, describer)
    if answer is None:
        prompt = f'{prompt} When it is done, answer with "{DONE}".'
        return Request(prompt, tuple(describer.said), DONE, DONE, (), number, DONE)
    ask = REPORTING[chance.randrange(len(REPORTING))].format(x=what)
    if _is_plural(field):
        ask = ask.replace("What is", "What are")
    return Request(f"{prompt} {ask}", tuple(describer.said), field, answer, (), number, closing)


def _outcome(walked: Walk, describer: Describer) -> tuple[str, Scalar | None, str]:
    """What the last result tells that the request did not say: a number before anything that could be guessed."""
    step = walked.steps[-1]
    known = {str(value).casefold() for value in (*describer.said, *step.arguments.values())}
    known |= {str(value).casefold() for one in walked.steps[:-1] for _, value in leaves(one.content)}
    choices = [
        (name, value)
        for path, value in leaves(step.content)
        if len(path) == 1
        and isinstance(name := path[0], str)
        and str(value).casefold() not in known
        and words(name)
        and words(name)[-1] not in _TIMELIKE
        and any(character.isdigit() for character in str(value))
    ]
    if not choices:
        return "", None, ""
    name, value = choices[0]
    return spoken(name), value, f"Done. The {spoken(name)} {'are' if _is_plural(spoken(name)) else 'is'} {value}."


def _about(step: Step) -> str:
    """What a step's tool acts on; all words of its name where that does not tell."""
    return deed_of(step.tool)[1] or " ".join(words(step.tool.name))


def _outcome_name(step: Step, field: str, describer: Describer) -> str:
    verb, about = deed_of(step.tool)
    makes = verb in MAKING and adds(describer.walked)
    if makes and about and about not in {spoken(name) for name in step.sources}:  # a room is booked, not new
        return f"the {_quoted(field)} of the new {noun_of(about)}"
    return f"the {_quoted(field)} that this gives"


def _imperative(step: Step, describer: Describer) -> str:
    """What is to be done, beginning with a verb in lower case."""
    verb, about = deed_of(step.tool)
    if not verb or not about or (verb in MAKING and not adds(describer.walked)):
        return _as_described(step, describer)  # "post a new customer" for what changes one
    rest = dict(step.sources)
    target = next((name for name in rest if _is_target(name, rest[name], about, describer)), None)
    if target is None and about in {spoken(name) for name in rest} and len(rest) > 1:
        return _set_one(verb, about, rest, describer)
    keys = [name for name, source in rest.items() if _is_natural_key(name, source, about, describer)]
    key = keys[0] if target is None and len(keys) == 1 and verb not in MAKING else None
    if verb in SETTING and len(rest) == (target is not None or key is not None):
        raise NoWalk("it changes something without saying to what")
    if verb in SETTING and target is None and key is None and any(map(describer.keys_in, rest.values())):
        raise NoWalk("what it changes has a key that the request could only set")
    if target is not None:
        thing = describer.argument(target, rest.pop(target))
    elif key is not None:  # `replace_item(sku, name)`: what is acted on has a key of another name
        thing = _by_natural_key(key, rest.pop(key), noun_of(about), describer)
    else:
        thing = f"a new {noun_of(about)}" if verb in MAKING else f"the {about}"
    sets = verb in SETTING or (target is not None and verb in ("move", "rename"))
    return f"{verb} {thing}{_further(rest, describer, sets=sets, described=' with the ' in thing)}"


def _is_target(name: str, source: Told | Found, about: str, describer: Describer) -> bool:
    """Whether an argument names what is acted on."""
    noun = noun_of(about)
    is_key = any(cell.noun == noun for cell in describer.keys_in(source))
    return is_key and describer.noun_of_argument(source) == noun and spoken(name).startswith(noun)


def _is_natural_key(name: str, source: Told | Found, about: str, describer: Describer) -> bool:
    """Whether an argument is the column that rows of what is acted on are named by: a `sku`, an `isbn`."""
    return any(cell.column in (name, "id") and cell.noun == noun_of(about) for cell in describer.keys_in(source))


def _by_natural_key(name: str, source: Told | Found, noun: str, describer: Describer) -> str:
    """ "the item with the sku A-10", and of one that was found what it was found by: "the item with the name saw"."""
    described = describer.argument(name, source)
    if described.startswith(f"the {noun} ") or spoken(name) == noun:
        return described
    return f"the {noun} with {describer.named(name, source)}"


def _set_one(verb: str, about: str, rest: dict[str, Told | Found], describer: Describer) -> str:
    """ "change the address of order 4417 to ..." for a tool named after one of its arguments."""
    value = next(name for name in rest if spoken(name) == about)
    source = rest.pop(value)
    said = describer.value(source.value) if isinstance(source, Told) else describer.argument(value, source)
    of = [describer.argument(name, other) for name, other in rest.items() if describer.noun_of_argument(other)]
    if len(of) != len(rest) or not of:
        raise NoWalk("the request cannot be put clearly")
    return f"{verb} the {about} of {' and '.join(of)} {'to' if verb in SETTING else 'as'} {said}"


def _further(rest: dict[str, Told | Found], describer: Describer, *, sets: bool, described: bool) -> str:
    """The arguments beside what is acted on: " for customer C11, with the quantity 3", or what becomes of it where the
    tool `sets` it. `described`: what is acted on is named by what it is like, so that a comma must keep the rest from
    being read as more of that."""
    after = {str(value) for change in describer.walked.changes for _, value in leaves([change.get("after")])}
    things = [
        name
        for name, source in rest.items()
        # A key that nothing is set to says where the thing is: the workspace of the card in a path.
        if describer.names_a_thing(name, source)
        or (sets and describer.keys_in(source) and str(source.value) not in after)
    ]
    said = "".join(f" for {describer.argument(name, rest[name])}" for name in things)
    joint = "to" if sets else ""
    parts = [describer.named(name, source, joint) for name, source in rest.items() if name not in things]
    # Long ones last: "the product of the order of C26 and the quantity 1" may be read as the quantity of that order.
    parts.sort(key=len)
    if sum(" with the " in part for part in parts) > 1:
        raise NoWalk("two of its values take long descriptions, and what belongs to which would not be clear")
    if parts:
        said += (": set " if joint else ", with " if things or described else " with ") + listed(parts)
    return said


def _as_described(step: Step, describer: Describer) -> str:
    """In the words of the tool's own description, or of its name where it has none."""
    first = re.split(r"[.;] |\n", step.tool.description.strip())[0].rstrip(".")
    word = first.split()[0] if first else ""
    plain = word.isalpha() and not word.isupper() and len(first) <= 80  # "DELETE /staff/{id}" is not a sentence
    begun = f"{first[0].lower()}{first[1:]}" if plain else f"use {' '.join(words(step.tool.name))}"
    parts = []
    for name, source in step.sources.items():
        described = describer.value(source.value) if isinstance(source, Told) else describer.argument(name, source)
        parts.append(f"the {spoken(name)} is {described}")
    return f"{begun}, where {listed(parts)}" if parts else begun


def _options(walked: Walk, name: str, value: Scalar) -> tuple[str, ...]:
    """The closed list that an answer is from, as far as the state shows it: few different texts in a column."""
    for (_, column), cells in walked.facts.columns.items():
        texts = sorted({str(cell.value) for cell in cells})
        few = len(texts) <= _MOST_OPTIONS and len(cells) >= 2 * len(texts)
        if column == name and isinstance(value, str) and few and value in texts and len(texts) > 1:
            return tuple(texts)
    return ()


def _quoted(field: str) -> str:
    return f'"{field}"' if len(field.split()) > 2 else field


def _is_plural(field: str) -> bool:
    last = field.split()[-1] if field else ""
    return singular(last) != last


DONE = "done"
"""What is asked for, and the answer, where a deed has no result to tell of."""
RULES = """\
You rewrite requests to an assistant so that they sound like a person wrote them. Keep the meaning exactly: the same \
thing is asked or to be done, of the same thing. Keep every value in the list of values word for word. Add no value, \
name, number or condition, answer nothing, and name no tools. Reply with the rewritten request alone, in at most two \
sentences."""
TRIES = 2
_ASKING = re.compile(
    r"\?|\b(?:please|kindly|tell|show|give|find|check|look up|let me know|need|want|would like|wonder(?:ing)?"
    r"|(?:can|could|would|will) you)\b",
    re.IGNORECASE,
)
_DEED = re.compile(r"(?:^|[.!] |\bplease |\byou (?:to )?)(\w+)", re.IGNORECASE)
"""Where a request has the verb of what is to be done."""
_QUOTES = "\"'“”„"


async def reworded(agent: Agent, asked: Request, *, seed: int, attempt: int) -> tuple[str | None, str]:
    """The model's wording, or None with the reason why none of its tries can be used.

    Raises `PolicyFailure` where the model cannot be reached.
    """
    values = "\n".join(f"- {value}" for value in asked.said)
    material = f"Request: {asked.prompt}\nValues:\n{values or '- none'}"
    problem = ""
    for number in range(TRIES):
        sampling = Sampling(temperature=0.8, max_tokens=160)
        conversation = agent.start([], sampling=sampling, seed=derive_seed(seed, "wording", attempt, number))
        reply = await conversation.reply(
            [Message(role="system", content=RULES), Message(role="user", content=material)]
        )
        if reply.stop_reason == "context":
            raise PolicyFailure("a request does not fit into the context of the model that words it")
        text = _plain(reply.message.content)
        problem = "it was cut off" if reply.stop_reason == "length" else _problem(text, asked)
        if not problem:
            return text, ""
    return None, problem


def _plain(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"^(rewritten )?request: *", "", text, flags=re.IGNORECASE)
    # Quotes around the whole, not those around a value at its end.
    return text[1:-1] if len(text) > 2 and text[0] in _QUOTES and text[-1] in _QUOTES else text


def _problem(text: str, asked: Request) -> str:
    """What is wrong with a wording; empty where nothing is."""
    said, before = tokenize(text), tokenize(asked.prompt)
    if not said:
        return "it is empty"
    if len(said) > 2 * len(before) + 10:
        return "it is more than twice as long"
    for value in asked.said:
        if not positions(tokenize(str(value)), said):
            return f"it lacks {value!r}"
    if asked.field != DONE and positions(tokenize(str(asked.answer)), said):
        return "it says the answer"
    if not _ASKING.search(text) and not _deeds(text) & (VERBS | _deeds(asked.prompt)):
        return "it asks for nothing"
    added = [token for token in numbers_and_names(text) if token not in before]
    return f"it adds {str(added[0])!r}" if added else ""


def _deeds(text: str) -> set[str]:
    """The words with which a request may tell what to do: those that begin its sentences or come after "please"."""
    return {word.casefold() for word in _DEED.findall(text)} - {"i"}
