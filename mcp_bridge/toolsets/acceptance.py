"""Says quickly that a value satisfies a JSON Schema; whatever it does not accept is for `jsonschema` to judge.

`jsonschema` takes 40 microseconds for a small object, which at ten thousand calls a second is half of a core. The
compiled check here takes less than one, but its dialect differs in corners (patterns, huge numbers, formats). So it is
built only for schemas of keywords on which both agree, and only its yes counts: a no, and every error message, comes
from `jsonschema`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .plain import check_plain, is_plain

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_MOST_TIMES = 1000
_EXACT = 2**53
"""Integers below this are the same number in every JSON library."""


class Acceptance:
    """A function that is true only of values that satisfy its schema, and of plain JSON values only."""

    __slots__ = ("_is_valid",)

    def __init__(self, is_valid: Callable[[Any], bool]) -> None:
        self._is_valid = is_valid

    def __call__(self, value: Any) -> bool:
        try:
            check_plain(value)
            return self._is_valid(value)
        except (ValueError, OverflowError, RecursionError):
            return False

    def of_plain(self, value: Any) -> bool:
        """The same of a value that is known to be plain, such as a copy that `plain_copy` made."""
        try:
            return self._is_valid(value)
        except (ValueError, OverflowError, RecursionError):
            return False


def compile_acceptance(schema: Any) -> Acceptance | None:
    """What accepts values by `schema`, or `None` where it has keywords with corners.

    `schema` must already be known to be a valid one.
    """
    if not isinstance(schema, dict) or schema.get("$schema", _DIALECT) != _DIALECT or not is_plain(schema):
        return None
    plain = {key: value for key, value in schema.items() if key != "$schema"}
    try:
        if not (_is_simple(plain, schema) and _is_bounded(schema)):
            return None
    except RecursionError:  # a chain of references that is longer than Python goes down
        return None
    import jsonschema_rs

    try:
        compiled = jsonschema_rs.Draft202012Validator(schema)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return None
    return Acceptance(compiled.is_valid)


def _is_simple(schema: Any, root: Mapping[str, Any]) -> bool:
    if isinstance(schema, bool):
        return True
    return isinstance(schema, dict) and all(_keyword_is_simple(key, value, root) for key, value in schema.items())


def _keyword_is_simple(key: str, value: Any, root: Mapping[str, Any]) -> bool:
    if key in _NOTES or key.startswith("x-"):
        return True
    if key in {"properties", "$defs"}:
        return isinstance(value, dict) and all(_is_simple(part, root) for part in value.values())
    if key in {"items", "additionalProperties"}:
        return _is_simple(value, root)
    if key in {"anyOf", "allOf", "prefixItems"}:
        return isinstance(value, list) and all(_is_simple(part, root) for part in value)
    return _assertion_is_simple(key, value, root)


def _assertion_is_simple(key: str, value: Any, root: Mapping[str, Any]) -> bool:
    if key == "type":
        named = value if isinstance(value, list) else [value]
        return all(isinstance(one, str) and one in _TYPES for one in named)
    if key == "required":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if key == "enum":
        return isinstance(value, list) and all(_is_exact(one) for one in value)
    if key == "const":
        return _is_exact(value)
    if key in _BOUNDS:
        return type(value) in {int, float} and -_EXACT < value < _EXACT
    if key in _COUNTS:
        return type(value) is int and 0 <= value < _EXACT
    return key == "$ref" and _leads_somewhere(value, root)


def _is_exact(value: Any) -> bool:
    if type(value) is int:
        return -_EXACT < value < _EXACT
    return value is None or type(value) in {bool, str}


def _leads_somewhere(reference: Any, root: Mapping[str, Any]) -> bool:
    """Whether a `$ref` names the root or one of its `$defs` by a name without escapes."""
    if reference == "#":
        return True
    if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
        return False
    name = reference.removeprefix("#/$defs/")
    definitions = root.get("$defs")
    return name.replace("_", "").isalnum() and name.isascii() and isinstance(definitions, dict) and name in definitions


def _is_bounded(root: dict[str, Any]) -> bool:
    """Whether each part of a value is gone through a thousand times at most: the compiled check has no time limit.

    Without an end it is where a reference leads back to itself without going into the value. In a schema that holds
    itself twice in one place, ten levels of a value take a thousand times as long as one.
    """
    places = {f"#/$defs/{name}": schema for name, schema in root.get("$defs", {}).items()} | {"#": root}
    named = {place: _references(schema) for place, schema in places.items()}
    if not any(named.values()):
        return True
    in_place = {place: set(_references_in_place(schema)) for place, schema in places.items()}
    if any(place in _closure(place, in_place) for place in places):
        return False
    reached = {place: _closure(place, named) for place in places}
    recursive = {place for place in places if place in reached[place]}
    leads_back = {place for place in places if place in recursive or reached[place] & recursive}
    times: dict[str, float] = {}

    def times_at(place: str) -> float:
        if place not in times:
            times[place] = 0  # where it holds itself; that it does so once is seen below
            times[place] = times_under(places[place])
        return times[place]

    def times_under(schema: Any) -> float:
        if not isinstance(schema, dict):
            return 1
        parts, inside = [*schema.get("anyOf", ()), *schema.get("allOf", ())], _inside(schema)
        ways = [schema.get("$ref") in leads_back, *(bool(_references(part) & leads_back) for part in parts)]
        if sum(ways) + any(_references(one) & leads_back for one in inside) > 1:
            return math.inf
        here = sum(map(times_under, parts)) + (times_at(schema["$ref"]) if "$ref" in schema else 0)
        return here + max(map(times_under, inside), default=1)

    return all(times_at(place) <= _MOST_TIMES for place in places)


def _closure(place: str, named: Mapping[str, set[str]]) -> set[str]:
    """The places that the references of `place` lead to, and theirs."""
    found: set[str] = set()
    pending = [place]
    while pending:
        for one in named.get(pending.pop(), ()):
            if one not in found:
                found.add(one)
                pending.append(one)
    return found


def _inside(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas that apply to parts of the value."""
    one = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return [*schema.get("properties", {}).values(), *one, *schema.get("prefixItems", ())]


def _references(schema: Any) -> set[str]:
    """The references of a schema and of all that is written in it."""
    found: set[str] = set()
    pending = [schema]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            found |= {one["$ref"]} if "$ref" in one else set()
            pending += [*_inside(one), *one.get("anyOf", ()), *one.get("allOf", ())]
    return found


def _references_in_place(schema: Any) -> list[str]:
    """The references of a schema that apply to the very value it applies to."""
    if not isinstance(schema, dict):
        return []
    found = [schema["$ref"]] if "$ref" in schema else []
    for key in ("anyOf", "allOf"):
        for part in schema.get(key, []):
            found += _references_in_place(part)
    return found
