"""Checks of values against JSON Schemas that always come to an end.

`jsonschema` matches patterns with Python's `re`, which some patterns hold for ever, and goes through `anyOf` and `$ref`
as often as a schema leads it there, which thirty short definitions can make a thousand million times. Both run on the
event loop, where no time limit of a call reaches them. So patterns are matched by `regex`, which has a time limit, and
a whole check has one too. A value that could not be checked in time is not valid.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry

from .multiples import multiple_of
from .patterns import compiled_pattern, with_readable_patterns
from .subschemas import NAMED

PATTERN_S = 0.25
"""The most processor time of one pattern on one text."""
_CHECK_S = 0.5
_CHECK_S_PER_MILLION_CHARS = 2.0
"""What a large value may take on top: a plain check of a million characters takes half a second."""
_MOST_COUNTED = 20_000_000
_SHOWN = 60
_DESCRIBING = frozenset(
    {"$comment", "$recursiveAnchor", "default", "deprecated", "description", "examples", "readOnly", "title"}
    | {"writeOnly"}
)
"""Keywords that say nothing of which values are valid; what stands under them may be anything."""
_NAMED = NAMED | {"$defs", "definitions", "dependencies"}


class SchemaTimeout(Exception):
    """A value could not be checked in time. The message says what took so long."""


def compiled_schema(
    schema: Any, left_out: Callable[[str], None] = lambda _: None, *, is_known_valid: bool = False
) -> Any:
    """A validator of `jsonschema` for `schema`, to be used through `schema_errors`. It never fetches anything.

    `left_out` is told each part that is not checked: patterns that Python cannot read, and `unevaluatedProperties`
    beside `patternProperties`, which `jsonschema` matches with `re`. Raises `SchemaError` where the schema is not a
    valid one.
    """
    readable = with_readable_patterns(schema, left_out)
    kind = validator_for(readable, default=Draft202012Validator)
    text = _text(readable)
    if not is_known_valid:
        _require_valid(kind, readable, text)
    has_both = text is None or ('"patternProperties"' in text and '"unevaluatedProperties"' in text)
    if has_both:
        left_out("unevaluatedProperties beside patternProperties")
    return _bounded(kind, not has_both)(readable, registry=Registry())


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


def _text(schema: Any) -> str | None:
    """The schema as JSON; None where it is something else."""
    try:
        text = json.dumps(schema)
        return text if json.loads(text) == schema else None
    except (TypeError, ValueError, RecursionError):
        return None


def _require_valid(kind: Any, schema: Any, text: str | None) -> None:
    """Raises `SchemaError`. Takes milliseconds, so it is done once for each text: the same tools come again with every
    session and every sandbox."""
    if text is None:
        _check_schema(kind, schema)
    else:
        _check_schema_text(kind, text)


@functools.lru_cache(maxsize=2048)
def _check_schema_text(kind: Any, text: str) -> None:
    _check_schema(kind, json.loads(text))


def _check_schema(kind: Any, schema: Any) -> None:
    """As `check_schema` of jsonschema, but for keywords that only describe."""
    checker = validator_for(kind.META_SCHEMA, default=Draft202012Validator)(kind.META_SCHEMA)
    problems = [one for one in checker.iter_errors(schema) if not _only_describes(one)]
    if problems:
        raise SchemaError.create_from(best_match(problems))


def _only_describes(problem: ValidationError) -> bool:
    steps = list(problem.absolute_path)
    return bool(steps) and steps[-1] in _DESCRIBING and not (len(steps) > 1 and steps[-2] in _NAMED)


@functools.cache
def _bounded(kind: Any, checks_unevaluated: bool) -> Any:
    """`kind`, a class of validators, with keywords that keep to the time of the check."""
    ours = {
        "additionalProperties": _additional_properties(kind.VALIDATORS.get("additionalProperties")),
        "multipleOf": multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
    }
    if not checks_unevaluated:
        ours["unevaluatedProperties"] = _allow
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


def _allow(*_: Any) -> None:
    return None


def _found(pattern: str, text: str) -> bool:
    """Whether `text` holds what `pattern` asks for; also where Python cannot read the pattern."""
    compiled = compiled_pattern(pattern)
    try:
        return compiled is None or compiled.search(text, timeout=PATTERN_S) is not None
    except TimeoutError:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
        raise SchemaTimeout(
            f"matching {shown!r} against the pattern {pattern!r} took more than {PATTERN_S} s"
        ) from None


def _pattern(validator: Any, pattern: str, value: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not _found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "object"):
        for pattern, schema in patterns.items():
            for name, inner in value.items():
                if compiled_pattern(pattern) is not None and _found(pattern, name):
                    yield from validator.descend(inner, schema, path=name, schema_path=pattern)


def _additional_properties(keyword: Any) -> Any:
    """`keyword` of `jsonschema`, for the properties whose names fit no pattern."""

    def additional_properties(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        patterns = schema.get("patternProperties")
        if patterns and validator.is_type(value, "object"):
            value = {name: one for name, one in value.items() if not any(_found(each, name) for each in patterns)}
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
