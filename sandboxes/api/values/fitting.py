"""Makes a value that is there fit the schema of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..shapes import Shape, Shapes
from .making import NOTHING, Maker, kind_fits, scalar_fits

LINK = "@link"
"""The key of a link in a row: `{"@link": [table, key]}` stands for another row."""

Follow = Callable[[Mapping[str, Any], int], Any]
"""From a link, and how many links led there, to the row it leads to; `NOTHING` where it leads too far or nowhere."""


def is_link(value: Any) -> bool:
    """Whether a value stands for another row. No caller can send one: see `holds_link`."""
    if not isinstance(value, dict) or value.keys() != {LINK}:
        return False
    target = value[LINK]
    return isinstance(target, list) and len(target) == 2 and all(isinstance(one, str) for one in target)


def holds_link(value: Any) -> bool:
    """Whether a value is a link, or holds one at any depth."""
    left = [value]  # not by recursion: a policy may nest deeper than that goes
    while left:
        one = left.pop()
        if is_link(one):
            return True
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return False


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
            shape = self._chosen(shape, value)
        if not kind_fits(shape, value):
            converted = _converted(shape, value)
            return self._maker.make_shape(shape, name, depth=depth) if converted is NOTHING else converted
        if isinstance(value, dict):
            return self._object(shape, value, name, links, depth)
        if isinstance(value, list):
            return self._array(shape, value, name, links, depth)
        if scalar_fits(shape, value):
            return value
        return self._maker.make_shape(shape, name, depth=depth)

    def _chosen(self, shape: Shape, value: Any) -> Shape:
        """`shape` with the branch of each group that `value` is nearest to."""
        groups, base = shape.choices, replace(shape, choices=[])
        base.choices = []
        for group in groups:
            best, most = base, -1.0
            for branch in group:
                merged = self._shapes.with_branch(base, branch)
                if merged.impossible or not kind_fits(merged, value):
                    continue
                score = _nearness(merged, value)
                if score > most:
                    best, most = merged, score
            base = self._chosen(best, value) if best.choices else best
        return base

    def _object(self, shape: Shape, value: dict[str, Any], name: str, links: int, depth: int) -> Any:
        fitted: dict[str, Any] = {}
        for key, schema in shape.properties.items():
            inner = self._shapes.of(schema)
            if inner.write_only:
                continue
            given = value.get(key, NOTHING)
            if given is NOTHING and key not in shape.required:
                continue
            if key not in shape.required and (depth > 8 or (is_link(given) and links > 1)):
                continue
            made = self._fit(inner, given, key, links, depth + 1)
            if made is not NOTHING:
                fitted[key] = made
            elif key in shape.required:
                return NOTHING
        if not shape.properties and shape.open is not False:
            for key, given in value.items():
                if not (isinstance(value, WholeRow) and key.startswith("@")):
                    fitted[key] = self.fit(shape.open, given, key, links, depth + 1)
        for key in sorted(shape.required - set(fitted)):
            fitted[key] = self.fit(shape.open, value.get(key, NOTHING), key, links, depth + 1)
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
        return items


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


def _converted(shape: Shape, value: Any) -> Any:
    """The same value in another type: one schema says `"7"` where another says `7`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and "string" in shape.kinds:
        text = str(value)
        return text if scalar_fits(shape, text) else NOTHING
    if isinstance(value, str) and {"integer", "number"} & shape.kinds and shape.typed:
        try:
            number = int(value) if value.lstrip("-").isascii() and value.lstrip("-").isdigit() else float(value)
        except ValueError:
            return NOTHING
        return number if scalar_fits(shape, number) else NOTHING
    return NOTHING
