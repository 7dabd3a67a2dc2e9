"""Finds the rows that a request is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..inference.model import HIDDEN, WITHIN, Item, Plan, Table
from ..inference.paths import names_of
from ..values.fitting import LINK, is_link
from ..values.realistic import words_of
from ..world.row_keys import ONLY, column_value, row_key
from ..world.store import Row, Store
from .requests import INVALID, MISSING, Problem, Request

Found = tuple[str, Row]


class Rows:
    """The rows of one world, as paths name them."""

    def __init__(self, store: Store, tables: dict[str, Table]) -> None:
        self.store = store
        self.tables = tables

    def at(self, item: Item, request: Request) -> Found:
        """The row that the path names as far as `item` goes. Raises `Problem` where there is none."""
        context = self.at(item.context, request) if item.context is not None else None
        table = self.tables[item.table]
        if table.single:
            key = context[0] if context else ONLY
            row = self.store.get(table.name, key)
            if row is None:
                raise Problem(MISSING, f"There is no {table.singular} here.")
            return key, row
        if request.plan.pick and item is request.plan.item:
            return self._picked(item, context, request.plan)
        values = self.values_of(item, request)
        found = self._find(item, table, context, values)
        if found is None:
            shown = "/".join(str(value) for value in values)
            raise Problem(MISSING, f"There is no {table.singular} {shown!r}.")
        return found

    def named(self, request: Request) -> Found:
        """The row that what is sent names by its key. Raises `Problem` where there is none."""
        table = self.tables[str(request.plan.table)]
        wanted = request.sent.get(table.key.column)
        if wanted is None:
            raise Problem(INVALID, f"{table.key.column}: say which {table.singular} is meant.")
        for key, row in self.store.items(table.name):
            if str(column_value(self.store, self.tables, row.get(table.key.column))) == str(wanted):
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
        for key, row in self.store.items(members.name):
            if self._matches(row, item, values):
                return row_key(context[0] if context else None, [key]), (key, row)
        shown = "/".join(str(value) for value in values)
        raise Problem(MISSING, f"There is no {members.singular} {shown!r}.")

    def _find(self, item: Item, table: Table, context: Found | None, values: list[Any]) -> Found | None:
        if item.direct:
            key = row_key(context[0] if context else None, values)
            row = self.store.get(table.name, key)
            if row is not None and self._matches(row, item, values):
                return key, row
        above = item.context.table if item.context else None
        for key, row in self.store.items(table.name):
            if self._matches(row, item, values) and (context is None or self.belongs(table, row, above, context[0])):
                return key, row
        return None

    def _matches(self, row: Row, item: Item, values: list[Any]) -> bool:
        return all(
            any(str(column_value(self.store, self.tables, row.get(one))) == str(value) for one in _columns(*lookup))
            for lookup, value in zip(item.lookups, values, strict=True)
        )

    def _picked(self, item: Item, context: Found | None, plan: Plan) -> Found:
        above = item.context.table if item.context else None
        table = self.tables[item.table]
        rows = [
            (key, row)
            for key, row in self.store.items(table.name)
            if context is None or self.belongs(table, row, above, context[0])
        ]
        if not rows:
            raise Problem(MISSING, f"There is no {table.singular} here.")
        return rows[0] if plan.pick == "first" else rows[-1]

    def belongs(self, table: Table, row: Row, above: str | None, key: str) -> bool:
        """Whether a row belongs to the row `key` of the table `above`, in whatever way they hang together."""
        if above is None:
            return True
        if above == table.parent:
            return row.get(WITHIN) == key
        for name, link in table.links.items():
            if link.table == above:
                return self._names(row.get(name), above, key)
        if HIDDEN + above in row:
            return bool(row[HIDDEN + above] == key)
        ancestor = self.ancestor(table, row, above)
        return ancestor is None or ancestor == key

    def _names(self, value: Any, above: str, key: str) -> bool:
        values = value if isinstance(value, list) else [value]
        mine = column_value(self.store, self.tables, {LINK: [above, key]})
        return any(one[LINK] == [above, key] if is_link(one) else one is not None and one == mine for one in values)

    def ancestor(self, table: Table, row: Row, above: str) -> str | None:
        """The key of the row of `above` that a row stands under, `None` where it stands under none."""
        key = row.get(WITHIN)
        while table.parent is not None and key is not None:
            if table.parent == above:
                return str(key)
            found = self.store.get(table.parent, key)
            table, key = self.tables[table.parent], found.get(WITHIN) if found else None
        return None

    def listed(self, plan: Plan, context: Found | None) -> Iterator[Found]:
        """The rows that a list's path holds."""
        table = self.tables[str(plan.table)]
        for key, row in self.store.items(table.name):
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


def _columns(parameter: str, column: str) -> list[str]:
    """What a path's parameter may be compared with: `{issueIdOrKey}` is the id or the key."""
    words = words_of(parameter)
    return [column, *words] if "or" in words else [column]
