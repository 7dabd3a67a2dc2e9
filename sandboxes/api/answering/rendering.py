"""Rows as answers show them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime
from random import Random
from typing import Any

from mcp_bridge.errors import ToolFailure

from ..inference.model import Envelope, Table
from ..shapes import Shapes
from ..values.fitting import LINK, Fitter, WholeRow
from ..values.making import NOTHING, Maker, kind_fits
from ..values.realistic import Realistic, words_of
from ..world.store import Row, Store

_MOST_LINKS = 2
_TRUE = frozenset(("ok", "success", "deleted", "successful", "acknowledged"))


class Renderer:
    """Fits rows into the schemas of answers. `name`: of the world; what no row says is made from it."""

    def __init__(self, shapes: Shapes, tables: dict[str, Table], store: Store, name: str) -> None:
        self._shapes = shapes
        self._tables = tables
        self._store = store
        self._name = name

    def one(self, envelope: Envelope, value: Mapping[str, Any], key: str) -> Any:
        """An answer about one row, or about any other object."""
        body: Any = WholeRow(value)
        for step in reversed(envelope.path):
            body = {step: body}
        told = _affirmed(self._shapes, envelope.schema, body)
        return self._fitted(envelope.schema, told if envelope.path else WholeRow(told), key)

    def many(
        self,
        envelope: Envelope,
        rows: list[tuple[str, Row]],
        facts: Mapping[str, Any],
        key: str,
    ) -> Any:
        """An answer that lists rows. `facts`: see `listing.page_facts`."""
        # Each row is made whole for itself, so that it reads the same in every list.
        items = [self._fitted(envelope.item, WholeRow(row), own) for own, row in rows]
        whole = self._shapes.of(self._inside(envelope.schema, envelope.path))
        items = items[: whole.says.get("maxItems", len(items))]
        if not envelope.path:
            return self._checked(envelope.schema, items, key)
        body: Any = []
        for place in range(len(envelope.path) - 1, -1, -1):
            told = self._told(self._inside(envelope.schema, envelope.path[:place]), facts, 0)
            body = {**told, envelope.path[place]: body}
        fitted = Fitter(self._shapes, self._maker(key, rich=False), self._follow).fit(envelope.schema, body)
        holder = fitted
        for step in envelope.path[:-1]:
            holder = holder[step]
        holder[envelope.path[-1]] = items
        return self._checked(envelope.schema, fitted, key)

    def made(self, schema: Any, key: str, value: Any = NOTHING, *, rich: bool) -> Any:
        """An answer that no row says anything about, always the same for a key."""
        if isinstance(value, dict) and value:
            return self._fitted(schema, WholeRow(_affirmed(self._shapes, schema, value)), key)
        made = self._maker(key, rich=rich).make(schema)
        return self._checked(schema, made, key)

    def _inside(self, schema: Any, path: tuple[str, ...]) -> Any:
        for step in path:
            schema = self._shapes.of(schema).properties[step]
        return schema

    def _told(self, schema: Any, facts: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The properties of a list's answer that say how it goes on."""
        found: dict[str, Any] = {}
        shape = self._shapes.of(schema)
        for name, inner in shape.properties.items():
            flat = self._shapes.of(inner)
            word = "".join(words_of(name))
            if word in facts and kind_fits(flat, facts[word]):
                found[name] = facts[word]
            elif flat.kind == "object" and flat.properties and depth < 2:
                told = self._told(inner, facts, depth + 1)
                if told:
                    found[name] = told
        return found

    def _fitted(self, schema: Any, value: Any, key: str) -> Any:
        fitter = Fitter(self._shapes, self._maker(key, rich=False), self._follow)
        return self._checked(schema, fitter.fit(schema, value), key)

    def _checked(self, schema: Any, value: Any, key: str) -> Any:
        """`value`, or another one where the schema asks for more than can be made step by step."""
        if value is not NOTHING and self._shapes.valid(schema, value):
            return value
        for number in range(20):
            made = self._maker(f"{key}#{number}", rich=number % 2 == 0).make(schema)
            if made is not NOTHING and self._shapes.valid(schema, made):
                return made
        for example in self._shapes.of(schema).says.get("examples", ()):
            if self._shapes.valid(schema, example):
                return copy.deepcopy(example)
        problem = "it allows nothing" if value is NOTHING else self._shapes.problem(schema, value)
        raise ToolFailure(
            f"no answer was found that the document's schema allows ({problem})",
            delivery="answered",
        )

    def _maker(self, key: str, *, rich: bool) -> Maker:
        return Maker(self._shapes, Realistic(Random(f"{self._name}/{key}"), self._now), rich=rich)

    @property
    def _now(self) -> datetime:
        return self._store.now

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
