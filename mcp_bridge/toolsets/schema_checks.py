"""JSON Schemas: which of them can be used, and checks of values against them that always come to an end.

`jsonschema` matches patterns with Python's `re`, which some patterns hold for ever, and goes through `anyOf` and `$ref`
as often as a schema leads it there, which thirty short definitions can make a thousand million times. Both run on the
event loop, where no time limit of a call reaches them. So patterns are matched by `regex`, which has a time limit, and
a whole check has one too. A value that could not be checked in time is not valid.
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
import itertools
import json
import logging
import math
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ..records import LeftOut, Tool
from ..safe_text import shortened
from .schema_parts import ALL_NAMED, SharedParts, replaced, schemas_in

logger = logging.getLogger(__name__)

_SAME_VALUE = ("allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
"""Keywords whose schemas are applied to the very value that theirs is applied to."""
_POINTER_SIGNS = frozenset("/~%")
_MOVING = ("$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef")
_DESCRIBING = frozenset(
    {"$comment", "$recursiveAnchor", "default", "deprecated", "description", "examples", "readOnly", "title"}
    | {"writeOnly"}
)
"""Keywords that say nothing of which values are valid; what stands under them may be anything."""


# ---------------------------------------------------------------------------------------------------------------------
# Patterns of JSON Schema are in JavaScript's dialect of regular expressions. What Python cannot read of it (`\p{L}`,
# `(?<year>...)`) makes a schema no worse for a model, and is not checked here.

# To `regex` a brace may begin a fuzzy match; to JavaScript and `re` one that holds no count is a letter.
_BRACE = re.compile(r"(\\.)|\{(?!\d+\}|\d*,\d*\})", re.DOTALL)
_MOST_PARTS = 100_000
"""Of one pattern, and twice that of all patterns of a schema: `regex` needs a tenth of a second to compile so many, and
about 400 bytes for each."""
_LONG = 500
"""Parts of a pattern. One of more may take megabytes, so only a few are kept."""
_ITEM = re.compile(
    r"(?P<open>\()|(?P<close>\))|\{(?P<least>\d{1,9})(?:,\d*)?\}|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|\\.|.", re.DOTALL
)
_FURTHER_NAMES = ("additionalProperties", "unevaluatedProperties")
_IGNORES_CASE = re.compile(r"\(\?[a-zA-Z]*i")
_PARTS_OF_A_RANGE = 2000
"""Of characters whose case is ignored: `re` goes through all of them."""


def parts_of(pattern: str) -> int:
    """About how many parts a pattern is compiled into; no more than is counted up to. What must come `n` times is
    written out `n` times and once more, and so a hundred letters can become more than any memory holds."""
    of_a_range = _PARTS_OF_A_RANGE if _IGNORES_CASE.search(pattern) else 1
    sizes, last = [0], 0
    for item in _ITEM.finditer(pattern):
        if item["open"]:
            sizes.append(0)
            continue
        if item["close"] and len(sizes) > 1:
            last = sizes.pop() + 1
        elif item["least"]:
            more = last * int(item["least"]) if int(item["least"]) > 1 else 0
            sizes[-1] += more
            last += more
            continue
        else:
            last = 1 + of_a_range * item["set"].count("-") if item["set"] else 1
        sizes[-1] += last
        if sizes[-1] > 2 * _MOST_PARTS:
            break
    return sum(sizes)


def compiled_pattern(pattern: str) -> Any:
    """A pattern of `regex`, whose `search` takes a time limit; None where Python cannot read it as `re` does, or would
    take too long to compile it."""
    is_long = len(pattern) > _LONG or _has_many_parts(pattern)
    return _compiled_long(pattern) if is_long else _compiled(pattern)


@functools.lru_cache(maxsize=4096)
def _has_many_parts(pattern: str) -> bool:
    return parts_of(pattern) > _LONG


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    import regex

    if parts_of(pattern) > _MOST_PARTS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[`, which a later Python may read otherwise
            re.compile(pattern)
        return regex.compile(_BRACE.sub(lambda found: found[1] or r"\{", pattern), cache_pattern=False)
    except (re.error, regex.error, OverflowError, RecursionError):
        return None


@functools.lru_cache(maxsize=32)
def _compiled_long(pattern: str) -> Any:
    try:
        return _compiled.__wrapped__(pattern)
    finally:
        re.purge()  # it keeps the latest 512, too


def is_readable(pattern: Any) -> bool:
    """Whether Python can read a pattern, in time."""
    return isinstance(pattern, str) and compiled_pattern(pattern) is not None


def with_readable_patterns(schema: Any, leave_out: Callable[[str], None], parts: SharedParts | None = None) -> Any:
    """`schema` without the patterns that Python cannot read, or not in time, and itself where it has none. `leave_out`:
    is told each. `parts`: see `compiled_schema`.

    Where a name may fit a pattern that was left out, further names are let through.
    """
    left = 2 * _MOST_PARTS

    def reads(pattern: Any) -> bool:
        nonlocal left
        if not isinstance(pattern, str) or (size := parts_of(pattern)) > min(left, _MOST_PARTS):
            return False
        left -= size
        return compiled_pattern(pattern) is not None

    def readable(one: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
        pattern, named = one.get("pattern"), one.get("patternProperties")
        if isinstance(pattern, str) and not reads(pattern):
            tell(pattern)
            one = {key: value for key, value in one.items() if key != "pattern"}
        if isinstance(named, dict) and (left_out := [name for name in named if not reads(name)]):
            for name in left_out:
                tell(name)
            one = {key: value for key, value in one.items() if key not in _FURTHER_NAMES}
            one["patternProperties"] = {name: inner for name, inner in named.items() if name not in left_out}
        return one

    parts = SharedParts() if parts is None else parts
    return parts.rewritten("patterns", schema, readable, leave_out) if isinstance(schema, dict) else schema


# ---------------------------------------------------------------------------------------------------------------------
# Checks in a limited time

PATTERN_S = 0.25
"""The most processor time of one pattern on one text."""
_CHECK_S = 0.5
_CHECK_S_PER_MILLION_CHARS = 2.0
"""What a large value may take on top: a plain check of a million characters takes half a second."""
_MOST_COUNTED = 20_000_000
_SHOWN = 60
_UNTIMED_TOGETHER = frozenset({"patternProperties", "unevaluatedProperties"})
_SCALAR = (str, int, float, bool, type(None))


class SchemaTimeout(Exception):
    """A value could not be checked in time. The message says what took so long."""


def compiled_schema(
    schema: Any,
    left_out: Callable[[str], None] = lambda _: None,
    *,
    is_known_valid: bool = False,
    parts: SharedParts | None = None,
) -> Any:
    """A validator of `jsonschema` for `schema`, to be used through `schema_errors`. It never fetches anything.

    `left_out` is told each part that is not checked: patterns that Python cannot read, and `unevaluatedProperties`
    beside `patternProperties`, which `jsonschema` matches with `re`. `parts`: what is known of other schemas that share
    parts with this one. Raises `SchemaError` where the schema is not a valid one.
    """
    parts = SharedParts() if parts is None else parts
    readable = with_readable_patterns(schema, left_out, parts)
    kind = _kind_of(readable)
    if not is_known_valid and not _is_valid(kind, readable, parts) and (problems := _schema_problems(kind, readable)):
        raise SchemaError.create_from(best_match(problems))
    try:
        has_both = _keys_among(_UNTIMED_TOGETHER, readable, parts) >= _UNTIMED_TOGETHER
    except RecursionError:  # a default or an example may be as deep as it likes
        has_both = True
    if has_both:
        left_out("unevaluatedProperties beside patternProperties")
    return _bounded(kind, not has_both)(readable, registry=Registry())


def _kind_of(schema: Any) -> Any:
    """The class of validators of `jsonschema` that a schema asks for."""
    try:
        return validator_for(schema, default=Draft202012Validator)
    except (AttributeError, TypeError, ValueError):  # `$schema` is not an address; the check of the schema says so
        return Draft202012Validator


def schema_errors(validator: Any, value: Any, most: int | None = None) -> list[ValidationError]:
    """What is wrong with `value`, `most` errors at most. `validator`: made by `compiled_schema`.

    Raises `SchemaTimeout`, and what `jsonschema` raises where the schema cannot be applied.
    """
    token = _budget.set(_Budget(value))
    try:
        return list(itertools.islice(validator.iter_errors(value), most))
    finally:
        _budget.reset(token)


class _Budget:
    """The time of one check. Processor time of this thread: a machine that is busy elsewhere makes no value invalid."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._is_stretched = False
        self._limit_s = _CHECK_S
        self._began, self._began_cpu = time.monotonic(), time.thread_time()

    def check(self) -> None:
        # The clock that is cheap to read is never behind the other.
        if time.monotonic() - self._began < self._limit_s or time.thread_time() - self._began_cpu < self._limit_s:
            return None
        if not self._is_stretched:
            self._is_stretched = True
            self._limit_s += _CHECK_S_PER_MILLION_CHARS * _chars(self._value) / 1_000_000
            return self.check()
        raise SchemaTimeout(f"checking it against the schema took more than {self._limit_s:.2g} s")


_budget: ContextVar[_Budget | None] = ContextVar("time of a schema check", default=None)


def _chars(value: Any) -> int:
    """About how long `value` is as JSON; no more than is counted up to, for a list may hold itself."""
    count, pending = 0, [value]
    while pending and count < _MOST_COUNTED:
        one = pending.pop()
        count += len(one) + 3 if isinstance(one, str) else 3
        if isinstance(one, Mapping):
            pending += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            pending += one
    return count


def _keys_among(names: frozenset[str], value: Any, parts: SharedParts) -> frozenset[str]:
    """Those of `names` that are keys anywhere in `value`; all of them where it holds what JSON cannot."""

    def find(one: Any) -> frozenset[str]:
        found = names & one.keys() if isinstance(one, dict) else frozenset[str]()
        inner = one.values() if isinstance(one, dict) else one
        return found.union(*(_keys_among(names, each, parts) for each in inner if not isinstance(each, _SCALAR)))

    if isinstance(value, _SCALAR):
        return frozenset()
    return parts.once(names, value, find) if isinstance(value, dict | list) else names


def _is_valid(kind: Any, schema: Any, parts: SharedParts) -> bool:
    """Whether a schema is certainly a valid one: where each schema in it is, when those inside it are left out."""

    def find(one: dict[str, Any]) -> bool:
        alone = replaced(one, lambda _: True)
        return _is_valid_alone(kind, alone) and all(_is_valid(kind, each, parts) for each in schemas_in(one))

    return parts.once(kind, schema, find) if isinstance(schema, dict) else isinstance(schema, bool)


def _is_valid_alone(kind: Any, schema: Any) -> bool:
    with contextlib.suppress(OverflowError, RecursionError, TypeError, ValueError):  # for what JSON cannot hold
        if _quick_check(kind)(schema):
            return True
    return not _schema_problems(kind, schema)


@functools.cache
def _quick_check(kind: Any) -> Callable[[Any], bool]:
    """Of a schema by its metaschema, in a hundredth of the time of `jsonschema`. It gives no reasons, and does not know
    which keywords only describe."""
    return jsonschema_rs.validator_for(kind.META_SCHEMA, validate_formats=False, offline=True).is_valid


def _schema_problems(kind: Any, schema: Any) -> list[ValidationError]:
    """What `check_schema` of jsonschema finds, but for keywords that only describe."""
    checker = validator_for(kind.META_SCHEMA, default=Draft202012Validator)(kind.META_SCHEMA)
    return [one for one in checker.iter_errors(schema) if not _only_describes(one)]


def _only_describes(problem: ValidationError) -> bool:
    steps = list(problem.absolute_path)
    return bool(steps) and steps[-1] in _DESCRIBING and not (len(steps) > 1 and steps[-2] in ALL_NAMED)


@functools.cache
def _bounded(kind: Any, checks_unevaluated: bool) -> Any:
    """`kind`, a class of validators, with keywords that keep to the time of the check."""
    ours = {
        "additionalProperties": _additional_properties(kind.VALIDATORS.get("additionalProperties")),
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
    }
    if not checks_unevaluated:
        ours["unevaluatedProperties"] = lambda *_: None
    bounded = extend(kind, {name: _timed(ours.get(name, keyword)) for name, keyword in kind.VALIDATORS.items()})
    evolve = bounded.evolve

    def evolve_in_kind(self: Any, **changes: Any) -> Any:
        # By a schema's own `$schema`, `jsonschema` goes on in a class of its own, which has no time limit.
        schema = changes.get("schema")
        if isinstance(schema, Mapping) and "$schema" in schema:
            changes["schema"] = {key: value for key, value in schema.items() if key != "$schema"}
        return evolve(self, **changes)

    bounded.evolve = evolve_in_kind
    return bounded


def _timed(keyword: Any) -> Any:
    def timed(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        budget = _budget.get()
        if budget is not None:
            budget.check()
        return keyword(validator, wanted, value, schema)

    return timed


def pattern_found(pattern: str, text: str) -> bool:
    """Whether `text` holds what `pattern` asks for; also where Python cannot read the pattern."""
    compiled = compiled_pattern(pattern)
    try:
        return compiled is None or compiled.search(text, timeout=PATTERN_S) is not None
    except TimeoutError:
        raise SchemaTimeout(
            f"matching {shortened(text, _SHOWN)!r} against the pattern {pattern!r} took more than {PATTERN_S} s"
        ) from None


def _pattern(validator: Any, pattern: str, value: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not pattern_found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "object"):
        for pattern, schema in patterns.items():
            for name, inner in value.items():
                if compiled_pattern(pattern) is not None and pattern_found(pattern, name):
                    yield from validator.descend(inner, schema, path=name, schema_path=pattern)


def _additional_properties(keyword: Any) -> Any:
    """`keyword` of `jsonschema`, for the properties whose names fit no pattern."""

    def additional_properties(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        patterns = schema.get("patternProperties")
        if patterns and validator.is_type(value, "object"):
            value = {
                name: one for name, one in value.items() if not any(pattern_found(each, name) for each in patterns)
            }
            schema = {key: one for key, one in schema.items() if key != "patternProperties"}
        return keyword(validator, wanted, value, schema)

    return additional_properties


def _unique_items(validator: Any, wanted: bool, value: Any, _: Any) -> Iterator[ValidationError]:
    # That of `jsonschema` compares each object with each other one: an hour for the rows of a large table.
    if wanted and validator.is_type(value, "array") and len({_identity(item) for item in value}) < len(value):
        yield ValidationError(f"{value!r} has non-unique elements")


def _identity(value: Any) -> Any:
    """Equal for values that are equal in JSON: 1 is 1.0 and not true."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, _identity(inner)) for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "array", tuple(map(_identity, value))
    return (type(value).__name__, value) if isinstance(value, bool) else value


def exact_multiple(step: int | float, times: int) -> int | float:
    """`times * step` as it is written: 57 times 0.01 is 0.57, and not 0.5700000000000001."""
    return step * times if isinstance(step, int) else float(_written(step) * times)


def _multiple_of(validator: Any, step: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    """The keyword, as `jsonschema` calls it, by the numbers as they are written: divided as floats, 19.99 is not a
    multiple of 0.01."""
    if validator.is_type(value, "number") and not is_multiple(value, step):
        yield ValidationError(f"{value!r} is not a multiple of {step}")


def is_multiple(value: int | float, step: int | float) -> bool:
    """Whether the value, as it is written, is `step` times a whole number."""
    if isinstance(step, int):
        return not value % step
    is_number = isinstance(value, int) or math.isfinite(value)
    return is_number and (_written(value) / _written(step)).denominator == 1


def _written(number: int | float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


# ---------------------------------------------------------------------------------------------------------------------
# Schemas of tools


def split_usable(tools: list[Tool], label: str) -> tuple[list[Tool], list[LeftOut]]:
    """The tools whose arguments can be checked, and the others with the reason.

    An output schema that cannot be used costs no tool: it is dropped, with a warning that the results are not checked.
    """
    usable, left_out, parts = [], [], SharedParts()
    for tool in tools:
        name, source = tool.name_at_source or tool.name, tool.source or label
        if (problem := schema_problem(tool.input_schema, parts)) is not None:
            left_out.append(LeftOut(tool=name, source=source, reason=f"its input schema {problem}"))
            continue
        if tool.output_schema is not None and (problem := schema_problem(tool.output_schema, parts)) is not None:
            logger.warning("tool %r of %s: its output schema %s; its results are not checked", name, source, problem)
            tool = tool.model_copy(update={"output_schema": None})
        usable.append(tool)
    return usable, left_out


def schema_problem(schema: Mapping[str, Any], parts: SharedParts | None = None) -> str | None:
    """Why a schema of a tool cannot be used, to be read after "its schema"; None where it can. `parts`: see
    `compiled_schema`."""
    parts = SharedParts() if parts is None else parts
    try:
        compiled_schema(schema, parts=parts)
        readable = with_readable_patterns(schema, lambda _: None, parts)
        return None if _has_sound_references(readable, parts) else _reference_problem(readable, parts)
    except SchemaError as error:
        return f"is not a valid JSON Schema: {error.message} at {error.json_path}"
    except RecursionError:
        return "is nested too deeply"
    except ValueError as error:
        return f"cannot be read: {error}"  # an `$id` that is not an address


@dataclass(frozen=True)
class _References:
    """Those in a part of a schema. `on_value`: those that are applied to the very value that the part is applied to."""

    all: frozenset[str] = frozenset()
    on_value: frozenset[str] = frozenset()


_NONE = _References()


def _has_sound_references(schema: Mapping[str, Any], parts: SharedParts) -> bool:
    """Whether all references certainly lead to definitions of the schema itself, and none back to itself for the same
    value. Each definition is looked at once, though many schemas have it."""
    definitions = schema.get("$defs", {})
    if not isinstance(schema, dict) or not isinstance(definitions, dict) or _POINTER_SIGNS & set("".join(definitions)):
        return False
    places = {f"#/$defs/{name}": one for name, one in definitions.items()}
    root = {key: value for key, value in schema.items() if key != "$defs"}
    found = {place: _references(one, parts) for place, one in [("#", root), *places.items()]}
    if not all(one.all <= places.keys() for one in found.values()):
        return False
    try:
        graphlib.TopologicalSorter({place: one.on_value for place, one in found.items()}).prepare()
    except graphlib.CycleError:
        return False
    return True


def _references(part: Any, parts: SharedParts) -> _References:
    def find(one: dict[str, Any]) -> _References:
        inside = [_references(each, parts) for each in schemas_in(one)]
        same = [_references(each, parts) for each in _on_the_same_value(one)]
        # What moves the base of references is left to `_reference_problem`: it is not a name of a definition.
        own = frozenset(str(one[key]) for key in ("$ref", *_MOVING) if key in one)
        if not own and not any(each.all for each in inside):
            return _NONE
        return _References(own.union(*(each.all for each in inside)), own.union(*(each.on_value for each in same)))

    return parts.once(_References, part, find) if isinstance(part, dict) else _NONE


def _reference_problem(schema: Mapping[str, Any], parts: SharedParts) -> str | None:
    """What is wrong with the first reference that cannot be followed inside the schema, or that leads back to itself
    for the same value, which would be checked for ever. Nothing is ever fetched."""
    kind = _kind_of(schema)
    keywords = [keyword for keyword in ("$ref", "$dynamicRef") if keyword in kind.VALIDATORS]
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    uri = root.id() or ""
    pending = deque([(root, Registry().with_resource(uri, root).resolver(uri))])
    applied: dict[int, list[int]] = {}
    references: dict[int, str] = {}
    while pending:
        one, resolver = pending.popleft()
        here = id(one.contents)
        if here in applied or not isinstance(one.contents, Mapping):
            continue
        applied[here] = [id(inner) for inner in _on_the_same_value(one.contents)]
        for reference in (one.contents[keyword] for keyword in keywords if keyword in one.contents):
            try:
                found = resolver.lookup(reference)
            except (Unresolvable, ValueError):  # the latter of what is not an address, and of a list's places
                return f"has a reference that leads nowhere: {reference!r}"
            if not _is_valid(kind, found.contents, parts):
                return f"has a reference that leads to no schema: {reference!r}"
            references[here] = reference
            applied[here].append(id(found.contents))
            target = Resource.from_contents(found.contents, default_specification=DRAFT202012)
            pending.append((target, found.resolver))
        pending += [(inner, resolver.in_subresource(inner)) for inner in one.subresources()]
    try:
        graphlib.TopologicalSorter(applied).prepare()
    except graphlib.CycleError as circle:
        back = next(references[place] for place in circle.args[1] if place in references)
        return f"has a reference that leads back to itself: {back!r}"
    return None


def _on_the_same_value(schema: Mapping[str, Any]) -> Iterator[Any]:
    for keyword in _SAME_VALUE:
        inner = schema.get(keyword)
        if keyword == "dependentSchemas" and isinstance(inner, Mapping):
            yield from inner.values()
        else:
            yield from inner if isinstance(inner, list) else [inner]


@functools.lru_cache(maxsize=1024)
def result_check(tool: str, schema: str) -> Callable[[Any], str | None] | None:
    """From a result's structured content to what is wrong with it, in the words of the SDK's client, or None.

    `schema`: the tool's output schema as JSON; the sessions with a server share its check. None for one that cannot be
    used.
    """
    document = json.loads(schema)
    if schema_problem(document) is not None:
        return None

    def left_out(part: str) -> None:
        logger.warning("results of %r are not checked against %r, which cannot be checked here", tool, part)

    validator = compiled_schema(document, left_out, is_known_valid=True)

    def problem(structured: Any) -> str | None:
        try:
            error = best_match(schema_errors(validator, structured))
        except SchemaTimeout as timeout:
            return f"Structured content returned by tool {tool} could not be checked in time: {timeout}"
        except RecursionError:
            return f"Structured content returned by tool {tool} could not be checked: it is nested too deeply"
        return None if error is None else f"Invalid structured content returned by tool {tool}: {error}"

    return problem


# ---------------------------------------------------------------------------------------------------------------------
# Contradictions: keywords of a schema that no value satisfies together. Published schemas have them by mistake: a
# pattern that fits no text of the length that is asked for, a required name that nothing allows. A tool with one cannot
# be called at all, so such keywords are named and not enforced. Only keywords of one schema are compared; what its
# references and `allOf` add to it is not.

_BOUNDS = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
    ("exclusiveMinimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def satisfiable(schema: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """`schema` without those of its own keywords that nothing satisfies; itself where it has none. `tell`: hears of
    each in words."""
    for dropped, others in _contradicting(schema):
        tell(" and ".join(f"{keyword} {schema[keyword]!r:.120}" for keyword in (*dropped, *others)))
        # Which of the two is the mistake is not known; a model may still read the choices.
        choices = {"examples": schema["enum"]} if "enum" in dropped and schema["enum"] else {}
        schema = {**choices, **{key: value for key, value in schema.items() if key not in dropped}}
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    impossible = [name for name in names if not _is_allowed(schema, name)]
    if impossible:
        tell(f"required {', '.join(map(repr, impossible))}, which the same schema does not allow")
        schema = {**schema, "required": [name for name in names if name not in impossible]}
    return schema


def _contradicting(schema: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """The keywords to leave out, and those that they contradict."""
    bounds = (pair for pair in _BOUNDS if _are_crossed(schema, *pair))
    for low, high in itertools.islice(bounds, 1):
        yield (low, high), ()
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(choices, list):
        choices = None
    if choices == []:
        yield ("enum",), ()
    elif choices is not None and "type" in schema and not any(_has_type(one, schema["type"]) for one in choices):
        yield ("type", "enum" if "enum" in schema else "const"), ()
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and choices is None:
        lengths = [key for key in ("minLength", "maxLength") if key in schema]
        least, most = _number(schema.get("minLength")), _number(schema.get("maxLength"))
        if fits_nothing(pattern, int(least or 0), None if most is None else int(most)):
            yield ("pattern",), lengths


def _are_crossed(schema: Mapping[str, Any], low: str, high: str) -> bool:
    least, most = _number(schema.get(low)), _number(schema.get(high))
    if least is None or most is None:
        return False
    return least > most or (least == most and "exclusive" in low + high)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _has_type(value: Any, wanted: Any) -> bool:
    kinds = [one for one in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(one, str)]
    if isinstance(value, bool):
        return any(kind == "boolean" or kind not in _TYPES for kind in kinds)
    return any(isinstance(value, _TYPES.get(kind, object)) for kind in kinds)


def _is_allowed(schema: Mapping[str, Any], name: Any) -> bool:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    if name in properties:
        return properties[name] is not False
    return schema.get("additionalProperties") is not False or bool(schema.get("patternProperties"))


# ---------------------------------------------------------------------------------------------------------------------
# Texts are tried letter by letter, for as long as `regex` says that more letters could make them fit. Of letters that
# no part of the pattern tells apart one is enough. Where the search ends without a text that fits, there is none.

_MOST_TEXTS = 2000
_LONGEST_BEYOND = 64
_LETTERS = "".join(map(chr, [*range(97, 123), *range(48, 58), *range(65, 91), *range(32, 127), 9])) + "é中"
# No end of a line: Python's `$` stands before one, too, where JavaScript's does not.
_PART = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL)
_PLAIN_ESCAPE = re.compile(r"\\[dDwWsSAZnrtfv\W_]")
_PLACES = ("^", "$", r"\A", r"\Z")


@functools.lru_cache(maxsize=4096)
def fits_nothing(pattern: str, low: int, high: int | None) -> bool:
    """Whether it is certain that no text of `low` to `high` characters holds what `pattern` asks for."""
    compiled = compiled_pattern(pattern)
    parts = _PART.findall(pattern)
    if compiled is None or not _is_foreseen(pattern, parts):
        return False
    letters = _letters_told_apart(parts, pattern)
    pending, tried = [""], 0
    try:
        while pending:
            text, tried = pending.pop(), tried + 1
            if tried > _MOST_TEXTS or len(text) > low + _LONGEST_BEYOND:
                return False
            if compiled.search(text, partial=True, timeout=PATTERN_S) is None:
                continue
            if len(text) >= low and compiled.search(text, timeout=PATTERN_S):
                return False
            if high is None or len(text) < high:
                pending += [text + letter for letter in reversed(letters)]
    except TimeoutError:
        return False
    return True


def _is_foreseen(pattern: str, parts: Sequence[str]) -> bool:
    """Whether `regex` finds of every text that does not fit if more letters could make it fit. It does not for what
    looks back, and for what may not be followed by the text's end, because one more letter moves that."""
    groups, at = [False], 0
    for part in parts:
        if part == "(":
            if pattern.startswith(("(?<=", "(?<!"), at):
                return False
            groups.append(groups[-1] or pattern.startswith("(?!", at))
        elif part == ")" and len(groups) > 1:
            groups.pop()
        elif part in _PLACES and groups[-1]:
            return False
        at += len(part)
    return all(_PLAIN_ESCAPE.fullmatch(part) for part in parts if part[0] == "\\")


def _letters_told_apart(parts: Sequence[str], pattern: str) -> list[str]:
    tests = [test for part in dict.fromkeys(parts) if (test := _letter_test(part)) is not None]
    kinds: dict[tuple[bool, ...], str] = {}
    for letter in dict.fromkeys(_LETTERS + pattern):
        kinds.setdefault(tuple(test(letter) for test in tests), letter)
    return list(kinds.values())


def _letter_test(part: str) -> Callable[[str], bool] | None:
    if len(part) == 1 and part != ".":
        return part.__eq__
    compiled = None if part in _PLACES else compiled_pattern(part)
    return None if compiled is None else lambda letter: compiled.fullmatch(letter) is not None
