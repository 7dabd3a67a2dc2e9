"""Contradictions: keywords of a schema that no value satisfies together.

Published schemas have them by mistake: a pattern that fits no text of the length that is asked for, a required name
that nothing allows. A tool with one cannot be called at all, so such keywords are named and not enforced.

Only keywords of one schema are compared; what its references and `allOf` add to it is not.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .schema_checks import PATTERN_S, compiled_pattern
from .schema_parts import SharedParts

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


def without_contradictions(schema: dict[str, Any], tell: Callable[[str], None], parts: SharedParts) -> dict[str, Any]:
    """`schema` without the keywords that nothing satisfies, at any depth; itself where it has none. `tell`: hears of
    each in words. `parts`: what is known of other schemas that share parts with this one."""
    return parts.rewritten("contradictions", schema, satisfiable, tell)


def satisfiable(schema: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """As `without_contradictions`, for the keywords that stand directly in `schema`."""
    for dropped, others in _contradicting(schema):
        tell(" and ".join(f"{keyword} {schema[keyword]!r:.120}" for keyword in (*dropped, *others)))
        # Which of the two is the mistake is not known; a model may still read the choices.
        choices = {"examples": schema["enum"]} if "enum" in dropped and schema["enum"] else {}
        schema = {**choices, **{key: value for key, value in schema.items() if key not in dropped}}
    impossible = [name for name in _required(schema) if not _is_allowed(schema, name)]
    if impossible:
        tell(f"required {', '.join(map(repr, impossible))}, which the same schema does not allow")
        schema = {**schema, "required": [name for name in schema["required"] if name not in impossible]}
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
    kinds = [
        _TYPES.get(one, object) for one in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(one, str)
    ]
    if isinstance(value, bool):
        return any(kind in (bool, object) for kind in kinds)
    return any(isinstance(value, kind) for kind in kinds)


def _required(schema: Mapping[str, Any]) -> list[Any]:
    names = schema.get("required")
    return names if isinstance(names, list) else []


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
