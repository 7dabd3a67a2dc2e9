"""Which tables an API's paths are about, and which paths name a row or list rows of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..shapes import Shapes
from ..values.realistic import words_of
from .key_inference import key_part, scope_part
from .model import HIDDEN, Item, Part, Table
from .paths import (
    body_schema,
    head_of,
    is_object,
    names_of,
    same_words,
    singular_of,
    steps_of,
    success_of,
)
from .pathways import Path, Steps, paths_of, shared_prefix

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Document, Operation

_SELECTORS = {
    "latest": "last",
    "newest": "last",
    "last": "last",
    "current": "first",
    "me": "first",
    "self": "first",
}
_VERBS = frozenset(["search", "find", "query", "all", "list", "filter"])


@dataclass(frozen=True)
class Listing:
    """A path that lists rows of a table. `relation`: see `Plan`."""

    table: str
    context: Item | None
    relation: str | None


class TableFinder:
    """Finds tables, and the paths that lead to them."""

    def __init__(self, document: Document, shapes: Shapes) -> None:
        self._shapes = shapes
        self.paths = paths_of(document, shapes)
        self._prefix = shared_prefix(self.paths)
        self.tables: dict[str, Table] = {}
        self.items: dict[Steps, Item] = {}
        self.lists: dict[Steps, Listing] = {}
        self.singles: dict[Steps, tuple[Item, str | None]] = {}
        self._names: dict[Steps, str | None] = {}
        self._homes: dict[str, list[tuple[Steps, Table]]] = {}
        self._item_steps = {path.steps for path in self.paths.values() if self._names_a_row(path)}
        self._member_steps = {steps for steps in self._item_steps if self._is_membership(self.paths[steps])}

    def find(self) -> None:
        """Fill `tables`, `items`, `lists` and `singles`."""
        rows = [self.paths[steps] for steps in self._item_steps - self._member_steps]
        for path in sorted(rows, key=self._claim):
            self._home_or_alias(path)
        for steps in sorted(self._item_steps - self._member_steps, key=lambda one: (len(one), one)):
            self._add_item(self.paths[steps])
        for path in sorted(self.paths.values(), key=lambda one: (len(one.steps), one.steps)):
            if path.steps not in self._item_steps and (path.listed or self._creates(path)):
                self._add_list(path)
        for steps in sorted(self._member_steps, key=lambda one: (len(one), one)):
            self._add_membership(self.paths[steps])
        for path in sorted(self.paths.values(), key=lambda one: (len(one.steps), one.steps)):
            if path.steps not in self.items and path.steps not in self.lists and path.row(["get"]) and not path.run:
                self._add_single(path)

    # -- what a path is -----------------------------------------------------------------------------------------------

    def _names_a_row(self, path: Path) -> bool:
        if not path.run or path.listed:
            return False
        shorter = [path.steps[: len(path.steps) - less] for less in range(1, path.run)]
        for steps in shorter:
            if steps in self.paths and self.paths[steps].row(["get"]):
                return False  # `/ports/{id}/{status}` says something of a row, and is none itself
            if steps in self.paths and not self.paths[steps].listed:
                path.run = len(path.steps) - len(steps)
                break
        reads, writes = (
            path.row(["get"]),
            {"put", "patch", "delete"} & set(path.operations),
        )
        checks = "get" in path.operations and "204" in path.operations["get"].responses
        updates = "post" in path.operations and path.row(["post"]) is not None
        return bool(reads or writes or checks or (updates and path.collection in self.paths))

    def _is_membership(self, path: Path) -> bool:
        """Whether the path only says that something that lives elsewhere is in a collection."""
        get, put = path.operations.get("get"), path.operations.get("put")
        if path.row(["patch"]) or (put is not None and put.body is not None):
            return False
        above = self.paths.get(path.collection)
        is_made_here = above is not None and "post" in above.operations
        if get is not None and path.row(["get"]) is None:
            return body_schema(get) is None
        if put is not None:
            return not is_made_here
        name = self._shapes.name_of(self._entity(path))
        return "delete" in path.operations and not is_made_here and name is not None and self._is_elsewhere(path, name)

    def _is_elsewhere(self, path: Path, name: str) -> bool:
        """Whether rows of the definition `name` have a path named after it, and this one is not."""
        own = words_of(name)[-1:]
        if words_of(singular_of(path.word))[-1:] == own:
            return False
        return any(
            words_of(singular_of(other.word))[-1:] == own and self._name_of(other) == name
            for other in (self.paths[steps] for steps in self._item_steps)
        )

    def _name_of(self, path: Path) -> str | None:
        """The definition of the row that a path names."""
        if path.steps not in self._names:
            self._names[path.steps] = self._shapes.name_of(self._entity(path))
        return self._names[path.steps]

    def _claim(self, path: Path) -> tuple[bool, bool, int, Steps]:
        """Sorts first which path is the home of its rows: one plain collection at the top, then one that is written."""
        is_nested = len([step for step in path.steps[len(self._prefix) :] if step != "{}"]) > 1
        return is_nested, not self._is_written(path), len(path.steps), path.steps

    def _is_written(self, path: Path) -> bool:
        return bool({"put", "patch", "delete"} & set(path.operations))

    def _creates(self, path: Path) -> bool:
        post = path.operations.get("post")
        if post is None or path.run:
            return False
        body = body_schema(post)
        sends_row = any(one.location == "query" for one in post.parameters)
        if post.body is not None:
            sends_row = body is not None and is_object(self._shapes, body)
        return sends_row and ((*path.steps, "{}") in self._item_steps or path.row(["post"]) is not None)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _entity(self, path: Path) -> Any:
        """The schema of the row that a path names."""
        found = path.row(["get", "patch", "put", "post"])
        above = self.paths.get(path.collection)
        if found is None and above is not None:
            found = above.row(["post"]) or above.listed
        if found is not None:
            return found.item
        for method in ("put", "patch", "post"):
            if method in path.operations and (sent := body_schema(path.operations[method])) is not None:
                return sent
        return {}

    def _context(self, steps: Steps) -> Steps | None:
        """The longest path above that names a row."""
        for size in range(len(steps) - 1, 0, -1):
            if steps[:size] in self._item_steps - self._member_steps:
                return steps[:size]
        return None

    def _home_or_alias(self, path: Path) -> None:
        schema = self._entity(path)
        name = self._shapes.name_of(schema)
        homes = self._homes.setdefault(name or f"/{'/'.join(path.collection)}", [])
        if any(self._absorbs(home, path.steps) for home, _ in homes):
            return
        homes.append((path.steps, self._new_table(path.collection, path.written, schema)))

    def _absorbs(self, home: Steps, other: Steps) -> bool:
        """Whether rows under another path are rows of the table at `home`, seen from elsewhere."""
        context = self._context(home)
        if context is not None:
            return other[: len(context)] == context and other != home
        own = [step for step in home[len(self._prefix) :] if step != "{}"]
        return len(own) == 1

    def _table_of(self, schema: Any, steps: Steps) -> tuple[Steps, Table] | None:
        """The table whose rows a schema describes, as seen from the path `steps`."""
        name = self._shapes.name_of(schema)
        unnamed = f"/{'/'.join(self.paths[steps].collection)}"
        for home, table in self._homes.get(name or unnamed, []):
            if home == steps or home[: len(steps)] == steps or self._absorbs(home, steps):
                return home, table
        return None

    def _new_table(self, collection: Steps, written: str, schema: Any) -> Table:
        words = [step for step in collection[len(self._prefix) :] if step != "{}"] or ["rows"]
        name = words[-1]
        for size in range(2, len(words) + 1):
            if name not in self.tables:
                break
            name = ".".join(words[-size:])
        stem, number = name, 1
        while name in self.tables:
            number += 1
            name = f"{stem}_{number}"
        path = head_of(written, len(collection))
        self.tables[name] = Table(name, path, schema, singular_of(words[-1]))
        return self.tables[name]

    def _parent(self, table: Table, context: Item | None) -> str | None:
        """The table whose rows stand above, `None` where those would stand below themselves."""
        above = context.table if context is not None else None
        while above is not None:
            if above == table.name:
                return None
            above = self.tables[above].parent
        return context.table if context is not None else None

    def _add_item(self, path: Path) -> None:
        known = self._table_of(self._entity(path), path.steps)
        if known is None:
            return
        home, table = known
        context = self.items.get(self._context(path.steps) or ())
        names = names_of(path.written)[-path.run :]
        shape = self._shapes.of(table.schema)
        if home == path.steps:
            kinds = {one.name: one.schema for one in self._any(path).parameters if one.location == "path"}
            key, table.guessed_key = self._key_part(path, names[-1], table)
            scopes = [scope_part(one, kinds.get(one, True), shape, self._shapes) for one in names[:-1]]
            table.parent, table.parts = (
                self._parent(table, context),
                (*scopes, key),
            )
        columns = [part.column for part in table.parts] or [HIDDEN + names[-1]]
        if home != path.steps:
            columns = [*columns[:-1], self._key_part(path, names[-1], table)[0].column]
        lookups = tuple(zip(names[-len(columns) :], columns[-len(names) :], strict=False))
        same_context = (context.table if context else None) == table.parent
        is_direct = same_context and [column for _, column in lookups] == [part.column for part in table.parts]
        self.items[path.steps] = Item(
            head_of(path.written, len(path.steps)),
            table.name,
            context,
            lookups,
            is_direct,
        )

    def _key_part(self, path: Path, name: str, table: Table) -> tuple[Part, bool]:
        """What a path's last parameter is in the rows of a table, and whether that was guessed."""
        parameter = next((one for one in self._any(path).parameters if one.name == name), None)
        schema, description = (True, "") if parameter is None else (parameter.schema, parameter.description)
        return key_part(name, schema, self._shapes.of(table.schema), self._shapes, table.singular, description)

    def _any(self, path: Path) -> Operation:
        return next(iter(path.operations.values()))

    # -- lists --------------------------------------------------------------------------------------------------------

    def _add_list(self, path: Path) -> None:
        found = path.listed or path.row(["post"])
        context = self.items.get(self._context(path.steps) or ())
        below = self._item_below(path.steps)
        if below is not None:
            table = self.tables[below.table]
            self.lists[path.steps] = self._listing(table, context)
            shown = None if path.listed is None else path.listed.item
            name = None if shown is None else self._shapes.name_of(shown)
            if name is not None and table.summary is None and self._table_of(shown, path.steps) is None:
                table.summary = name
                self._homes.setdefault(name, []).insert(0, ((*path.steps, "{}"), table))
            return
        if found is None:
            return
        known = self._table_of(found.item, path.steps)
        if known is None and path.listed is None:
            return  # what is made here could never be read: it is something done to the row above
        if known is None:
            table = self._new_table(path.collection, path.written, found.item)
            shape = self._shapes.of(found.item)
            part, table.guessed_key = key_part("id", True, shape, self._shapes, table.singular)
            table.parent, table.parts = self._parent(table, context), (part,)
            self._homes.setdefault(self._shapes.name_of(found.item) or "/" + "/".join(path.steps), []).append(
                ((*path.steps, "{}"), table)
            )
            self.lists[path.steps] = Listing(table.name, context, "within" if context else None)
            return
        home, table = known
        if context is not None and context.table == table.name and path.listed is None:
            # Something is done to the row; only an answer of 201 says that there is another one now.
            if success_of(path.operations["post"]) == "201":
                self.lists[path.steps] = Listing(table.name, context, None)
            return
        at_home = path.word == next((one for one in reversed(home) if one != "{}"), "") or bool(
            _VERBS & set(words_of(path.word)[:1])
        )
        # `/pets/findByStatus` and `/pets/available` show some of the rows of `/pets`, unless others put them there.
        if not at_home and path.listed is None and context is not None and success_of(path.operations["post"]) != "201":
            return
        at_home = at_home or (path.steps[:-1] == home[:-1] and (*path.steps, "{}") not in self._item_steps)
        if at_home or self._creates(path):
            self.lists[path.steps] = self._listing(table, context)
        else:
            self._collects(path.steps, path.written, table, context)

    def _item_below(self, steps: Steps) -> Item | None:
        return next(
            (
                item
                for below, item in self.items.items()
                if below[: len(steps)] == steps
                and set(below[len(steps) :]) == {"{}"}
                and self.paths[below].collection == steps
            ),
            None,
        )

    def _listing(self, table: Table, context: Item | None) -> Listing:
        """A list of rows of `table`, seen from `context`; how they hang together is settled once links are known."""
        if context is None:
            return Listing(table.name, None, None)
        return Listing(table.name, context, "within" if context.table == table.parent else "?")

    def _collects(self, steps: Steps, written: str, members: Table, context: Item | None) -> Table:
        """A table of which rows, that live elsewhere, are in the collection at `steps`."""
        table = self._new_table(steps, written, members.schema)
        table.members, table.parent = members.name, self._parent(table, context)
        table.parts = (Part("member", "@of", "string", members.name),)
        if steps in self.paths:
            self.lists[steps] = Listing(table.name, context, "within" if context else None)
        return table

    def _add_membership(self, path: Path) -> None:
        context = self.items.get(self._context(path.collection) or ())
        listing = self.lists.get(path.collection)
        names = names_of(path.written)[-path.run :]
        table = self.tables[listing.table] if listing is not None else None
        if table is None or table.members is None:
            # The rows that are listed there are the members of what was taken for another view of their table.
            members = table or self._member_table(path, names)
            if members is None or path.collection == steps_of(members.path):
                return
            table = self._collects(path.collection, path.written, members, context)
        members = self.tables[str(table.members)]
        if len(members.parts) == len(names) and members.parent is None:
            columns = [part.column for part in members.parts]
            columns[-1] = self._key_part(path, names[-1], members)[0].column
            lookups = tuple(zip(names, columns, strict=True))
            self.items[path.steps] = Item(path.written, table.name, context, lookups, False)

    def _member_table(self, path: Path, names: list[str]) -> Table | None:
        for table in self.tables.values():
            if table.members or table.parent or len(table.parts) != len(names):
                continue
            if table.name == path.word or same_words(table.key.parameter, names[-1]):
                return table
        return None

    # -- paths that name one row without a parameter ------------------------------------------------------------------

    def _add_single(self, path: Path) -> None:
        context = self.items.get(self._context(path.steps) or ())
        found = path.row(["get"])
        assert found is not None
        known = self._table_of(found.item, path.steps)
        selector = _SELECTORS.get(path.word)
        if known is not None and known[1].members is None:
            table = known[1]
            if selector or (context is None and same_words(singular_of(table.singular), path.word)):
                self.singles[path.steps] = (
                    Item(path.written, table.name, context, (), False),
                    selector or "first",
                )
                return
        if {"put", "patch", "post", "delete"} & set(path.operations):
            table = self._new_table(path.steps, path.written, found.item)
            table.parent, table.single = self._parent(table, context), True
            table.parts = (Part("", "@one", "string"),)
            self.singles[path.steps] = (
                Item(path.written, table.name, context, (), True),
                None,
            )
