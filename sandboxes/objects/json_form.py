"""Python values as JSON, so that states can be compared and results read.

The form of a value depends on the value alone: no addresses, no order of a set. Nothing private is in it.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import ModuleType
from typing import Any
from uuid import UUID

from mcp_bridge.errors import kind_of

SAME_AS = "same_as"
"""Key of the form of an object inside itself; the value is the way from the top to where it stands whole."""

_AS_TEXT = (Decimal, Fraction, UUID, PurePath, complex)


class NoForm(TypeError):
    """A value without a form."""


def as_json(value: Any, *, special: Callable[[Any], Any] | None = None) -> Any:
    """`value` as JSON: a new object, which shares nothing with it.

    Objects are their public attributes, or their text where they have none. `special` may replace a value before:
    it returns what to use, or the value itself. Raises `NoForm` where neither says anything of the value, and where it
    is nested too deeply.
    """
    try:
        return _Former(special).form(value, ("$",))
    except RecursionError:
        raise NoForm("it is nested hundreds of levels deep") from None


class _Former:
    def __init__(self, special: Callable[[Any], Any] | None) -> None:
        self._special = special
        self._on_the_way: dict[int, tuple[str, ...]] = {}

    def form(self, value: Any, way: tuple[str, ...]) -> Any:
        if self._special is not None:
            value = self._special(value)
        simple = _simple(value)
        if simple is not _NOT_SIMPLE:
            return simple
        if id(value) in self._on_the_way:
            return {SAME_AS: ".".join(self._on_the_way[id(value)])}
        self._on_the_way[id(value)] = way
        try:
            return self._compound(value, way)
        finally:
            del self._on_the_way[id(value)]

    def _compound(self, value: Any, way: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return self._named(((_key(key), inner) for key, inner in value.items()), way)
        if isinstance(value, AbstractSet):
            return sorted((self.form(inner, (*way, "*")) for inner in value), key=lambda one: json.dumps(one))
        if isinstance(value, list | tuple | deque):
            return [self.form(inner, (*way, str(place))) for place, inner in enumerate(value)]
        attributes = dict(public_attributes(value))
        return self._named(iter(attributes.items()), way) if attributes else _text(value)

    def _named(self, items: Iterator[tuple[str, Any]], way: tuple[str, ...]) -> dict[str, Any]:
        formed: dict[str, Any] = {}
        for name, inner in items:
            if name in formed:
                raise NoForm(f"two keys of one mapping are {name!r} as text")
            formed[name] = self.form(inner, (*way, name))
        return formed


_NOT_SIMPLE = object()
_MOST_BITS = 14_000
"""Python makes text of integers of up to 4,300 digits."""


def _simple(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _simple(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise NoForm(f"an integer has {value.bit_length()} bits, more than JSON can be made of ({_MOST_BITS})")
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, _AS_TEXT) else _NOT_SIMPLE


def public_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of the attributes that an object holds and that do not begin with '_'."""
    if isinstance(value, type | ModuleType):
        return
    names = dict.fromkeys(getattr(value, "__dict__", ()))
    if dataclasses.is_dataclass(value):
        names |= dict.fromkeys(field.name for field in dataclasses.fields(value))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    for name in names:
        if not name.startswith("_") and hasattr(value, name):
            attribute = getattr(value, name)
            if not isinstance(attribute, logging.Logger):  # it is the process's, and has no data
                yield name, attribute


def _key(key: Any) -> str:
    if isinstance(key, str) and not isinstance(key, enum.Enum):
        return str(key)
    simple = _simple(key)
    if simple is not _NOT_SIMPLE:
        return simple if isinstance(simple, str) else json.dumps(simple)
    return json.dumps([_key(part) for part in key]) if isinstance(key, tuple) else _text(key)


def _text(value: Any) -> str:
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise NoForm(f"{kind_of(value)} has no public attributes and no text of its own")
    return str(value)
