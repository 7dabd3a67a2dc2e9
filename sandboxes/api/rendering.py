"""The renderer: fits rows into the schemas of answers."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from mcp_bridge.errors import ToolFailure

from .maker import NOTHING, Maker, kind_fits, scalar_fits
from .model import LINK, Envelope, is_link
from .realistic import words_of
from .shapes import Shape, Shapes
from .store import Row, Store

Follow = Callable[[Mapping[str, Any], int], Any]
"""From a link, and how many links led there, to the row it leads to; `NOTHING` where it leads too far or nowhere."""


class WholeRow(dict[str, Any]):
    """A row as it stands in its table. Its columns that begin with `@` are the twin's own, and in no open answer."""


class Fitter:
    """Fits values into schemas. What a schema wants and the value has not is made, by `maker`."""

    def __init__(self, shapes: Shapes, maker: Maker, follow: Follow) -> None:
        self._shapes = shapes
        self._maker = maker
        self._follow = follow

    def fit(self, schema: Any, value: Any, name: str = "", links: int = 0, depth: int = 0) -> Any:
        """`value` as `schema` wants it: what fits stays as it is. `NOTHING` where there can be no such value."""
        return self._fit(self._shapes.of(schema), value, name, links, depth)

    def _fit(self, shape: Shape, value: Any, name: str, links: int, depth: int) -> Any:
        if is_link(value):
            value, links = self._follow(value, links), links + 1
        if value is NOTHING or shape.impossible or (value is None and not kind_fits(shape, None)):
            return self._maker.make_shape(shape, name, depth=depth)
        if shape.choices:
            shape = nearest(self._shapes, shape, value)
        if not kind_fits(shape, value):
            other = converted(shape, value)
            return self._maker.make_shape(shape, name, depth=depth) if other is NOTHING else other
        if isinstance(value, dict):
            return self._object(shape, value, name, links, depth)
        if isinstance(value, list):
            return self._array(shape, value, name, links, depth)
        if scalar_fits(shape, value) and self._shapes.keeps_rules(shape, value):
            return value
        return self._maker.make_shape(shape, name, depth=depth)

    def _object(self, shape: Shape, value: dict[str, Any], name: str, links: int, depth: int) -> Any:
        fitted: dict[str, Any] = {}
        for key, schema in shape.properties.items():
            inner = self._shapes.of(schema)
            if inner.write_only and key not in shape.required:
                continue
            given = value.get(key, NOTHING)
            if given is NOTHING and key not in shape.required:
                continue
            if key not in shape.required and (depth > 8 or (is_link(given) and links > 1)):
                continue
            made = self._fit(inner, given, key, links, depth + 1)
            is_one = isinstance(schema, dict) and "oneOf" in schema and key not in shape.required
            if is_one and made is not NOTHING and not self._shapes.validity.holds(schema, made):
                continue  # more than one may hold, whatever is made
            if made is not NOTHING:
                fitted[key] = made
            elif key in shape.required:
                return NOTHING
        is_map = not shape.properties and shape.open is not False
        # Of a row, the columns that an answer does not name are not for it.
        is_open = is_map or (not isinstance(value, WholeRow) and isinstance(shape.open, dict))
        for key, given in value.items() if shape.rules or is_open else ():
            is_ours = isinstance(value, WholeRow) and key.startswith("@")
            if key in shape.properties or is_ours or not self._shapes.takes_name(shape, key):
                continue
            if is_open or self._shapes.patterned(shape, key):
                fitted[key] = self.fit(self._shapes.schema_at(shape, key), given, key, links, depth + 1)
        for key in sorted(shape.required - set(fitted)):
            fitted[key] = self.fit(self._shapes.schema_at(shape, key), value.get(key, NOTHING), key, links, depth + 1)
            if fitted[key] is NOTHING:
                return NOTHING
        if len(fitted) < shape.says.get("minProperties", 0):
            return self._maker.make_shape(shape, name, depth=depth)
        return fitted

    def _array(self, shape: Shape, value: list[Any], name: str, links: int, depth: int) -> Any:
        items: list[Any] = []
        for given in value:
            if is_link(given) and links > 1:
                continue
            made = self.fit(shape.items, given, name.removesuffix("s"), links, depth + 1)
            if made is not NOTHING and not (shape.says.get("uniqueItems") and made in items):
                items.append(made)
        items = items[: shape.says.get("maxItems", len(items))]
        if len(items) < shape.says.get("minItems", 0) or "prefixItems" in shape.says:
            return self._maker.make_shape(shape, name, depth=depth)
        if not self._shapes.keeps_rules(shape, items):
            return self._maker.make_shape(shape, name, depth=depth)
        return items


def nearest(shapes: Shapes, shape: Shape, value: Any) -> Shape:
    """`shape` with the branch of each group that `value` is nearest to."""
    base = replace(shape, choices=[])
    for group in shape.choices:
        best, most = base, -2.0
        for branch in group:
            merged = shapes.with_branch(base, branch)
            if merged.impossible or (merged.kinds == {"null"} and value is not None):
                continue
            score = _nearness(merged, value) if kind_fits(merged, value) else -1.0
            if score > most:
                best, most = merged, score
        base = nearest(shapes, best, value) if best.choices else best
    return base


def _nearness(shape: Shape, value: Any) -> float:
    """How much of a branch a value has already."""
    if not isinstance(value, dict):
        return 1.0 if shape.choices or isinstance(value, list) or scalar_fits(shape, value) else 0.0
    known = set(shape.properties)
    score = 0.1 * len(known & set(value)) - 0.01 * len(known - set(value))
    for key in shape.required:
        score += 1.0 if key in value else -1.0
    for key, schema in shape.properties.items():
        fixed = [schema["const"]] if isinstance(schema, dict) and "const" in schema else None
        if isinstance(schema, dict) and fixed is None and isinstance(schema.get("enum"), list):
            fixed = schema["enum"]
        if fixed is not None and key in value:
            score += 5.0 if value[key] in fixed else -5.0
    return max(score, -0.5)


_FLAGS = {"true": True, "false": False}


def converted(shape: Shape, value: Any) -> Any:
    """The same value in another type: one schema has `"7"` where another has `7`."""
    if isinstance(value, int | float) and "string" in shape.kinds:
        text = json.dumps(value)
        return text if scalar_fits(shape, text) else NOTHING
    if isinstance(value, str) and "boolean" in shape.kinds and shape.typed and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    if isinstance(value, str) and {"integer", "number"} & shape.kinds and shape.typed:
        try:
            number = int(value) if value.lstrip("-").isascii() and value.lstrip("-").isdigit() else float(value)
        except ValueError:
            return NOTHING
        return number if abs(number) != math.inf and scalar_fits(shape, number) else NOTHING
    return NOTHING


_ADDRESSES = ("href", "url", "uri")
_MOST_LINKS = 2
_MOST_TOLD = 2
_TRUE = frozenset(("ok", "success", "deleted", "successful", "acknowledged"))


class Renderer:
    """Fits rows into the schemas of answers. `name`: of the world; values that no row holds are made from it."""

    def __init__(self, shapes: Shapes, store: Store, name: str) -> None:
        self._shapes = shapes
        self._store = store
        self._name = name

    def one(self, envelope: Envelope, value: Mapping[str, Any], key: str) -> Any:
        """An answer about one row, or about any other object."""
        body: Any = WholeRow(value)
        for step in reversed(envelope.path):
            body = {step: body}
        told = _affirmed(self._shapes, envelope.schema, body)
        return self._fitted(envelope.schema, told if envelope.path else WholeRow(told), key)

    def many(self, envelope: Envelope, rows: list[tuple[str, Row]], facts: Mapping[str, Any], key: str) -> Any:
        """An answer that lists rows. `facts`: see `listing.Lister.page`."""
        # Each row is made whole for itself, so that it reads the same in every list.
        items = [self._fitted(envelope.item, WholeRow(row), own) for own, row in rows]
        whole = self._shapes.of(self._inside(envelope.schema, envelope.path))
        items = items[: whole.says.get("maxItems", len(items))]
        if not envelope.path:
            return self._checked(envelope.schema, items)
        body: Any = []
        for place in range(len(envelope.path) - 1, -1, -1):
            told = self._told(self._inside(envelope.schema, envelope.path[:place]), facts, 0)
            body = {**told, envelope.path[place]: body}
        fitted = self._fit(envelope.schema, body, key)
        holder = fitted
        for step in envelope.path[:-1]:
            holder = holder[step]
        holder[envelope.path[-1]] = items
        return self._checked(envelope.schema, fitted)

    def made(self, schema: Any, key: str, value: Any = NOTHING, *, rich: bool) -> Any:
        """An answer without a row, always the same for a key."""
        if isinstance(value, dict) and value:
            told = WholeRow(_affirmed(self._shapes, schema, value))
            return self._checked(schema, self._fit(schema, told, key), key)
        return self._checked(schema, self._maker(key, rich=rich).make(schema), key)

    def _inside(self, schema: Any, path: tuple[str, ...]) -> Any:
        for step in path:
            shape = self._shapes.of(schema)
            branches = (self._shapes.of(one) for group in shape.choices for one in group)
            schema = next(one.properties[step] for one in (shape, *branches) if step in one.properties)
        return schema

    def _told(self, schema: Any, facts: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The properties of a list's answer that say how it goes on."""
        found: dict[str, Any] = {}
        shape = self._shapes.of(schema)
        for name, inner in shape.properties.items():
            flat = self._shapes.of(inner)
            word = "".join(words_of(name))
            fitting = [one for one in facts.get(word, ()) if kind_fits(flat, one) and scalar_fits(flat, one)]
            if str(flat.says.get("format", "")).startswith("uri"):
                fitting.sort(key=lambda one: not str(one).startswith("/"))
            # `{"next": {"href": "/orders?page=2"}}`
            is_link = word in facts and not flat.properties.keys().isdisjoint(_ADDRESSES)
            told: dict[str, Any] = {}
            if flat.kind == "object" and flat.properties and depth < _MOST_TOLD:
                inside = dict.fromkeys(_ADDRESSES, facts[word]) if is_link else facts
                told = self._told(inner, inside, depth + 1)
            if told and (any(told.values()) or not is_link or (name in shape.required and not fitting)):
                found[name] = told
            elif fitting and (fitting[0] != "" or name in shape.required):
                found[name] = fitting[0]
        return found

    def _fitted(self, schema: Any, value: Any, key: str) -> Any:
        return self._checked(schema, self._fit(schema, value, key))

    def _fit(self, schema: Any, value: Any, key: str) -> Any:
        return Fitter(self._shapes, self._maker(key, rich=False), self._follow).fit(schema, value)

    def _checked(self, schema: Any, value: Any, key: str | None = None) -> Any:
        """`value`, where it is valid, or what is left of it without one property.

        `key`: of an answer that no row is behind. It is another one where the schema asks for more than can be made
        step by step; a row is never answered with another.
        """
        if value is not NOTHING and self._shapes.validity.holds(schema, value):
            return value
        for name in value if isinstance(value, dict) else ():
            # A full row is valid under two branches of `oneOf`; without what only one requires it is under the other.
            without = {other: inner for other, inner in value.items() if other != name}
            if self._shapes.validity.holds(schema, without):
                return without
        for number in range(20 if key is not None else 0):
            made = self._maker(f"{key}#{number}", rich=number % 2 == 0).make(schema)
            if made is not NOTHING and self._shapes.validity.holds(schema, made):
                return made
        for example in self._shapes.of(schema).says.get("examples", ()) if key is not None else ():
            if self._shapes.validity.holds(schema, example):
                return copy.deepcopy(example)
        problem = "it allows nothing" if value is NOTHING else self._shapes.validity.problem(schema, value)
        raise ToolFailure(f"no answer was found that the document's schema allows ({problem})", delivery="answered")

    def _maker(self, key: str, *, rich: bool) -> Maker:
        return Maker(self._shapes, Random(f"{self._name}/{key}"), self._store.now, rich=rich)

    def _follow(self, link: Mapping[str, Any], links: int) -> Any:
        if links > _MOST_LINKS:
            return NOTHING
        table, key = link[LINK]
        row = self._store.get(table, key)
        return NOTHING if row is None else WholeRow(row)


def _affirmed(shapes: Shapes, schema: Any, body: Any) -> Any:
    """With `ok`, `success` or `deleted` true where the answer has such a property."""
    if not isinstance(body, dict):
        return body
    for name, inner in shapes.of(schema).properties.items():
        if name not in body and "".join(words_of(name)) in _TRUE and "boolean" in shapes.of(inner).kinds:
            body = {**body, name: True}
    return body
