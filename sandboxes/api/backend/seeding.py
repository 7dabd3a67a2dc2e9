"""The rows that a world begins with: the same for a seed on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from ..inference.links import names_parent, twins_of
from ..inference.model import HIDDEN, LINK, WITHIN, Link, Table
from ..maker import NOTHING, Maker
from ..realistic import words_of
from ..shapes import Shape, Shapes
from .store import ONLY, Row, Store, lawful, new_key_value, row_key, with_key

_FIRST_DAY = datetime(2026, 1, 5, 9, tzinfo=UTC)
_MOST_OF_A_TABLE = 48
_TRIES = 20


def beginning(seed: int) -> datetime:
    """The time at which the world of a seed begins."""
    return _FIRST_DAY + timedelta(minutes=Random(f"clock/{seed}").randrange(60 * 24 * 200))


class Seeds:
    """The rows of one seed. `rows`: how many a collection at the top has; none at all where that is 0."""

    def __init__(self, tables: Mapping[str, Table], shapes: Shapes, *, name: str, seed: int, rows: int) -> None:
        self.tables = dict(tables)
        self._shapes = shapes
        self._name = f"{name}/{seed}"
        self._rows = rows
        self._made: dict[str, dict[str, Row]] = {}
        self._serials: dict[str, int] = {}
        self.keys: dict[str, dict[str | None, list[str]]] = {name: {} for name in tables}
        """The keys of each table's rows, by the key of the row above them."""
        self._now = beginning(seed)
        self._view = Store(self, self._now)
        for name, table in self.tables.items() if rows else ():
            self._build(table, self._made.setdefault(name, {}))

    def rows(self, table: str) -> dict[str, Row]:
        """The rows that a table begins with, by key. Must not be written to."""
        return self._made.get(table, {})

    def serial(self, table: str) -> int:
        """The first number that no row of the table has had as its key."""
        return self._serials.get(table, 1)

    def _build(self, table: Table, found: dict[str, Row]) -> None:
        chance = Random(f"{self._name}/{table.name}")
        builder = _Builder(self, table, chance, found)
        for parent in [None] if table.parent is None else self.rows(table.parent):
            for _ in range(self._count(table, parent, chance)):
                if len(found) < max(_MOST_OF_A_TABLE, self._rows) or table.single:
                    builder.add(parent)
        self._serials[table.name] = builder.serial

    def _count(self, table: Table, parent: str | None, chance: Random) -> int:
        if table.single:
            return 1
        if table.members is not None:
            return chance.randint(1, 3)
        if parent is None:
            return self._rows
        is_below_top = self.tables[str(table.parent)].parent is None
        return chance.randint(1, 3) if is_below_top else chance.randint(0, 2)


class _Builder:
    """Makes the rows of one table, one after the other."""

    def __init__(self, seeds: Seeds, table: Table, chance: Random, found: dict[str, Row]) -> None:
        self._seeds = seeds
        self._table = table
        self._chance = chance
        self._found = found
        self._store = seeds._view
        self._maker = Maker(seeds._shapes, chance, seeds._now, rich=True)
        self._within: dict[str | None, int] = {}
        self._chosen: dict[str, list[str]] = {}
        self.serial = chance.randint(100, 5000) if self._is_global() else 1

    def _is_global(self) -> bool:
        """Whether numbers count through the whole table, as ids do, and not anew under each parent."""
        parts = self._table.parts
        if parts and "maximum" in self._seeds._shapes.of(parts[-1].schema).says:
            return False  # there are few numbers
        return self._table.parent is None or (bool(parts) and "id" in words_of(parts[-1].column))

    def add(self, parent: str | None) -> None:
        """Make a row under `parent`; none where no key is left for it."""
        table = self._table
        row: Row = {} if parent is None else {WITHIN: parent}
        if table.members is not None:
            self._add_member(row, parent)
            return
        if table.single:
            row |= self._plain(self._seeds._shapes.of(table.schema), frozenset())
            self._found[parent or ONLY] = row
            return
        self._chosen.clear()
        shape = self._seeds._shapes.of(table.schema)
        for owner in table.owners:
            if (key := self._one_of(owner, row)) is not None:
                row[HIDDEN + owner] = key
        for name, link in table.links.items():
            made = self._linked(name, link, row, shape)
            if made is not NOTHING:
                row[name] = made
        row |= self._plain(shape, frozenset({*table.links, table.key.column}))
        for part in table.parts[:-1]:
            if part.column not in row:
                row[part.column] = self._maker.realistic.text(part.parameter, table.singular)
        _in_order(row)
        self._add_keyed(lawful(self._seeds._shapes, shape, row, shape.properties) or row, parent)

    def _add_keyed(self, row: Row, parent: str | None) -> None:
        table = self._table
        for _ in range(_TRIES):
            number = self.serial if self._is_global() else self._within.get(parent, 0) + 1
            value = new_key_value(self._seeds._shapes, self._maker.realistic, table, row, number)
            key = row_key(parent, [*(self._store.value(row.get(part.column)) for part in table.parts[:-1]), value])
            if key not in self._found:
                self._found[key] = with_key(table, row, value)
                if table.parent is not None and parent is not None:
                    above = self._seeds.rows(table.parent)
                    above[parent] = self._store.listing_nested(table, key, above[parent])
                self._seeds.keys[table.name].setdefault(parent, []).append(key)
                self._within[parent] = number
                self.serial = max(self.serial, number) + (self._chance.randint(1, 4) if self._is_global() else 1)
                return

    def _add_member(self, row: Row, parent: str | None) -> None:
        members = self._table.members or ""
        key = self._one_of(members, row)
        if key is not None:
            row["@of"] = {LINK: [members, key]}
            self._found.setdefault(row_key(parent, [key]), row)

    def _plain(self, shape: Shape, without: frozenset[str]) -> Row:
        """The properties that are neither key nor link."""
        if shape.choices or not shape.properties:
            made = self._maker.make_shape(shape, "", self._table.singular)
            return {key: value for key, value in made.items() if key not in without} if isinstance(made, dict) else {}
        row: Row = {}
        for name, schema in shape.properties.items():
            inner = self._seeds._shapes.of(schema)
            if name in without or inner.write_only or (inner.says.get("deprecated") and name not in shape.required):
                continue
            if values := self._table.values.get(name):
                row[name] = self._chance.choice(values)
                continue
            made = self._maker.make_shape(inner, name, shape.name or self._table.singular, 1)
            if made is not NOTHING:
                row[name] = made
        return row

    def _linked(self, name: str, link: Link, row: Row, shape: Shape) -> Any:
        for twin in twins_of(name, self._table.links):
            # `book_id` and `book` are about the same book.
            if twin in self._chosen:
                made = [self._store.link(link, key) for key in self._chosen[twin]]
                return made if link.many else made[0]
        if link.many:
            wanted = self._chance.randint(0, 2)
            keys = [key for _ in range(wanted) if (key := self._one_of(link.table, row)) is not None]
            self._chosen[name] = list(dict.fromkeys(keys))
            return [self._store.link(link, key) for key in self._chosen[name]]
        may_miss = link.nullable or link.table == self._table.name
        is_likely = link.required or not may_miss or self._chance.random() < 0.7
        key = self._one_of(link.table, row) if is_likely else None
        if names_parent(name, self._table, self._seeds.tables):
            key = row.get(WITHIN)
        if key is not None:
            self._chosen[name] = [key]
            return self._store.link(link, key)
        if link.nullable:
            return None
        if not link.required:
            return NOTHING
        return self._maker.make(shape.properties[name], name, self._table.singular, 2)

    def _one_of(self, target: str, row: Row) -> str | None:
        """The key of a row of `target` that the row may belong to: under the same parent, where both have one."""
        above = self._seeds.tables[target].parent
        ancestor = self._store.ancestor(self._table, row, above) if above is not None else None
        keys = self._seeds.keys[target].get(ancestor, [])  # none yet of a table that comes later
        return self._chance.choice(keys) if keys else None


def _in_order(row: Row) -> None:
    """A row is updated after it was created, if at all."""
    names = {"_".join(words_of(name)): name for name in row}
    for first, last in (("created_at", "updated_at"), ("created", "updated"), ("created_at", "closed_at")):
        if first in names and last in names:
            early, late = row[names[first]], row[names[last]]
            if isinstance(early, str) and isinstance(late, str) and late < early:
                row[names[first]], row[names[last]] = late, early
