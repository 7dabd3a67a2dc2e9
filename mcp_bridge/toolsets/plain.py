"""Values that are JSON already, told from those that a JSON library would have to convert."""

from __future__ import annotations

from math import isfinite
from typing import Any

_DEEPEST = 64
_AS_THEY_ARE = frozenset({bool, type(None)})
_HUGE = 2**64
"""Beyond it a number may be too long for Python to write (4 300 digits), or for others to read."""


class NotPlain(ValueError):
    """A value that changes, or cannot be written, when it goes through JSON."""


def is_plain(value: Any) -> bool:
    """Whether `value` is made of JSON's types alone: exact types, finite numbers, integers below 2**64, text without
    lone surrogates."""
    try:
        check_plain(value)
    except NotPlain:
        return False
    return True


def plain_copy(value: Any) -> Any:
    """A copy that shares no list and no dict with `value`. Raises `NotPlain`."""
    return _copied(value, 0)


def check_plain(value: Any, depth: int = 0) -> None:
    """Raises `NotPlain` where `is_plain` is false. `depth`: how deep `value` is in a larger one."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value)
    elif kind is dict:
        if depth > _DEEPEST:
            raise NotPlain
        for key, inner in value.items():
            if type(key) is not str:
                raise NotPlain
            if not key.isascii():
                _check_text(key)
            kind = type(inner)
            if kind is str and inner.isascii():
                continue
            if kind not in _AS_THEY_ARE and not (kind is int and -_HUGE < inner < _HUGE):
                check_plain(inner, depth + 1)
    elif kind is list:
        if depth > _DEEPEST:
            raise NotPlain
        for inner in value:
            if type(inner) is not str or not inner.isascii():
                check_plain(inner, depth + 1)
    elif kind is int:
        if not -_HUGE < value < _HUGE:
            raise NotPlain
    elif kind is float:
        if not isfinite(value):
            raise NotPlain
    elif kind not in _AS_THEY_ARE:
        raise NotPlain


def _copied(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is dict:
        if depth > _DEEPEST:
            raise NotPlain
        made = {}
        for key, inner in value.items():
            if type(key) is not str:
                raise NotPlain
            if not key.isascii():
                _check_text(key)
            # The most frequent kinds, without a call for each.
            kind = type(inner)
            if (
                (kind is str and inner.isascii())
                or kind in _AS_THEY_ARE
                or (kind is int and -_HUGE < inner < _HUGE)
                or (kind is float and isfinite(inner))
            ):
                made[key] = inner
            else:
                made[key] = _copied(inner, depth + 1)
        return made
    if kind is list:
        if depth > _DEEPEST:
            raise NotPlain
        return [inner if type(inner) is str and inner.isascii() else _copied(inner, depth + 1) for inner in value]
    check_plain(value, depth)
    return value


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotPlain from None
