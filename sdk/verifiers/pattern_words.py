"""Calls as a person reads them: `find(query≈"chair")` where the task has `{"$text": "chair"}`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .argument_patterns import is_number
from .comparing import cut_text

_DEEPEST = 5
"""What stands deeper in lists, objects and patterns is left out, as `…`: it would not fit on a line."""
_JOINERS = "\u200c\u200d"  # invisible, but part of writing Persian, Hindi and emoji


def call_in_words(name: str, arguments: Mapping[str, Any], *, patterns: bool, most: int = 60) -> str:
    """A call on one line, with at most about `most` characters of each argument, and how many were left out.

    `patterns`: the arguments are what a task asks for, and what `argument_patterns.fits` knows is put into words. Else,
    and where it knows nothing of the kind, they are values, written as JSON. Signs that hide or turn text around are
    escaped.
    """
    write = _words if patterns else _value
    shown = [_argument(key, cut_text(write(value), most)) for key, value in arguments.items()]
    return f"{_plain(name)}({', '.join(shown)})"


def _argument(name: object, written: str) -> str:
    return f"{_plain(str(name))}{'' if written.startswith('≈') else '='}{written}"


def _words(pattern: Any, depth: int = 0) -> str:
    if not isinstance(pattern, Mapping | list):
        return _value(pattern)
    if depth > _DEEPEST:
        return "…"
    if isinstance(pattern, list):
        return f"[{', '.join(_words(item, depth + 1) for item in pattern)}]"
    key = next((key for key in pattern if key in _KINDS), None)
    said = _KINDS[key](pattern[key], pattern, depth + 1) if key is not None else None
    if said is not None:
        return said
    return f"{{{', '.join(f'{_value(key)}: {_words(item, depth + 1)}' for key, item in pattern.items())}}}"


def _near(gold: Any, pattern: Mapping[str, Any], _depth: int) -> str | None:
    within = pattern.get("within")
    known = is_number(gold) and is_number(within) and len(pattern) == 2
    return f"{_value(gold)}±{_value(within)}" if known else None


def _one_of(choices: Any, pattern: Mapping[str, Any], depth: int) -> str | None:
    known = isinstance(choices, list) and choices and len(pattern) == 1
    return f"({' or '.join(_words(choice, depth) for choice in choices)})" if known else None


def _set(items: Any, pattern: Mapping[str, Any], depth: int) -> str | None:
    return f"({_words(items, depth)} in any order)" if isinstance(items, list) and len(pattern) == 1 else None


def _alone(form: str, write: Callable[[Any, int], str] = lambda gold, _depth: _value(gold)) -> _Kind:
    """Of patterns with one key: `form` with what that key holds."""
    return lambda gold, pattern, depth: form.format(write(gold, depth)) if len(pattern) == 1 else None


_Kind = Callable[[Any, Mapping[str, Any], int], str | None]
"""What a key of a pattern says in words, from what it holds, the pattern and how deep that stands; None where `fits`
refuses the pattern."""

_KINDS: dict[Any, _Kind] = {
    "$any": _alone("(any value)"),
    "$absent": _alone("(not given)"),
    "$optional": _alone("({}, or not given)", _words),
    "$one_of": _one_of,
    "$near": _near,
    "$text": _alone("≈{}"),
    "$says": _alone("(a text with {})"),
    "$pattern": _alone("(a text like {})"),
    "$set": _set,
}


def _value(value: Any) -> str:
    """As JSON; what is no JSON, by the name of its type."""
    try:
        return _plain(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):  # keys that are no texts, 4 300 digits, nested a thousand times
        return f"({type(value).__name__} that is no JSON)"


def _plain(text: str) -> str:
    """With what is not seen escaped: control characters, half surrogate pairs, changes of direction."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _JOINERS else json.dumps(sign)[1:-1] for sign in text)
