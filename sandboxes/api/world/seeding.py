"""The rows that a world begins with: made when they are first asked for, and the same for a seed on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from threading import RLock
from typing import Any

from ..inference.links import twins_of
from ..inference.model import HIDDEN, WITHIN, Link, Part, Table
from ..shapes import Shape, Shapes
from ..values.fitting import LINK
from ..values.making import NOTHING, Maker
from ..values.realistic import Realistic, words_of
from .row_keys import ONLY, column_value, new_key_value, row_key, with_key
from .store import Row, Store

_FIRST_DAY = datetime(2026, 1, 5, 9, tzinfo=UTC)
_MOST_OF_A_TABLE = 48
_TRIES = 20


def beginning(seed: int) -> datetime:
    """The time at which the world of a seed begins."""
    return _FIRST_DAY + timedelta(minutes=Random(f"clock/{seed}").randrange(60 * 24 * 200))


class Seeds:
    """The rows of one seed. `rows`: how many a collection at the top has; none at all where that is 0."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        shapes: Shapes,
        *,
        name: str,
        seed: int,
        rows: int,
    ) -> None:
        self._tables = dict(tables)
        self._order = {table: place for place, table in enumerate(tables)}
        self._shapes = shapes
        self._name = f"{name}/{seed}"
        self._rows = rows
        self._made: dict[str, dict[str, Row]] = {}
        self._half_made: dict[str, dict[str, Row]] = {}
        self._serials: dict[str, int] = {}
        self._keys: dict[str, dict[str | None, list[str]]] = {}
        # Worlds in several threads share these rows, and the making of one table makes those it hangs on.
        self._lock = RLock()
        self._now = beginning(seed)
        self._store = Store(self, self._now)

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self._tables)

    def rows(self, table: str) -> dict[str, Row]:
        """See `Origin.rows`."""
        found = self._made.get(table)
        if found is None:
            with self._lock:
                found = self._made.get(table, self._half_made.get(table))
                if found is None:
                    found = self._half_made[table] = {}
                    if table in self._tables and self._rows:
                        self._build(table, found)
                    self._made[table] = self._half_made.pop(table)
        return found

    def keys(self, table: str) -> dict[str | None, list[str]]:
        """The keys of a table's rows, by the key of the row above them."""
        found = self._keys.get(table)
        if found is None:
            found = {}
            for key, row in self.rows(table).items():
                found.setdefault(row.get(WITHIN), []).append(key)
            self._keys[table] = found
        return found

    def serial(self, table: str) -> int:
        """See `Origin.serial`."""
        self.rows(table)
        return self._serials.get(table, 1)

    def _build(self, name: str, found: dict[str, Row]) -> None:
        table = self._tables[name]
        chance = Random(f"{self._name}/{name}")
        builder = _Builder(self, table, chance, found)
        for parent in self._parents(table):
            for _ in range(self._count(table, parent, chance)):
                if len(found) < max(_MOST_OF_A_TABLE, self._rows) or table.single:
                    builder.add(parent)
        self._serials[name] = builder.serial

    def _parents(self, table: Table) -> Iterator[str | None]:
        if table.parent is None:
            yield None
        else:
            yield from self.rows(table.parent)

    def _count(self, table: Table, parent: str | None, chance: Random) -> int:
        if table.single:
            return 1
        if table.members is not None:
            return chance.randint(1, 3)
        if parent is None:
            return self._rows
        depth = self._depth(table)
        return chance.randint(1, 3) if depth == 1 else chance.randint(0, 2)

    def _depth(self, table: Table) -> int:
        depth, above = 0, table.parent
        while above is not None:
            depth, above = depth + 1, self._tables[above].parent
        return depth


class _Builder:
    """Makes the rows of one table, one after the other."""

    def __init__(self, seeds: Seeds, table: Table, chance: Random, found: dict[str, Row]) -> None:
        self._seeds = seeds
        self._table = table
        self._chance = chance
        self._found = found
        self._realistic = Realistic(chance, seeds._now)
        self._maker = Maker(seeds._shapes, self._realistic, rich=True)
        self._within: dict[str | None, int] = {}
        self._chosen: dict[str, list[str]] = {}
        self._own: dict[str | None, list[str]] = {}
        self.serial = chance.randint(100, 5000) if self._is_global() else 1

    def _is_global(self) -> bool:
        """Whether numbers count through the whole table, as ids do, and not anew under each parent."""
        parts = self._table.parts
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
                row[part.column] = self._realistic.text(part.parameter, table.singular)
        _in_order(row)
        self._add_keyed(row, parent)

    def _add_keyed(self, row: Row, parent: str | None) -> None:
        table = self._table
        for _ in range(_TRIES):
            number = self.serial if self._is_global() else self._within.get(parent, 0) + 1
            value = new_key_value(self._seeds._shapes, self._realistic, table, row, number)
            key = row_key(parent, [*self._scopes(row), value])
            if key not in self._found:
                self._found[key] = with_key(table, row, value)
                self._own.setdefault(parent, []).append(key)
                self._within[parent] = number
                self.serial = max(self.serial, number) + (self._chance.randint(1, 4) if self._is_global() else 1)
                return

    def _scopes(self, row: Row) -> list[Any]:
        return [self._value(row, part) for part in self._table.parts[:-1]]

    def _value(self, row: Row, part: Part) -> Any:
        return column_value(self._seeds._store, self._seeds._tables, row.get(part.column))

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
                return [self._link(link, key) for key in self._chosen[twin]] if link.many else self._first(link, twin)
        if link.many:
            wanted = self._chance.randint(0, 2)
            keys = [key for _ in range(wanted) if (key := self._one_of(link.table, row)) is not None]
            self._chosen[name] = list(dict.fromkeys(keys))
            return [self._link(link, key) for key in self._chosen[name]]
        may_miss = link.nullable or link.table == self._table.name
        is_likely = link.required or not may_miss or self._chance.random() < 0.7
        key = self._one_of(link.table, row) if is_likely else None
        if key is not None:
            self._chosen[name] = [key]
            return self._link(link, key)
        if link.nullable:
            return None
        if not link.required:
            return NOTHING
        return self._maker.make(shape.properties[name], name, self._table.singular, 2)

    def _first(self, link: Link, twin: str) -> Any:
        return self._link(link, self._chosen[twin][0])

    def _link(self, link: Link, key: str) -> Any:
        value = {LINK: [link.table, key]}
        return value if link.shown else column_value(self._seeds._store, self._seeds._tables, value)

    def _one_of(self, target: str, row: Row) -> str | None:
        """The key of a row of `target` that the row may belong to: under the same parent, where both have one."""
        seeds = self._seeds
        above = seeds._tables[target].parent
        ancestor = self._ancestor(row, above) if above is not None else None
        if target == self._table.name:
            keys = self._own.get(ancestor, [])
        elif seeds._order[target] < seeds._order[self._table.name]:
            keys = seeds.keys(target).get(ancestor, [])
        else:
            return None
        return self._chance.choice(keys) if keys else None

    def _ancestor(self, row: Row, name: str) -> str | None:
        """The key of the row of table `name` that a row stands under."""
        table, key = self._table, row.get(WITHIN)
        while table.parent is not None and key is not None:
            if table.parent == name:
                return str(key)
            above = table.parent
            table, key = self._seeds._tables[above], self._seeds.rows(above)[key].get(WITHIN)
        return None


def _in_order(row: Row) -> None:
    """A row is updated after it was created, if at all."""
    names = {"_".join(words_of(name)): name for name in row}
    for first, last in (
        ("created_at", "updated_at"),
        ("created", "updated"),
        ("created_at", "closed_at"),
    ):
        if first in names and last in names:
            early, late = row[names[first]], row[names[last]]
            if isinstance(early, str) and isinstance(late, str) and late < early:
                row[names[first]], row[names[last]] = late, early
