"""The rows of one world: those that all worlds of a seed share, this world's changes, and their keys.

`Seeds` makes the rows that a world begins with; a `Store` holds them and what has changed since.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Self
from uuid import UUID

from .maker import NOTHING, Maker, scalar_fits, sized
from .model import HIDDEN, LINK, WITHIN, Item, Link, Plan, Table, is_link
from .paths import names_of
from .realistic import Realistic, matching, words_of
from .requests import INVALID, MISSING, Problem, Request
from .shapes import Shape, Shapes
from .tables import names_parent, nested_in, twins_of

Row = dict[str, Any]
"""Column -> value. Rows are never written into: a change puts a new row in the place of the old one."""


class Store:
    """Tables of rows, found by their keys, by paths and by links.

    A fork costs what has changed since the beginning, whatever the size of the world.
    """

    def __init__(self, origin: Seeds, now: datetime) -> None:
        self.origin = origin
        self.tables = origin.tables
        self.now = now
        self._changes: dict[str, dict[str, Row | None]] = {}
        self._serials: dict[str, int] = {}

    def fork(self) -> Self:
        """A store that shares only what is never written to."""
        twin = type(self)(self.origin, self.now)
        twin._changes, twin._serials = self._copies()
        return twin

    def _copies(self) -> tuple[dict[str, dict[str, Row | None]], dict[str, int]]:
        return {table: dict(changes) for table, changes in self._changes.items()}, dict(self._serials)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Takes back everything that the block changed, where it raises."""
        before = self._copies()
        try:
            yield
        except BaseException:
            self._changes, self._serials = before
            raise

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, table: str, key: str) -> Row | None:
        """The row, or `None`."""
        changes = self._changes.get(table)
        return changes[key] if changes is not None and key in changes else self.origin.rows(table).get(key)

    def keys(self, table: str) -> list[str]:
        """The keys of all rows that were ever there, the oldest first."""
        return list(dict.fromkeys([*self.origin.rows(table), *self._changes.get(table, ())]))

    def items(self, table: str) -> Iterator[tuple[str, Row]]:
        """Keys and rows, the oldest first."""
        base, changes = self.origin.rows(table), self._changes.get(table, {})
        for key, row in base.items():
            found = changes.get(key, row)
            if found is not None:
                yield key, found
        for key, new in changes.items():
            if key not in base and new is not None:
                yield key, new

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, table: str, key: str, row: Row) -> None:
        """Put a row in its place, new or not."""
        self._changes.setdefault(table, {})[key] = row

    def listing_nested(self, table: Table, key: str, above: Row) -> Row:
        """The row above, with the nested row `key` of `table` in the property that shows such rows, if it has one."""
        shown = nested_in(self.tables[str(table.parent)], self.tables)
        lists = {name: [*(above.get(name) or []), self.link(link, key)] for name, link in shown.items()}
        return {**above, **{name: rows for name, rows in lists.items() if shown[name].table == table.name}}

    def drop(self, table: str, key: str) -> None:
        """Take a row away."""
        self._changes.setdefault(table, {})[key] = None

    def next_serial(self, table: str) -> int:
        """A number that no row of the table has had, deleted ones included."""
        number = self._serials.get(table)
        if number is None:
            number = self.origin.serial(table)
        self._serials[table] = number + 1
        return number

    # -- rows as paths and links name them --------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """A value of a column; of a link, what other rows write to name the row that it leads to."""
        if not is_link(value):
            return value
        table, key = value[LINK]
        row = self.get(table, key)
        return None if row is None else self.value(row.get(self.tables[table].key.column))

    def link(self, link: Link, key: str) -> Any:
        """What a property that is a link holds for the row `key`."""
        value = {LINK: [link.table, key]}
        return value if link.shown else self.value(value)

    def at(self, item: Item, request: Request) -> Found:
        """The row that the path names as far as `item` goes. Raises `Problem` where there is none."""
        context = self.at(item.context, request) if item.context is not None else None
        table, shown = self.tables[item.table], "here"
        found: Found | None = None
        if table.single:
            key = context[0] if context else ONLY
            row = self.get(table.name, key)
            found = None if row is None else (key, row)
        elif request.plan.pick and item is request.plan.item:
            rows = [one for one in self.items(table.name) if self._hangs(item, one[1], context)]
            found = rows[0 if request.plan.pick == "first" else -1] if rows else None
        else:
            values = self.values_of(item, request)
            found = self._find(item, context, values)
            shown = repr("/".join(map(str, values)))
        if found is None:
            raise Problem(MISSING, f"There is no {table.singular} {shown}.")
        return found

    def named(self, request: Request) -> Found:
        """The row that what is sent names by its key. Raises `Problem` where there is none."""
        table = self.tables[str(request.plan.table)]
        wanted = request.sent.get(table.key.column)
        if wanted is None:
            raise Problem(INVALID, f"{table.key.column}: say which {table.singular} is meant.")
        for key, row in self.items(table.name):
            if str(self.value(row.get(table.key.column))) == str(wanted):
                return key, row
        raise Problem(MISSING, f"There is no {table.singular} {wanted!r}.")

    def values_of(self, item: Item, request: Request) -> list[Any]:
        """The values of the item's own parameters. Another path may call them otherwise: their places count."""
        count = len(names_of(item.path))
        values = list(request.path.values())[:count]
        return values[len(values) - len(item.lookups) :]

    def member(self, item: Item, request: Request, context: Found | None) -> tuple[str, Found]:
        """The row that is, or may be, in a collection: the key of its membership, and the row."""
        members = self.tables[str(self.tables[item.table].members)]
        values = self.values_of(item, request)
        for key, row in self.items(members.name):
            if self._matches(row, item, values):
                return row_key(context[0] if context else None, [key]), (key, row)
        shown = "/".join(str(value) for value in values)
        raise Problem(MISSING, f"There is no {members.singular} {shown!r}.")

    def _find(self, item: Item, context: Found | None, values: list[Any]) -> Found | None:
        if item.direct:
            key = row_key(context[0] if context else None, values)
            row = self.get(item.table, key)
            if row is not None and self._matches(row, item, values):
                return key, row
        for key, row in self.items(item.table):
            if self._matches(row, item, values) and self._hangs(item, row, context):
                return key, row
        return None

    def _hangs(self, item: Item, row: Row, context: Found | None) -> bool:
        if context is None or item.context is None:
            return True
        return self.belongs(self.tables[item.table], row, item.context.table, context[0])

    def _matches(self, row: Row, item: Item, values: list[Any]) -> bool:
        return all(
            any(str(self.value(row.get(one))) == str(value) for one in _columns(*lookup))
            for lookup, value in zip(item.lookups, values, strict=True)
        )

    def belongs(self, table: Table, row: Row, above: str, key: str) -> bool:
        """Whether a row belongs to the row `key` of the table `above`, in whatever way they hang together."""
        if above == table.parent:
            return row.get(WITHIN) == key
        for name, link in table.links.items():
            if link.table == above:
                return self._names(table, row, name, above, key)
        if HIDDEN + above in row:
            return bool(row[HIDDEN + above] == key)
        return self._under(table, row, above, key)

    def _names(self, table: Table, row: Row, name: str, above: str, key: str) -> bool:
        value: Any = row.get(name)
        values, other = value if isinstance(value, list) else [value], self.get(above, key)
        is_near = other is not None and self.is_near(table, row, self.tables[above], other)
        mine = self.value({LINK: [above, key]}) if is_near else None
        return any(one[LINK] == [above, key] if is_link(one) else one is not None and one == mine for one in values)

    def is_near(self, table: Table, row: Row, target: Table, other: Row) -> bool:
        """Whether two rows stand under the same row, as far as they stand under one: else a value of the one's key in
        the other is the key of another row."""
        if target.parent is None:
            return True
        own = row.get(WITHIN) if table.parent == target.parent else self.ancestor(table, row, target.parent)
        return own is None or other.get(WITHIN) == own

    def ancestor(self, table: Table, row: Row, above: str) -> str | None:
        """The key of the row of `above` that a row stands under, `None` where it stands under none."""
        key = row.get(WITHIN)
        while table.parent is not None and key is not None:
            if table.parent == above:
                return str(key)
            found = self.get(table.parent, key)
            table, key = self.tables[table.parent], found.get(WITHIN) if found else None
        return None

    def listed(self, plan: Plan, context: Found | None) -> Iterator[Found]:
        """The rows that a list's path holds."""
        table = self.tables[str(plan.table)]
        for key, row in self.items(table.name):
            if context is None or plan.context is None:
                is_in = True
            elif plan.relation is None:
                is_in = self._under(table, row, plan.context.table, context[0])
            elif plan.relation == "within":
                is_in = row.get(WITHIN) == context[0]
            elif plan.relation.startswith(HIDDEN):
                is_in = row.get(plan.relation) == context[0]
            else:
                is_in = self._names(table, row, plan.relation, plan.context.table, context[0])
            if is_in:
                yield key, row

    def _under(self, table: Table, row: Row, above: str, key: str) -> bool:
        ancestor = self.ancestor(table, row, above)
        return ancestor is None or ancestor == key

    # -- saving -------------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What has changed, as JSON."""
        return {"now": self.now.isoformat(), "changes": self._changes, "serials": self._serials}

    def load(self, saved: dict[str, Any]) -> None:
        """Take over what `saved` gave, of a world with the same origin."""
        self.now = datetime.fromisoformat(saved["now"])
        self._changes = saved["changes"]
        self._serials = saved["serials"]


ONLY = "it"
"""The key of the row of a table that has one row."""


def row_key(parent: str | None, values: Iterable[Any]) -> str:
    """The key of a row under `parent`: values joined by `/`, each with its own `/` escaped."""
    own = [str(value).replace("%", "%25").replace("/", "%2F") for value in values]
    return "/".join([*([parent] if parent else []), *own])


def free_key(store: Store, table: str, key: str) -> str:
    """`key`, or with a number after it where a row had it that is called otherwise by now."""
    free, number = key, 1
    while store.get(table, free) is not None:
        number += 1
        free = f"{key}~{number}"
    return free


def with_key(table: Table, row: Row, value: Any) -> Row:
    """The row with the last part of its key, also where an object of the row shows it."""
    keyed = {**row, table.key.column: value}
    if table.key.shown is not None:
        holder, name = table.key.shown
        held = row.get(holder)
        keyed[holder] = {**(held if isinstance(held, dict) else {}), name: value}
    return keyed


def given_key(table: Table, row: Row) -> Any:
    """The last part of a key as a new row has it: in its column, or in the object that shows it."""
    if table.key.shown is None:
        return row.get(table.key.column)
    held = row.get(table.key.shown[0])
    return held.get(table.key.shown[1]) if isinstance(held, dict) else None


def lawful(shapes: Shapes, shape: Shape, row: Row, free: Collection[str]) -> Row | None:
    """A row that keeps the shape's rules: without one of the optional columns `free`, where only then it does.

    None where no column can be left out for that.
    """
    if not shape.rules:
        return row
    shown = {name: value for name, value in row.items() if not name.startswith(HIDDEN)}
    for name in (None, *(one for one in shown if one in free and one not in shape.required)):
        if shapes.keeps_rules(shape, {one: value for one, value in shown.items() if one != name}):
            return {one: value for one, value in row.items() if one != name}
    return None


def new_key_value(shapes: Shapes, realistic: Realistic, table: Table, row: Row, serial: int) -> Any:
    """A value for the last part of a key, that the server chooses."""
    part = table.key
    shape = shapes.of(part.schema)
    if part.kind == "integer":
        low = int(max(shape.says.get("minimum", 1), shape.says.get("exclusiveMinimum", 0) + 1))
        number = serial if serial >= low else low - 1 + serial  # another one for each serial
        return number if "integer" in shape.kinds else str(number)
    chance = realistic.chance
    if shape.enum is not None:
        return chance.choice([one for one in shape.enum if one is not None])
    if shape.says.get("format") == "uuid" or {"uuid", "guid"} & set(words_of(part.column)):
        return str(UUID(int=chance.getrandbits(128), version=4))
    if "pattern" in shape.says:
        low, high = int(shape.says.get("minLength", 0)), shape.says.get("maxLength")
        found = matching(shape.says["pattern"], chance, low=low, high=high)
        if found is not None:
            return found
    if isinstance(shape.says.get("format"), str):
        found = realistic.formatted(shape.says["format"], part.column)
        if found is not None and "/" not in found and scalar_fits(shape, found):
            return found
    examples = [one for one in shape.says.get("examples", ()) if isinstance(one, str) and one]
    if examples:
        return like(examples[0], chance).replace("/", "-")  # a path's parameter is one step
    if set(words_of(part.column)) & {"id", "sid", "token"} or part.column.startswith("@"):
        word = "".join(words_of(table.singular))[:3] or "id"
        made = f"{word}_{chance.getrandbits(40):010x}"
        made = made[-int(shape.says.get("maxLength", len(made))) :]  # what tells rows apart stands at the end
    elif isinstance(row.get("name"), str) and part.column != "name":
        made = _slug(row["name"])
    else:
        made = _slug(realistic.text(part.column, table.singular))
    made = sized(made, int(shape.says.get("minLength", 0)), shape.says.get("maxLength"))
    return made if scalar_fits(shape, made) else examples[0] if examples else made


def like(example: str, chance: Random) -> str:
    """Another identifier of the same make: digits stay digits, letters of the random part stay letters."""
    start = max(example.rfind("_"), example.rfind("-") if "_" not in example else -1) + 1
    head, tail = example[:start], example[start:]
    if not any(letter.isdigit() for letter in tail):
        return f"{example}-{chance.randrange(1000, 10_000)}" if not head else head + "".join(_again(tail, chance))
    return head + "".join(_again(tail, chance))


def _again(text: str, chance: Random) -> Iterable[str]:
    is_hex = re.fullmatch(r"[0-9a-f]+", text) is not None and not text.isdigit()
    for place, letter in enumerate(text):
        if is_hex:
            yield chance.choice("0123456789abcdef")
        elif letter.isdigit():
            yield chance.choice("123456789" if place == 0 else "0123456789")
        elif letter.isalpha() and letter.isascii():
            yield chance.choice("ABCDEFGHJKMNPQRSTUVWXYZ" if letter.isupper() else "abcdefghjkmnpqrstuvwxyz")
        else:
            yield letter


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-") or "x"


Found = tuple[str, Row]


def _columns(parameter: str, column: str) -> list[str]:
    """What a path's parameter may be compared with: `{issueIdOrKey}` is the id or the key."""
    words = words_of(parameter)
    return [column, *words] if "or" in words else [column]


# ---------------------------------------------------------------------------------------------------------------------
# The rows that a world begins with: the same for a seed on every machine

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
        if shape.teller is not None:
            shape = self._chance.choice(self._seeds._shapes.kinds(shape))
        for owner in table.owners:
            if (key := self._one_of(owner, row)) is not None:
                row[HIDDEN + owner] = key
        for name, link in table.links.items():
            made = self._linked(name, link, row, shape) if name in shape.properties else NOTHING
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
        shape = self._seeds._shapes.of(table.key.schema)
        for tried in range(_TRIES):
            number = tried + (self.serial if self._is_global() else self._within.get(parent, 0) + 1)
            value = new_key_value(self._seeds._shapes, self._maker.realistic, table, row, number)
            key = row_key(parent, [*(self._store.value(row.get(part.column)) for part in table.parts[:-1]), value])
            if key not in self._found and scalar_fits(shape, value):
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
