"""What a row keeps of a value that was sent, so that the row's answers show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, NoReturn

from ..inference.model import HIDDEN, IDENTIFIERS
from ..maker import NOTHING, Maker, kind_fits, scalar_fits
from ..realistic import words_of
from ..shapes import Shape, Shapes
from .rendering import converted, nearest
from .requests import INVALID, Problem
from .store import Store

Place = tuple[str | int, ...]

_NAMES = (*IDENTIFIERS, "value", "key", "code", "slug", "name")
"""What names an object that is sent as one value, likely ones first."""
_MOST_SHOWN = 200


class Unshown(Exception):
    """No value that may be sent can be in an answer."""


class Keeper:
    """Turns values of a request's schema into values of an answer's. Raises `Problem` where the answer could show
    another value of those that may be sent, and not this one, and `Unshown` where it could show none of them."""

    def __init__(self, shapes: Shapes, store: Store) -> None:
        self._shapes = shapes
        self._store = store

    def kept(self, shown: Any, asked: Any, value: Any, place: Place) -> Any:
        """`value` as a property of the schema `shown` holds it; `NOTHING` for a null where there is no null.

        `asked`: the schema under which it was sent, at `place`.
        """
        shape = self._shapes.of(shown)
        if shape.write_only:
            return value
        if shape.choices:
            shape = nearest(self._shapes, shape, value)
        if value is None:
            return None if kind_fits(shape, None) else NOTHING
        if kind_fits(shape, value):
            if isinstance(value, dict):
                return self._object(shown, shape, asked, value, place)
            if isinstance(value, list):
                return self._list(shown, shape, asked, value, place)
            if scalar_fits(shape, value) and self._shapes.keeps_rules(shape, value):
                return value
        other = next(self._in_other_words(shape, asked, value, place), NOTHING)
        return self._refuse(shown, shape, asked, value, place) if other is NOTHING else other

    def _object(self, shown: Any, shape: Shape, asked: Any, value: dict[str, Any], place: Place) -> Any:
        if not self._shapes.keeps_rules(shape, value):
            self._refuse(shown, shape, asked, value, place)
        sent = nearest(self._shapes, self._shapes.of(asked), value)
        kept: dict[str, Any] = {}
        for key, inner in value.items():
            if key not in shape.properties and not self._shapes.patterned(shape, key):
                kept[key] = inner  # what no answer shows stays where it was sent
                continue
            own, other = (self._shapes.schema_at(one, key) for one in (shape, sent))
            try:
                found = self.kept(own, other or True, inner, (*place, key))
            except Unshown:
                kept[HIDDEN + key] = inner
                continue
            if found is not NOTHING:
                kept[key] = found
            elif key in shape.required:
                raise Problem(INVALID, f"{written((*place, key))}: null is not valid here; send a value", place)
        if len(kept) < shape.says.get("minProperties", 0):
            self._refuse(shown, shape, asked, value, place)
        return kept

    def _list(self, shown: Any, shape: Shape, asked: Any, value: list[Any], place: Place) -> Any:
        item = self._shapes.of(asked).items
        found = [self.kept(shape.items, item, one, (*place, number)) for number, one in enumerate(value)]
        low, high = shape.says.get("minItems", 0), shape.says.get("maxItems", len(found))
        is_set = shape.says.get("uniqueItems") is True
        is_doubled = is_set and any(one in found[:number] for number, one in enumerate(found))
        if not low <= len(found) <= high or is_doubled or not self._shapes.keeps_rules(shape, found):
            self._refuse(shown, shape, asked, value, place)
        return found

    def _in_other_words(self, shape: Shape, asked: Any, value: Any, place: Place) -> Iterator[Any]:
        """The same value as an answer writes it: in another type or case, or as what names an object."""
        if (number := converted(shape, value)) is not NOTHING:
            yield number
        if (own := _same(shape, value)) is not NOTHING:
            yield own
        if isinstance(value, dict):
            for name in _NAMES:
                if name in value and not isinstance(value[name], dict | list) and scalar_fits(shape, value[name]):
                    yield value[name]
        elif not isinstance(value, list) and shape.kind == "object":
            yield from self._named(shape, value)
        elif not isinstance(value, list) and shape.kind == "array":
            yield [self.kept(shape.items, asked, value, place)]

    def _named(self, shape: Shape, value: Any) -> Iterator[Any]:
        """An object that goes by `value`. Its other names for it are the same in other letters: `active`, `Active`."""
        known = {name: self._shapes.of(inner) for name, inner in shape.properties.items()}
        likely = sorted(
            known, key=lambda one: next((n for n, word in enumerate(_NAMES) if words_of(one) == [word]), len(_NAMES))
        )
        for name in likely:
            if known[name].typed and not known[name].choices and scalar_fits(known[name], value):
                others = {other: own for other, inner in known.items() if (own := _same(inner, value)) is not NOTHING}
                yield {**others, name: value}

    def _refuse(self, shown: Any, shape: Shape, asked: Any, value: Any, place: Place) -> NoReturn:
        """Raises `Problem` where there is a value that may be sent and shown, `Unshown` where there is none."""
        holds = self._shapes.validity.holds
        if shape.enum is not None:
            valid = [one for one in shape.enum if one is not None and holds(asked, one)]
            if not valid:
                raise Unshown
            problem = f"{_said(value)} is not valid; it must be one of {', '.join(map(_said, valid))}"
        else:
            made = Maker(self._shapes, Random(written(place)), self._store.now, rich=True).make_shape(shape)
            if made is NOTHING or not holds(asked, made):
                raise Unshown
            why = self._shapes.validity.problem(shown, value) or "it could not be read back"
            problem = f"{_said(value)} is not valid ({why}); {_said(made)} would be"
        raise Problem(INVALID, f"{written(place)}: {problem}", place)


def written(place: Place) -> str:
    """A place in a body, such as `lines[0].price`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place[1:])
    return "".join(steps).removeprefix(".")


def _said(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"


def _same(shape: Shape, value: Any) -> Any:
    """The value of an enum that is the same but for the letters' case and what stands between words."""
    if not isinstance(value, str):
        return NOTHING
    wanted = "".join(words_of(value))
    known = (one for one in shape.enum or () if isinstance(one, str) and wanted)
    return next((one for one in known if "".join(words_of(one)) == wanted), NOTHING)
