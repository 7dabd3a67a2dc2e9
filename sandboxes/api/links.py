"""Links between tables: properties that show or name rows of another table."""

from __future__ import annotations

from collections.abc import Mapping

from .model import Link, Table
from .paths import singular_of
from .realistic import words_of
from .shapes import Shapes

_KEY_WORDS = frozenset(("id", "uuid", "slug", "login", "username"))
_PEOPLE = frozenset(["user", "owner", "author", "assignee", "creator", "reporter", "reviewer", "sender", "recipient"])


class LinkFinder:
    """Finds the links of every table."""

    def __init__(self, shapes: Shapes, tables: Mapping[str, Table]) -> None:
        self._shapes = shapes
        self._tables = tables
        real = [table for table in tables.values() if table.members is None and not table.single and table.parts]
        self._by_schema: dict[str, list[Table]] = {}
        for table in real:
            for name in filter(None, (shapes.of(table.schema).name, table.summary)):
                self._by_schema.setdefault(name, []).append(table)
        self._by_word: dict[tuple[str, ...], list[Table]] = {}
        for table in real:
            self._by_word.setdefault(tuple(words_of(table.singular)), []).append(table)

    def links_of(self, table: Table) -> dict[str, Link]:
        """Property -> link, of the properties of `table` that lead to a table."""
        row, found = self._shapes.of(table.schema), {}
        for name, schema in row.properties.items():
            if table.parts and name == table.key.column:
                continue
            shape = self._shapes.of(schema)
            many = shape.kind == "array" and not shape.choices
            inner = self._shapes.of(shape.items) if many else shape
            target = self._nearest(self._by_schema.get(inner.name or "", []), table)
            shown = target is not None
            if target is None and inner.kind in {"string", "integer"} and inner.enum is None and not inner.choices:
                target = self._named(name, table, "integer" if "string" not in inner.kinds else "string")
            if target is not None:
                found[name] = Link(target.name, many, shown, name in row.required, shape.nullable)
        return found

    def _named(self, name: str, table: Table, kind: str) -> Table | None:
        """The table that `customer_id`, `customerId`, `customer_ids`, `idCustomer` or `owner_id` names a row of."""
        words = words_of(name)
        if words[:1] == ["id"]:
            words = [*words[1:-1], singular_of(words[-1]), "id"]
        if len(words) < 2 or singular_of(words[-1]) not in _KEY_WORDS:
            return None
        for size in range(len(words) - 1):
            found = self._nearest(self._by_word.get(tuple(words[size:-1]), []), table)
            is_itself = found is table and words[:-1] == words_of(table.singular)
            if found is not None and found.key.kind == kind and not is_itself:
                return found
        people = self._nearest(self._by_word.get(("user",), []), table)
        is_person = words[-2] in _PEOPLE and people is not None and people.key.kind == kind
        return people if is_person else None

    def _nearest(self, targets: list[Table], table: Table) -> Table | None:
        """Of tables of the same kind, the one beside or above `table`: an order's labels are those of its own shop."""
        for above in self.line_of(table):
            for target in targets:
                if target.parent == above:
                    return target
        return next((target for target in targets if target.parent is None), None)

    def line_of(self, table: Table) -> list[str | None]:
        """The names of the tables above `table`, itself first and `None` last."""
        line: list[str | None] = [table.name]
        while line[-1] is not None:
            line.append(self._tables[line[-1]].parent)
        return line


def twins_of(name: str, links: Mapping[str, Link]) -> list[str]:
    """The other properties that lead to the same row: `book` beside `book_id`."""
    own = links[name]
    return [
        other
        for other, link in links.items()
        if other != name and (link.table, link.many) == (own.table, own.many) and _stem(other) == _stem(name)
    ]


def _stem(name: str) -> list[str]:
    words = words_of(name)
    return words[:-1] if len(words) > 1 and singular_of(words[-1]) in _KEY_WORDS else words


def names_parent(name: str, table: Table, tables: Mapping[str, Table]) -> bool:
    """Whether a property leads to the row above: `owner_id` of pets under `/owners/{id}/pets`."""
    link = table.links[name]
    if table.parent is None or table.parent == table.name or link.many or link.table != table.parent:
        return False
    return _stem(name) == words_of(tables[table.parent].singular)


def nested_in(table: Table, tables: Mapping[str, Table]) -> dict[str, Link]:
    """The properties that show the rows nested in a row: `lines` of orders with `/orders/{id}/lines`."""
    found = {
        name: link
        for name, link in table.links.items()
        if link.many and link.shown and tables[link.table].parent == table.name != link.table
    }
    shown = [link.table for link in found.values()]
    return {name: link for name, link in found.items() if shown.count(link.table) == 1}


def ordered(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables in an order in which parents come first, then what must be linked to, then, mostly, what may be."""
    done: dict[str, Table] = {}
    busy: set[str] = set()

    def needed(name: str) -> set[str]:
        """The tables without which this one has no rows."""
        found, pending = {name}, [name]
        while pending:
            table = tables[pending.pop()]
            keyed = {part.table for part in table.parts if part.table != table.name}
            more = ({table.parent, table.members} | keyed) - {None} - found
            pending += [one for one in more if one]
            found |= {one for one in more if one}
        return found

    def visit(name: str) -> None:
        if name in done or needed(name) & busy:
            return
        table = tables[name]
        for other in (table.parent, table.members, *(part.table for part in table.parts)):
            if other is not None:
                visit(other)
        busy.add(name)
        links = sorted(table.links.values(), key=lambda link: not link.required)
        for other in [*[link.table for link in links], *table.owners]:
            visit(other)
        busy.discard(name)
        done[name] = table

    for name in tables:
        visit(name)
    return done
