"""What an argument may be, where more than one value is right: written as data, inside a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import VerifierError
from .comparing import same_json, shortened
from .patterns import matches
from .tokens import positions, tokenize

_MOST = 2**1023
"""A policy may write whole numbers of any length; what no double holds is near to nothing."""
ABSENT = object()
"""In place of the value of an argument that was not given."""


def fits(pattern: Any, value: Any, where: str) -> bool:
    """Whether `value` is what `pattern` asks for: an equal JSON value, or what an object with one `$` key says.

    | pattern | is |
    | --- | --- |
    | `{"$any": true}` | any value, but given |
    | `{"$absent": true}` | not given |
    | `{"$optional": p}` | not given, or p |
    | `{"$one_of": [p, q]}` | p or q |
    | `{"$near": 12.5, "within": 0.01}` | a number at most so far off |
    | `{"$text": "Late parcel"}` | these words, whatever the case, punctuation and spaces |
    | `{"$says": "late"}` | a text with these words among its own |
    | `{"$pattern": "[A-Z]{2}-\\d+"}` | a text that this regular expression matches whole, within half a second |
    | `{"$set": [p, q]}` | a list with these in any order, and no others |

    Patterns may stand inside lists and objects. Raises `VerifierError` for a `$` key that is none of these.
    """
    if isinstance(pattern, Mapping) and any(str(key).startswith("$") for key in pattern):
        return _special(pattern, value, where)
    if value is ABSENT:
        return False
    if isinstance(pattern, Mapping):
        return isinstance(value, Mapping) and all_fit(pattern, value, where)
    if isinstance(pattern, list):
        same = isinstance(value, list) and len(value) == len(pattern)
        return same and all(fits(inner, item, where) for inner, item in zip(pattern, value, strict=True))
    return same_json(pattern, value)


def all_fit(patterns: Mapping[str, Any], values: Mapping[str, Any], where: str) -> bool:
    """Whether every pattern fits the value of its name, and no other value is there."""
    named = all(fits(pattern, values.get(name, ABSENT), where) for name, pattern in patterns.items())
    return named and set(values) <= set(patterns)


def _special(pattern: Mapping[str, Any], value: Any, where: str) -> bool:
    name = next(str(key) for key in pattern if str(key).startswith("$"))
    allowed = {name, "within"} if name == "$near" else {name}
    if name not in _KINDS or set(pattern) - allowed:
        raise VerifierError(
            f"{where} holds {shortened(pattern)}; a pattern has one of the keys {', '.join(_KINDS)} and no other "
            "($near takes `within`)"
        )
    return _KINDS[name](pattern[name], value, where, pattern)


def _near(gold: Any, value: Any, where: str, pattern: Mapping[str, Any]) -> bool:
    within = pattern.get("within")
    if not is_number(gold) or within is None or not is_number(within) or within < 0:
        raise VerifierError(f"{where} holds {shortened(pattern)}; write {{'$near': 12.5, 'within': 0.01}}")
    if not is_number(value) or abs(value) > _MOST:
        return False
    # A little more than `within`, since 0.3 - 0.2 is not 0.1 in binary.
    return bool(abs(value - gold) <= within + 1e-9 * max(1.0, abs(gold)))


def _one_of(choices: Any, value: Any, where: str, pattern: Mapping[str, Any]) -> bool:
    if not isinstance(choices, list) or not choices:
        raise VerifierError(f"{where} holds {shortened(pattern)}; give a list of patterns")
    return any(fits(choice, value, where) for choice in choices)


def _set(items: Any, value: Any, where: str, pattern: Mapping[str, Any]) -> bool:
    if not isinstance(items, list):
        raise VerifierError(f"{where} holds {shortened(pattern)}; give a list of patterns")
    if not isinstance(value, list) or len(value) != len(items):
        return False
    return not unmatched(items, value, lambda item, one: fits(item, one, where))[0]


def _text(gold: Any, value: Any, where: str, pattern: Mapping[str, Any]) -> bool:
    return isinstance(value, str) and tokenize(value) == _words(gold, where, pattern)


def _says(gold: Any, value: Any, where: str, pattern: Mapping[str, Any]) -> bool:
    return isinstance(value, str) and bool(positions(_words(gold, where, pattern), tokenize(value)))


def _words(gold: Any, where: str, pattern: Mapping[str, Any]) -> list[Any]:
    words = tokenize(gold) if isinstance(gold, str) else []
    if not words:
        raise VerifierError(f"{where} holds {shortened(pattern)}; give a text with at least one word")
    return words


_Kind = Callable[[Any, Any, str, Mapping[str, Any]], bool]
_KINDS: dict[str, _Kind] = {
    "$any": lambda _gold, value, _where, _pattern: value is not ABSENT,
    "$absent": lambda _gold, value, _where, _pattern: value is ABSENT,
    "$optional": lambda inner, value, where, _pattern: value is ABSENT or fits(inner, value, where),
    "$one_of": _one_of,
    "$near": _near,
    "$text": _text,
    "$says": _says,
    "$pattern": lambda gold, value, where, _pattern: isinstance(value, str) and matches(gold, value, where=where),
    "$set": _set,
}


_TAKES: dict[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "$any": lambda _gold, _pattern: True,
    "$absent": lambda _gold, _pattern: True,
    "$optional": lambda _gold, _pattern: True,
    "$one_of": lambda choices, _pattern: isinstance(choices, list) and bool(choices),
    "$near": lambda gold, pattern: is_number(gold) and is_number(pattern.get("within")),
    "$text": lambda gold, _pattern: isinstance(gold, str),
    "$says": lambda gold, _pattern: isinstance(gold, str),
    "$pattern": lambda gold, _pattern: isinstance(gold, str),
    "$set": lambda items, _pattern: isinstance(items, list),
}


def pattern_key(value: Any) -> str | None:
    """The `$` key of what `fits` reads as a pattern; None for all else, also for what only begins like one: APIs have
    arguments such as `{"$set": {"status": "open"}}`."""
    if not isinstance(value, Mapping) or len(value) > 2:
        return None
    key = next((key for key in value if key in _TAKES), None)
    whole = key is not None and len(value) == 1 + (key == "$near") and _TAKES[key](value[key], value)
    return key if whole else None


def holds_pattern(value: Any) -> bool:
    """Whether a pattern stands anywhere in a value."""
    rest = [value]
    while rest:
        one = rest.pop()
        if pattern_key(one) is not None:
            return True
        rest += one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
    return False


def unmatched(wanted: list[Any], found: list[Any], fit: Callable[[Any, Any], bool]) -> tuple[list[int], list[int]]:
    """The places in `wanted` and in `found` that stay alone when as many as possible are paired one to one.

    Patterns overlap, so taking the first that fits could use up what another one needs: this is a maximum matching by
    augmenting paths (Kuhn 1955).
    """
    edges = [[place for place, item in enumerate(found) if fit(want, item)] for want in wanted]
    taken: dict[int, int] = {}

    def place_for(want: int, tried: set[int]) -> bool:
        for place in edges[want]:
            if place not in tried:
                tried.add(place)
                if place not in taken or place_for(taken[place], tried):
                    taken[place] = want
                    return True
        return False

    missing = [want for want in range(len(wanted)) if not place_for(want, set())]
    return missing, [place for place in range(len(found)) if place not in taken]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number that can be compared: finite, and no truth value."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
