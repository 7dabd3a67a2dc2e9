"""Strings that match a regular expression."""

from __future__ import annotations

import re
from random import Random

# Python's own parser of patterns; the documented module offers no way to take a pattern apart.
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_MOST_REPEATS = 8
_PLAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
_CATEGORIES = {
    codes.CATEGORY_DIGIT: "0123456789",
    codes.CATEGORY_WORD: _PLAIN,
    codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_NOT_DIGIT: "abcdefghijklmnopqrstuvwxyz",
    codes.CATEGORY_NOT_WORD: " -",
    codes.CATEGORY_NOT_SPACE: _PLAIN,
}
_PRINTABLE = "".join(chr(code) for code in range(32, 127))


def matching(
    pattern: str,
    chance: Random,
    *,
    low: int = 0,
    high: int | None = None,
    tries: int = 30,
) -> str | None:
    """A string that `pattern` is found in, of `low` to `high` characters; `None` where none was found."""
    try:
        parsed = parser.parse(_pythonic(pattern))
        compiled = re.compile(_pythonic(pattern))
    except (re.error, RecursionError, OverflowError):
        return None
    for _ in range(tries):
        made = _made(parsed, chance, max(_MOST_REPEATS, low))
        if made is not None and len(made) >= low and (high is None or len(made) <= high) and compiled.search(made):
            return made
    return None


def _pythonic(pattern: str) -> str:
    """What JavaScript writes in another way."""
    return pattern.replace(r"\p{L}", "a-zA-Z").replace(r"\p{N}", "0-9").replace("(?<", "(?P<").replace("(?P<=", "(?<=")


def _made(parsed: Any, chance: Random, most: int) -> str | None:
    parts: list[str] = []
    for code, value in parsed:
        part = _one(code, value, chance, most)
        if part is None:
            return None
        parts.append(part)
    return "".join(parts)


def _one(code: Any, value: Any, chance: Random, most: int) -> str | None:
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.NOT_LITERAL:
        return chance.choice([one for one in _PLAIN if one != chr(value)])
    if code is codes.ANY:
        return chance.choice(_PLAIN)
    if code is codes.IN:
        return chance.choice(_members(value) or [" "])
    if code is codes.BRANCH:
        return _made(chance.choice(value[1]), chance, most)
    if code is codes.SUBPATTERN:
        return _made(value[-1], chance, most)
    if code in (
        codes.MAX_REPEAT,
        codes.MIN_REPEAT,
        getattr(codes, "POSSESSIVE_REPEAT", None),
    ):
        low, high, inner = value
        times = chance.randint(int(low), int(min(int(high), int(low) + most)))
        made = [_made(inner, chance, most) for _ in range(times)]
        return None if None in made else "".join(part for part in made if part is not None)
    if code is codes.AT or code in (codes.ASSERT, codes.ASSERT_NOT):
        return ""
    return None


def _members(parts: Any) -> list[str]:
    negated, found = False, []
    for code, value in parts:
        if code is codes.NEGATE:
            negated = True
        elif code is codes.LITERAL:
            found.append(chr(value))
        elif code is codes.RANGE:
            low, high = value
            found += [chr(point) for point in range(low, min(high, low + 200) + 1)]
        elif code is codes.CATEGORY:
            found += list(_CATEGORIES.get(value, "a"))
    if negated:
        return [one for one in _PRINTABLE if one not in found and one not in "<>\"'\\"]
    return sorted(set(found) & set(_PRINTABLE)) or found
