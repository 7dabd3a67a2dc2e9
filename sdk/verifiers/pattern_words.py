"""Calls as a person reads them: `find(query≈"chair")` where the task has `{"$text": "chair"}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .argument_patterns import pattern_key
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
    key = pattern_key(pattern)
    if key is None:
        return f"{{{', '.join(f'{_value(name)}: {_words(item, depth + 1)}' for name, item in pattern.items())}}}"
    gold = pattern[key]
    if key == "$near":
        return f"{_value(gold)}±{_value(pattern['within'])}"
    if key == "$one_of":
        return f"({' or '.join(_words(choice, depth + 1) for choice in gold)})"
    return _FORMS[key].format(_words(gold, depth + 1))


_FORMS = {
    "$any": "(any value)",
    "$absent": "(not given)",
    "$optional": "({}, or not given)",
    "$text": "≈{}",
    "$says": "(a text with {})",
    "$pattern": "(a text like {})",
    "$set": "({} in any order)",
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
