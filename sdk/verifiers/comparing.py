"""When two JSON values are the same."""

from __future__ import annotations

from typing import Any


def same_json(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value (1 is 1.0), but True is not 1, and keys may stand in any order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same_json(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def holds_json(whole: Any, part: Any) -> bool:
    """Whether `whole` has everything that `part` names: objects may have further keys, all else must be the same."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and holds_json(whole[key], value) for key, value in part.items())
    return same_json(whole, part)


def shortened(value: Any, limit: int = 160) -> str:
    """A value for an explanation."""
    return cut_text(repr(value), limit)


def cut_text(text: str, limit: int) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
