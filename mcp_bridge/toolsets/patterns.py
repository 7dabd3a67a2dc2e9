"""Patterns of JSON Schema are in JavaScript's dialect of regular expressions. What Python cannot read of it (`\\p{L}`,
`(?<year>...)`) makes a schema no worse for a model, and is not checked here."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from .subschemas import MANY, NAMED, ONE

# Of older drafts, too.
_MANY = MANY | {"items"}
_NAMED = NAMED | {"$defs", "definitions", "dependencies"}


# To `regex` a brace may begin a fuzzy match; to JavaScript and `re` one that holds no count is a letter.
_BRACE = re.compile(r"(\\.)|\{(?!\d+\}|\d*,\d*\})", re.DOTALL)


@functools.lru_cache(maxsize=4096)
def compiled_pattern(pattern: str) -> Any:
    """A pattern of `regex`, whose `search` takes a time limit; None where Python cannot read it as `re` does."""
    import regex

    try:
        re.compile(pattern)
        return regex.compile(_BRACE.sub(lambda found: found[1] or r"\{", pattern))
    except (re.error, regex.error, OverflowError, RecursionError):
        return None


def is_readable(pattern: Any) -> bool:
    """Whether Python can read a pattern."""
    return isinstance(pattern, str) and compiled_pattern(pattern) is not None


def with_readable_patterns(schema: Any, leave_out: Callable[[str], None]) -> Any:
    """`schema` without the patterns that Python cannot read, and itself where it has none. `leave_out`: is told each.

    Where a name may fit a pattern that was left out, further names are let through.
    """
    if not isinstance(schema, dict):
        return schema
    made = {key: _part(key, value, leave_out) for key, value in schema.items()}
    pattern, named = made.get("pattern"), made.get("patternProperties")
    if isinstance(pattern, str) and not is_readable(pattern):
        leave_out(pattern)
        del made["pattern"]
    if isinstance(named, dict) and not all(map(is_readable, named)):
        for name in named:
            if not is_readable(name):
                leave_out(name)
        made["patternProperties"] = {name: one for name, one in named.items() if is_readable(name)}
        for key in ("additionalProperties", "unevaluatedProperties"):
            made.pop(key, None)
    is_same = made.keys() == schema.keys() and all(made[key] is value for key, value in schema.items())
    return schema if is_same else made


def _part(key: str, value: Any, leave_out: Callable[[str], None]) -> Any:
    if key in _NAMED and isinstance(value, dict):
        parts: Any = {name: with_readable_patterns(one, leave_out) for name, one in value.items()}
        return value if all(parts[name] is one for name, one in value.items()) else parts
    if key in _MANY and isinstance(value, list):
        parts = [with_readable_patterns(one, leave_out) for one in value]
        return value if all(part is one for part, one in zip(parts, value, strict=True)) else parts
    return with_readable_patterns(value, leave_out) if key in ONE else value
