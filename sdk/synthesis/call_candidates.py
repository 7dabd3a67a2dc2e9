"""Calls that a prompt may ask for: arguments that the schemas allow, from its words and from what calls returned."""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mcp_bridge.records import Tool
from mcp_bridge.toolsets.schema_parts import followed

from ..verifiers.calls import is_number
from .words import PromptValue, PromptValues, last_name, stem, stems, verb_and_object, without_id, words
from .worlds import at, leaves

_MOST_VALUES = 10
"""Of one argument."""
_DEEPEST = 3
"""Of objects in arguments."""
_MOST_COMBINATIONS = 60
"""Of the arguments of one tool, of which the best are tried first."""
_OTHER_TOOLS_TURN = 0.12
"""What each further candidate of a tool is less plausible, so that a tool that the prompt names is not all that is
tried."""
_NOT_ASKED_FOR = 1.0
"""What a tool that acts is less plausible where the prompt does not name the act: changing something answers no
question."""
_NEEDS_NOTHING = 2.0
"""What a tool without required arguments is more plausible: less than values that fit, more than any words."""
_OPTIONAL_COSTS = 1.6
"""An argument that may be left out is given where the prompt seems to name it."""
_KEYS = frozenset(stems("id key number name"))
"""Of the columns by which a row is named."""
_FORMATS = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "time": re.compile(r"\d\d:\d\d(:\d\d)?"),
    "date-time": re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*"),
    "email": re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"),
    "uri": re.compile(r"[a-z][\w+.-]*:\S+", re.IGNORECASE),
    "uuid": re.compile(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", re.IGNORECASE),
}


@dataclass(frozen=True)
class CallCandidate:
    """A call, and how plausible it is."""

    tool: str
    arguments: dict[str, Any]
    plausibility: float
    is_unasked: bool = False
    """It changes something, and the prompt does not name the act."""

    @property
    def key(self) -> str:
        return json.dumps([self.tool, self.arguments], sort_keys=True, default=str)

    @property
    def said(self) -> str:
        """The arguments' values as one text, in lower case."""
        return " ".join(str(value) for _, value in leaves(self.arguments)).casefold()


@dataclass(frozen=True)
class ResultValue:
    """A plain value that an earlier call returned. `row_fits`: how many words of the prompt stand beside it."""

    path: tuple[str | int, ...]
    value: Any
    tool: str
    row_fits: float


@dataclass(frozen=True)
class _Choice:
    value: Any
    weight: float
    source: PromptValue | None = None


_ABSENT = object()


class CallCandidates:
    """The calls of some tools that a prompt may ask for, the most plausible first."""

    def __init__(self, tools: Sequence[Tool], likely: Mapping[str, float] | None = None) -> None:
        """`likely`: what is added to the plausibility of a tool's calls."""
        self._tools = list(tools)
        self._likely = likely or {}
        self._others_say = any(tool.annotations.read_only for tool in tools)
        self._words = {tool.name: _words_of(tool) for tool in tools}
        counts = Counter(word for weights in self._words.values() for word in weights)
        self._rarity = {word: math.log(1 + len(tools) / count) for word, count in counts.items()}

    def likeness(self, tool: Tool, prompt: PromptValues) -> float:
        """How many of the prompt's words are words of the tool, rare ones and those of its name counting more."""
        known = self._words[tool.name]
        return sum(weight * self._rarity[word] for word, weight in known.items() if word in prompt.vocabulary)

    def first(self, prompt: PromptValues, returned: Sequence[ResultValue] = ()) -> Iterator[CallCandidate]:
        """Of all tools together. `returned`: values of the calls before."""
        streams = [self._calls(tool, prompt, returned) for tool in self._tools]
        return heapq.merge(*streams, key=lambda candidate: -candidate.plausibility)

    def _calls(self, tool: Tool, prompt: PromptValues, returned: Sequence[ResultValue]) -> Iterator[CallCandidate]:
        schema = tool.input_schema
        about = frozenset(stems(tool.name))
        likeness = self.likeness(tool, prompt) + self._likely.get(tool.name, 0.0)
        act = _act_of(tool, self._others_say)
        is_unasked = bool(act) and stem(act) not in prompt.vocabulary
        likeness -= _NOT_ASKED_FOR * is_unasked
        found = _Arguments(schema, prompt, returned, about).objects(schema)
        for number, (arguments, weight) in enumerate(found):
            plausibility = likeness + weight - _OTHER_TOOLS_TURN * number
            yield CallCandidate(tool.name, arguments, plausibility, is_unasked)


def _act_of(tool: Tool, others_say: bool) -> str:
    """The verb of a tool that changes something, by what it says of itself or by its name; empty where it reads.

    `others_say`: tools beside it say that they only read, so that one which says nothing probably does not.
    """
    if tool.annotations.read_only:
        return ""
    act, _ = verb_and_object(tool.name)
    acts = tool.annotations.read_only is False or others_say
    return act or ((words(tool.name)[:1] or [""])[0] if acts else "")


def _words_of(tool: Tool) -> dict[str, float]:
    properties = tool.input_schema.get("properties", {})
    words = {word: 0.3 for text in [tool.description, *properties] for word in stems(text)}
    return words | dict.fromkeys(stems(tool.name), 1.0)


class _Arguments:
    """Values for the arguments of one tool: of the prompt, of earlier results, and those that the schema names."""

    def __init__(
        self, root: Mapping[str, Any], prompt: PromptValues, returned: Sequence[ResultValue], about: frozenset[str]
    ) -> None:
        """`root`: the tool's schema, to which references lead; `about`: the words of the tool's name."""
        self._root = root
        self._prompt = prompt
        self._returned = returned
        self._about = about

    def objects(self, schema: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[dict[str, Any], float]]:
        """Objects of a schema with their weights, the heaviest first; none where a required part has no value."""
        required = set(schema.get("required", ()))
        names, choices = [], []
        for name, inner in schema.get("properties", {}).items():
            found = self._choices(name, inner, depth)
            if name not in required:
                given = [_Choice(one.value, one.weight - _OPTIONAL_COSTS, one.source) for one in found]
                found = sorted([*given, _Choice(_ABSENT, 0.0)], key=lambda one: -one.weight)
            if not found:
                return
            names.append(name)
            choices.append(found)
        count = max(1, len(required))
        more = _NEEDS_NOTHING if depth == 0 and not required else 0.0
        weighed = []
        for chosen, weight in islice(_best_first(choices), _MOST_COMBINATIONS):
            arguments = {name: one.value for name, one in zip(names, chosen, strict=True) if one.value is not _ABSENT}
            covered = len({place for one in chosen if one.source is not None for place in _places(one.source)})
            # The mean: else a tool with many arguments that may be left out is all that is tried once a row was read.
            weighed.append((arguments, weight / max(count, len(arguments)) + more + 0.1 * covered))
        yield from sorted(weighed, key=lambda pair: -pair[1])

    def _choices(self, name: str, given: Any, depth: int) -> list[_Choice]:
        """Values of one argument, the heaviest first."""
        schema = _resolved(given, self._root)
        found: list[_Choice] = []
        for one in schema.get("anyOf") or schema.get("oneOf") or [schema]:
            merged = {
                **{key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")},
                **_resolved(one, self._root),
            }
            found += self._of_type(name, merged, depth)
        best: dict[str, _Choice] = {}
        for choice in found:
            key = json.dumps(choice.value, sort_keys=True, default=str)
            if key not in best or best[key].weight < choice.weight:
                best[key] = choice
        return sorted(best.values(), key=lambda one: -one.weight)[:_MOST_VALUES]

    def _of_type(self, name: str, schema: Mapping[str, Any], depth: int) -> list[_Choice]:
        prompt = self._prompt
        wanted = frozenset(stems(name)) | frozenset(stems(without_id(name)))
        earlier = self._of_results(name, wanted)
        told = [_Choice(schema[key], 0.9) for key in ("const", "default") if schema.get(key) is not None]
        told += [_Choice(value, 0.5) for value in schema.get("examples", ())]
        kind = schema.get("type")
        if "const" in schema:
            return told
        if "enum" in schema:
            return [_Choice(value, _named(value, prompt)) for value in schema["enum"] if value is not None] + told
        if kind == "boolean":
            named = 0.6 * bool(wanted & prompt.vocabulary)
            return [_Choice(True, 0.6 + named), _Choice(False, 0.4), *told]
        if kind in ("integer", "number"):
            found = [
                _Choice(_as_number(one.value, kind), one.weight + 1.5 * prompt.near(one, wanted), one)
                for one in prompt.numbers
                if kind == "number" or float(one.value).is_integer()
            ]
            found += [
                _Choice(_as_number(value, kind), weight)
                for value, weight in earlier
                if is_number(value) and (kind == "number" or float(value).is_integer())
            ]
            if kind == "integer":
                found.append(_Choice(max(1, math.ceil(schema.get("minimum", 1))), 0.1))
            return [one for one in found if _within(one.value, schema)] + told
        if kind == "string":
            found = [
                _Choice(one.value, one.weight + self._fits(one, name, wanted, schema), one) for one in prompt.texts
            ]
            found += [_Choice(str(value), weight) for value, weight in earlier]
            return [one for one in found if _may_be(one.value, schema)] + told
        if kind == "array" and depth < _DEEPEST:
            items = self._choices(name, schema.get("items", {}), depth + 1)
            several = [one for one in items if one.weight >= 1.9]
            lists = [_Choice([one.value], one.weight, one.source) for one in items[:4]]
            if len(several) > 1:
                ordered = sorted(several, key=lambda one: one.source.begin if one.source else 0)
                lists.append(_Choice([one.value for one in ordered], several[0].weight + 0.2))
            return [*lists, *told]
        if kind == "object" and depth < _DEEPEST and schema.get("properties"):
            return [_Choice(value, weight) for value, weight in islice(self.objects(schema, depth + 1), 4)]
        return told

    def _fits(self, one: PromptValue, name: str, wanted: frozenset[str], schema: Mapping[str, Any]) -> float:
        """How much better a text fits an argument than its form alone tells."""
        own = {stem(word) for word in str(one.value).split()}
        weight = 1.5 * self._prompt.near(one, wanted) + 0.8 * self._prompt.near(one, self._about)
        weight -= 1.5 * len(own & (wanted | self._about)) / len(own) if own else 0.0
        pattern = _FORMATS.get(str(schema.get("format")))
        is_of_form = pattern is not None and pattern.fullmatch(one.value) is not None
        for form in ("email", "date", "time"):
            if form in wanted or (form == "date" and "day" in wanted):
                is_of_form = is_of_form or _FORMATS[form].fullmatch(one.value) is not None
        if is_of_form:
            weight += 1.5
        if without_id(name) != " ".join(stems(name)) and any(sign.isdigit() for sign in one.value):
            weight += 0.3
        return weight

    def _of_results(self, name: str, wanted: frozenset[str]) -> Iterator[tuple[Any, float]]:
        """Values of earlier results, those with more weight whose names are like the argument's or the tool's."""
        for one in self._returned:
            said = frozenset(stems(last_name(one.path)))
            place = frozenset(stems(one.tool)) | frozenset(word for part in one.path for word in stems(str(part)))
            same = said == frozenset(stems(name))
            is_key = bool(said & _KEYS and wanted & place)
            weight = 3.2 if same else 3.0 if is_key else 2.4 if wanted & said else 1.8 if self._about & said else 0.4
            yield one.value, weight + one.row_fits


def _places(value: PromptValue) -> range:
    return range(value.begin, value.end)


def _best_first(choices: Sequence[Sequence[_Choice]]) -> Iterator[tuple[list[_Choice], float]]:
    """Every combination of one choice of each, by the sum of their weights. One value is not taken for two arguments
    unless nothing else is left."""

    def weigh(places: tuple[int, ...]) -> float:
        chosen = [options[place] for options, place in zip(choices, places, strict=True)]
        used = Counter(place for one in chosen if one.source is not None for place in _places(one.source))
        return sum(one.weight for one in chosen) - 1.5 * sum(count - 1 for count in used.values())

    start = tuple(0 for _ in choices)
    waiting, seen = [(-weigh(start), start)], {start}
    while waiting:
        weight, places = heapq.heappop(waiting)
        yield [options[place] for options, place in zip(choices, places, strict=True)], -weight
        for number, place in enumerate(places):
            following = (*places[:number], place + 1, *places[number + 1 :])
            if place + 1 < len(choices[number]) and following not in seen:
                seen.add(following)
                heapq.heappush(waiting, (-weigh(following), following))


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with what its references add, and one type: the first that is not null."""
    found = followed(schema, root)
    if isinstance(found.get("type"), list):
        kinds = [kind for kind in found["type"] if kind != "null"]
        return {**found, "type": kinds[0] if kinds else "null"}
    return found


def _named(value: Any, prompt: PromptValues) -> float:
    said = stems(str(value))
    return 0.3 + 2.5 * sum(word in prompt.vocabulary for word in said) / max(1, len(said))


def _may_be(value: Any, schema: Mapping[str, Any]) -> bool:
    text = str(value)
    pattern = _FORMATS.get(str(schema.get("format")))
    if pattern is not None and pattern.fullmatch(text) is None:
        return False
    if not schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text)):
        return False
    if not isinstance(schema.get("pattern"), str):
        return True
    from mcp_bridge.toolsets.schema_checks import SchemaTimeout, pattern_found

    try:  # in a limited time: the pattern is the server's
        return pattern_found(schema["pattern"], text)
    except SchemaTimeout:  # the tool decides
        return True


def _within(value: float, schema: Mapping[str, Any]) -> bool:
    if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return (not isinstance(above, int | float) or value > above) and (
        not isinstance(below, int | float) or value < below
    )


def _as_number(value: Any, kind: str) -> Any:
    return int(value) if kind == "integer" else value


def values_of(tool: str, content: Any, prompt: PromptValues) -> list[ResultValue]:
    """The plain values of a result, for the arguments of the next call; of a text, what looks like values."""
    if isinstance(content, str):
        said = PromptValues(content)
        return [ResultValue((), one.value, tool, 0.0) for one in [*said.numbers, *said.texts] if one.is_telling]
    found = []
    for path, value in leaves(content):
        row = at(content, path[:-1])
        beside = {word for _, other in leaves(row) for word in stems(str(other))} if isinstance(row, Mapping) else set()
        in_list = any(isinstance(part, int) for part in path)
        fits = min(2, len(beside & prompt.vocabulary)) if in_list else 0
        found.append(ResultValue(path, value, tool, float(fits)))
    return found
