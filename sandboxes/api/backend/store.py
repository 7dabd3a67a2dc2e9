"""The rows of one world: those that all worlds of a seed share, this world's changes, and their keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from ..inference.links import nested_in
from ..inference.model import HIDDEN, LINK, WITHIN, Item, Link, Plan, Table, is_link
from ..inference.paths import names_of
from ..maker import scalar_fits, sized
from ..patterns import matching
from ..realistic import Realistic, words_of
from ..shapes import Shape, Shapes
from .requests import INVALID, MISSING, Problem, Request

if TYPE_CHECKING:
    from .seeding import Seeds

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
                return self._names(row.get(name), above, key)
        if HIDDEN + above in row:
            return bool(row[HIDDEN + above] == key)
        return self._under(table, row, above, key)

    def _names(self, value: Any, above: str, key: str) -> bool:
        values = value if isinstance(value, list) else [value]
        mine = self.value({LINK: [above, key]})
        return any(one[LINK] == [above, key] if is_link(one) else one is not None and one == mine for one in values)

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
                is_in = self._names(row.get(plan.relation), plan.context.table, context[0])
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
        number = max(serial, int(shape.says.get("minimum", 1)))
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
    examples = [one for one in shape.says.get("examples", ()) if isinstance(one, str) and one]
    if examples:
        return like(examples[0], chance).replace("/", "-")  # a path's parameter is one step
    if set(words_of(part.column)) & {"id", "sid", "token"} or part.column.startswith("@"):
        word = "".join(words_of(table.singular))[:3] or "id"
        made = f"{word}_{chance.getrandbits(40):010x}"
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
