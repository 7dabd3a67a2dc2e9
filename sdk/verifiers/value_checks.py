"""Checks of values: equal JSON, a regular expression with a time limit, a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from mcp_bridge import safe_text

from ..errors import VerifierError
from ..records import Task


def same_json(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value (1 is 1.0), but True is not 1; the order of keys is ignored."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same_json(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def holds_json(whole: Any, part: Any) -> bool:
    """Whether `whole` has everything that `part` has: objects may have further keys, all else must be the same."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and holds_json(whole[key], value) for key, value in part.items())
    return same_json(whole, part)


def plain_values(value: Any) -> Iterator[str | int | float]:
    """All texts and numbers inside, at any depth, in their order; bools carry nothing by themselves."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, Mapping):
            rest += [*one.values()][::-1]
        elif isinstance(one, list | tuple):
            rest += one[::-1]
        elif isinstance(one, str | int | float) and not isinstance(one, bool):
            yield one


def missing_expected(task: Task, needed: str) -> VerifierError:
    """The error for a task without the entry of `task.expected` that a verifier needs; `needed` names it."""
    return VerifierError(f"task {task.id!r} expects {sorted(task.expected) or 'nothing'}; {needed}")


def wrong_expected(task: Task, key: str, problem: str) -> VerifierError:
    """The error for an entry of `task.expected` that a verifier cannot use; `problem` has the value and the fix."""
    return VerifierError(f"task {task.id!r}: expected[{key!r}] {problem}")


def shortened(value: Any, limit: int = 160) -> str:
    """A value for an explanation."""
    return safe_text.shortened(repr(value), limit)


_MOST_CHARS = 100_000
"""A longer answer is read by no verifier: it would take long, and nobody asked for it."""


def too_long(said: str) -> str | None:
    """The reason why an answer is not read, where it is too long for that."""
    return f"the answer has {len(said)} characters, more than {_MOST_CHARS}" if len(said) > _MOST_CHARS else None


# ---------------------------------------------------------------------------------------------------------------------
# Regular expressions over what the policy wrote, with a time limit.


def matches(pattern: str, text: str, *, where: str, whole: bool = True, ignore_case: bool = False) -> bool:
    """Whether `pattern` matches `text`, all of it unless `whole` is False. The syntax is that of Python's `re`.

    `where` names the pattern's place in errors. Raises `VerifierError` for a value that is not a pattern, for a pattern
    that matches the empty text (and so, in part, every text), and for one that takes more than half a second: Python's
    own `re` would hold the whole process for that time, and a policy could make that happen.
    """
    compiled = _compiled_pattern(pattern, where, ignore_case)
    match = compiled.fullmatch if whole else compiled.search
    try:
        if match("", timeout=_SECONDS) is not None:
            raise VerifierError(
                f"{where} is {pattern!r}, which matches an empty text; write one that asks for something"
            )
        if len(text) > _MOST_CHARS:
            return False
        return match(text, timeout=_SECONDS, concurrent=True) is not None
    except TimeoutError:
        raise VerifierError(
            f"{where} is {pattern!r}, which took more than {_SECONDS} s on {shortened(text, 60)}; write a pattern "
            "that backtracks less, without a repeat inside a repeat"
        ) from None


_SECONDS = 0.5


@lru_cache(maxsize=256)
def _compiled_pattern(pattern: str, where: str, ignore_case: bool) -> Any:
    import regex

    if not isinstance(pattern, str):
        raise VerifierError(f"{where} is {shortened(pattern)}; give a regular expression as a text")
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise VerifierError(f"{where} is {pattern!r}, which is not a regular expression: {error}") from error


# ---------------------------------------------------------------------------------------------------------------------
# JSON Schemas: without network access, and with a time limit.


def first_schema_problem(schema: Any, value: Any, where: str) -> str | None:
    """Why `value` does not fit `schema`, or None. `where` names the schema's place in errors.

    Raises `VerifierError` for a value that is not a JSON Schema, for one that refers to a schema outside, and where the
    check takes too long.
    """
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    from mcp_bridge.toolsets.schema_checks import SchemaTimeout, schema_errors

    if not isinstance(schema, dict | bool):
        raise VerifierError(f"{where} is {shortened(schema)}; give a JSON Schema, an object")
    try:
        problem = next(iter(schema_errors(_compiled_schema(json.dumps(schema, sort_keys=True)), value, most=1)), None)
    except SchemaTimeout as error:
        raise VerifierError(f"{where} takes too long to check ({error}); write one that backtracks less") from error
    except SchemaError as error:
        raise VerifierError(f"{where} is not a JSON Schema that can be used: {error.message}") from error
    except (ValueError, TypeError, OverflowError, RecursionError, Unresolvable) as error:
        raise VerifierError(f"{where} is not a JSON Schema that can be used: {error}") from error
    if problem is None:
        return None
    place = "/".join(str(step) for step in problem.absolute_path)
    return f"it does not fit the schema{f' at {place}' if place else ''}: {shortened(problem.message, 200)}"


@lru_cache(maxsize=256)
def _compiled_schema(schema: str) -> Any:
    from mcp_bridge.toolsets.schema_checks import compiled_schema

    return compiled_schema(json.loads(schema), _refuse)


def _refuse(part: str) -> None:
    raise ValueError(f"it has {part!r}, which cannot be checked here")
