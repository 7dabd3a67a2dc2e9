"""The tables behind an API's paths, the keys of their rows, their links, and the paths that name a row or list rows.

Beside its key, a row has properties that no two rows may share; `docs/api-twin.md` lists what makes one unique.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mcp_bridge.guard import numbered
from mcp_bridge.openapi.document import Document, Operation
from mcp_bridge.safe_text import singular_of

from . import paths
from .model import HIDDEN, KEY_TAILS, Item, Link, Part, Table
from .realistic import words_of
from .shapes import Shape, Shapes

# -- keys --------------------------------------------------------------------------------------------------------------

Kind = Literal["integer", "string"]

_NUMBERED = ("number", "iid", "index", "no", "id", "code", "version")
_NAMED = (
    "id", "uuid", "guid", "slug", "key", "name", "login", "username", "user_name", "code", "handle", "sku", "sha",
    "path", "ref", "email", "tag_name", "label", "title",
)  # fmt: skip
_PERSON = ("id", "uuid", "login", "username", "user_name", "handle", "email", "name")
_IDS = ("id", "uuid", "guid", "sha", "key", "code", "slug", "number", "name", "login", "username")
_METADATA = "metadata"
_PEOPLE = frozenset(("user", "username", "login", "owner", "member", "author", "person", "collaborator"))


def _likely(parameter: str, kind: Kind | None, description: str) -> list[str]:
    """What the key may be called where no property has the parameter's name, likely ones first: "the name of the tag"
    is a name, and otherwise rows with an id of the parameter's type are named by it."""
    words = words_of(parameter)
    if {"id", "uuid", "guid"} & set(words):
        return list(_IDS)
    usual = _NUMBERED if kind == "integer" else _PERSON if _PEOPLE & set(words) else _NAMED
    told = words_of(description)
    return sorted(usual, key=lambda one: told.index(one) if one in told else len(told))


def _key_part(parameter: str, schema: Any, table: Table, shapes: Shapes, description: str = "") -> tuple[Part, bool]:
    """The last part of a row's key, and whether it was guessed: no property goes by the parameter's name.

    `schema` and `description`: of the parameter.
    """
    row, singular, asked = shapes.of(table.schema), table.singular, shapes.of(schema)
    for name, inner in row.properties.items() if asked.enum else ():
        if set(shapes.of(inner).enum or ()) == set(asked.enum or ()):
            return Part(parameter, name, "string", schema=inner), False
    wanted = _kind(asked)
    usable = {name: kind for name in row.properties if (kind := _usable(row.properties[name], shapes)) is not None}
    found, guessed = _named(parameter, singular, usable, wanted), False
    if (found is None or words_of(found) != words_of(parameter)) and _METADATA in row.properties:
        for name, inner in shapes.of(row.properties[_METADATA]).properties.items():
            if words_of(name) == words_of(parameter) and (kind := _usable(inner, shapes)) is not None:
                column = HIDDEN + "_".join(words_of(name))
                return Part(parameter, column, kind, schema=inner, shown=(_METADATA, name)), False
    is_itself = words_of(parameter) == words_of(singular)
    has_id = usable.get("id") in ({wanted} if wanted else {"integer", "string"})
    if found is None or (is_itself and has_id and words_of(found) != words_of(parameter)):
        # `{domain}` of a domain with an id is neither its `domain_name` nor its `original_domain`.
        guessed = True
        names = {"_".join(words_of(name)): name for name in reversed(list(usable))}
        likely = [names[one] for one in _likely(parameter, wanted, description) if one in names]
        # A number may be asked for where rows show their id as text: then it is a text of digits.
        digits = [name for name in likely if wanted == "integer" and words_of(name)[-1] in {"id", "number"}]
        fitting = [name for name in likely if wanted in (None, usable[name])]
        found = next(iter([*fitting, *digits]), None)
    if found is None:
        column = HIDDEN + "_".join(words_of(parameter) or ["key"])
        return Part(parameter, column, wanted or "string", schema=schema), True
    kind = usable[found] if wanted is None or wanted == "string" else wanted
    shown = row.properties[found]
    is_bounded = kind == "integer" and "maximum" in shapes.of(schema).says
    return Part(parameter, found, kind, schema={"allOf": [shown, schema]} if is_bounded else shown), guessed


def _scope_part(parameter: str, schema: Any, row: Shape, shapes: Shapes) -> Part:
    """A part of the key before the last: a property of the parameter's name, whatever its type, or a hidden column."""
    kind = _kind(shapes.of(schema)) or "string"
    words = words_of(parameter)
    for candidate in (words, words[:-1] if words[-1:] == ["id"] else words):
        for name in row.properties:
            if words_of(name) == candidate:
                return Part(parameter, name, kind, schema=row.properties[name])
    return Part(parameter, HIDDEN + "_".join(words_of(parameter)), kind, schema=schema)


def _named(parameter: str, singular: str, usable: dict[str, Kind], wanted: Kind | None) -> str | None:
    """A property of the parameter's name, with or without the row's own word before it."""
    words, own = words_of(parameter), words_of(singular)
    shorter = [words[len(own) :]] if words[: len(own)] == own and len(words) > len(own) else []
    shorter += [["login"]] if "".join(words) == "username" else []
    tail = [words[-1:]] if words[-1] in KEY_TAILS else []
    tail += [words[:-1]] if words[-1] == "address" else []
    for candidate in [words, *shorter, [*own, *words], *tail, [*words, "name"]]:
        for name, kind in usable.items():
            if words_of(name) == candidate and wanted in (None, kind, "string"):
                return name
    for name, kind in usable.items():
        ends_alike = words_of(name)[-len(words) :] == words
        ends_alike = ends_alike or ("or" not in words and words[-len(words_of(name)) :] == words_of(name))
        ends_alike = ends_alike or (len(name) > 3 and parameter.lower().endswith(name))
        if ends_alike and words != ["id"] and wanted in (None, kind, "string"):
            return name
    return None


def _usable(schema: Any, shapes: Shapes) -> Kind | None:
    shape = shapes.of(schema)
    if shape.write_only or (shape.enum is not None and len(shape.enum) < 8) or shape.says.get("format") == "date-time":
        return None
    return _kind(shape)


def _kind(shape: Shape) -> Kind | None:
    if not shape.typed:
        return None
    kinds = shape.kinds - {"null"}
    if kinds <= {"integer", "number"}:
        return "integer" if "integer" in kinds else None
    return "string" if "string" in kinds else None


# -- properties that no two rows may share ----------------------------------------------------------------------------

_IDENTIFYING = frozenset(("email", "username", "login", "slug", "sku", "handle"))
_TAKEN = re.compile(r"\balready\b|\btaken\b|\bduplicate|\bin use\b|\bunique\b|\bsame\b", re.IGNORECASE)
_SAYS_UNIQUE = re.compile(
    r"(?<!not )(?<!non-)\bunique\b(?! (?:among|per|for each|in the list))|must not be taken", re.IGNORECASE
)
_CONFLICTS = ("409", "422")


def unique_properties(shapes: Shapes, schema: Any, operation: Operation) -> frozenset[str]:
    """The properties of a row of `schema` that an operation refuses to make equal to another row's."""
    properties: Mapping[str, Any] = shapes.of(schema).properties
    taken = _named_as_taken(operation)
    found = set()
    for name, inner in properties.items():
        shape = shapes.of(inner)
        words = words_of(name)
        if shape.says.get("x-unique") is False or shape.kinds & {"object", "array", "boolean"} == shape.kinds:
            continue
        says = str(shape.says.get("description", ""))
        if shape.enum is not None and shape.says.get("x-unique") is not True:
            continue  # there are more rows than values
        by_itself = shape.says.get("x-unique") is True or bool(_SAYS_UNIQUE.search(says))
        by_conflict = "409" in operation.responses and "".join(words) in _IDENTIFYING
        if by_itself or by_conflict or " ".join(words) in taken:
            found.add(name)
    return frozenset(found)


def _named_as_taken(operation: Operation) -> frozenset[str]:
    """The words, and pairs of them, of the refusals that speak of something that is there already."""
    found: set[str] = set()
    for status in _CONFLICTS:
        answer = operation.responses.get(status)
        said = answer.description if answer is not None else ""
        if said and _TAKEN.search(said):
            words = words_of(said)
            found |= set(words) | {f"{one} {two}" for one, two in itertools.pairwise(words)}
    # What every such sentence has, and many rows too.
    return frozenset(found - {"id", "state", "status", "type", "kind", "description", "number"})


# -- tables ------------------------------------------------------------------------------------------------------------

_SELECTORS = {"latest": "last", "newest": "last", "last": "last", "current": "first", "me": "first", "self": "first"}
MAKES = frozenset(("create", "add", "insert", "import", "batch", "bulk"))
"""Words of paths that make rows of the collection above, such as `/users/createWithList`."""
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
        self.paths = paths.paths_of(document, shapes)
        self._prefix = paths.shared_prefix(self.paths)
        self.tables: dict[str, Table] = {}
        self.items: dict[paths.Steps, Item] = {}
        self.lists: dict[paths.Steps, Listing] = {}
        self.singles: dict[paths.Steps, tuple[Item, str | None]] = {}
        self._homes: dict[str, list[tuple[paths.Steps, Table]]] = {}
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

    def _names_a_row(self, path: paths.Path) -> bool:
        if not path.run:
            return False
        if path.listed:
            # What can be changed or deleted there is a row; where a path goes on with a parameter, it is a part of one.
            is_part = any(steps[: len(path.steps) + 1] == (*path.steps, "{}") for steps in self.paths)
            return bool({"put", "patch", "delete"} & set(path.operations)) and not is_part
        shorter = [path.steps[: len(path.steps) - less] for less in range(1, path.run)]
        for steps in shorter:
            if steps in self.paths and self.paths[steps].row(["get"]):
                return False  # `/ports/{id}/{status}` is about a row, but is not one
            if steps in self.paths and not self.paths[steps].listed:
                path.run = len(path.steps) - len(steps)
                break
        reads, writes = (path.row(["get"]), {"put", "patch", "delete"} & set(path.operations))
        checks = "get" in path.operations and "204" in path.operations["get"].responses
        updates = "post" in path.operations and path.row(["post"]) is not None
        return bool(reads or writes or checks or (updates and path.collection in self.paths))

    def _is_membership(self, path: paths.Path) -> bool:
        """Whether the path only names the membership of a row of another table in a collection."""
        get, put = path.operations.get("get"), path.operations.get("put")
        if path.row(["patch"]) or (put is not None and put.body is not None):
            return False
        above = self.paths.get(path.collection)
        is_made_here = above is not None and "post" in above.operations
        if get is not None and path.row(["get"]) is None and paths.answer_schema(get) is None:
            return paths.body_schema(get) is None
        if put is not None:
            return not is_made_here
        name = self._shapes.of(self._entity(path)).name
        return "delete" in path.operations and not is_made_here and name is not None and self._is_elsewhere(path, name)

    def _is_elsewhere(self, path: paths.Path, name: str) -> bool:
        """Whether rows of the definition `name` have a path named after it, and this one is not."""
        own = words_of(name)[-1:]
        if words_of(singular_of(path.word))[-1:] == own:
            return False
        return any(
            words_of(singular_of(other.word))[-1:] == own and self._shapes.of(self._entity(other)).name == name
            for other in (self.paths[steps] for steps in self._item_steps)
        )

    def _claim(self, path: paths.Path) -> tuple[bool, bool, int, paths.Steps]:
        """Sorts first which path is the home of its rows: one plain collection at the top, then one that is written."""
        is_nested = len([step for step in path.steps[len(self._prefix) :] if step != "{}"]) > 1
        is_written = bool({"put", "patch", "delete"} & set(path.operations))
        return is_nested, not is_written, len(path.steps), path.steps

    def _creates(self, path: paths.Path) -> bool:
        post = path.operations.get("post")
        if post is None or path.run:
            return False
        body = paths.body_schema(post)
        sends_row = any(one.location == "query" for one in post.parameters)
        sends_row = sends_row or (path.row(["post"]) is not None and path.row(["get"]) is None)
        if post.body is not None:
            sends_row = body is not None and paths.is_object(self._shapes, body)
        return sends_row and ((*path.steps, "{}") in self._item_steps or path.row(["post"]) is not None)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _entity(self, path: paths.Path) -> Any:
        """The schema of the row that a path names: what is read there, or what is shown above if that has the key."""
        above = self.paths.get(path.collection)
        places = [path.row(["get", "patch", "put", "post"]), *([above.row(["post"]), above.listed] if above else [])]
        found = [one.item for one in (*places, path.listed) if one is not None]
        if found:
            named = (one for one in found if self._has_key(one, path)) if path.run else iter(found)
            return next(named, found[0])
        for method in ("put", "patch", "post"):
            if method in path.operations and (sent := paths.body_schema(path.operations[method])) is not None:
                return sent
        return {}

    def _has_key(self, schema: Any, path: paths.Path) -> bool:
        row, name = self._shapes.of(schema), paths.names_of(path.written)[-1]
        usable = {one: kind for one, inner in row.properties.items() if (kind := _usable(inner, self._shapes))}
        return _named(name, singular_of(path.word), usable, None) is not None

    def _context(self, steps: paths.Steps) -> paths.Steps | None:
        """The longest path above that names a row."""
        for size in range(len(steps) - 1, 0, -1):
            if steps[:size] in self._item_steps - self._member_steps:
                return steps[:size]
        return None

    def above(self, steps: paths.Steps) -> Item | None:
        """The row that the longest path above names."""
        return self.items.get(self._context(steps) or ())

    def _home_or_alias(self, path: paths.Path) -> None:
        schema = self._entity(path)
        name = self._shapes.of(schema).name
        homes = self._homes.setdefault(name or f"/{'/'.join(path.collection)}", [])
        if any(self._absorbs(home, path.steps) for home, _ in homes):
            return
        homes.append((path.steps, self._new_table(path.collection, path.written, schema)))

    def _absorbs(self, home: paths.Steps, other: paths.Steps) -> bool:
        """Whether rows under another path are rows of the table at `home`, seen from elsewhere."""
        context = self._context(home)
        if context is not None:
            return other[: len(context)] == context and other != home
        own = [step for step in home[len(self._prefix) :] if step != "{}"]
        return len(own) == 1

    def _table_of(self, schema: Any, steps: paths.Steps) -> tuple[paths.Steps, Table] | None:
        """The table whose rows a schema describes, as seen from the path `steps`."""
        name = self._shapes.of(schema).name
        unnamed = f"/{'/'.join(self.paths[steps].collection)}"
        for home, table in self._homes.get(name or unnamed, []):
            if home == steps or home[: len(steps)] == steps or self._absorbs(home, steps):
                return home, table
        return None

    def _new_table(self, collection: paths.Steps, written: str, schema: Any) -> Table:
        words = [step for step in collection[len(self._prefix) :] if step != "{}"] or ["rows"]
        name = words[-1]
        for size in range(2, len(words) + 1):
            if name not in self.tables:
                break
            name = ".".join(words[-size:])
        name = numbered(name, self.tables)
        path = paths.head_of(written, len(collection))
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

    def _add_item(self, path: paths.Path) -> None:
        known = self._table_of(self._entity(path), path.steps)
        if known is None:
            return
        home, table = known
        context = self.above(path.steps)
        names = paths.names_of(path.written)[-path.run :]
        shape = self._shapes.of(table.schema)
        if home == path.steps:
            kinds = {one.name: one.schema for one in self._any(path).parameters if one.location == "path"}
            key, table.guessed_key = self._key_part(path, names[-1], table)
            scopes = [_scope_part(one, kinds.get(one, True), shape, self._shapes) for one in names[:-1]]
            table.parent, table.parts = (self._parent(table, context), (*scopes, key))
        columns = [part.column for part in table.parts] or [HIDDEN + names[-1]]
        if home != path.steps:
            columns = [*columns[:-1], self._key_part(path, names[-1], table)[0].column]
        lookups = tuple(zip(names[-len(columns) :], columns[-len(names) :], strict=False))
        same_context = (context.table if context else None) == table.parent
        is_direct = same_context and [column for _, column in lookups] == [part.column for part in table.parts]
        self.items[path.steps] = Item(
            paths.head_of(path.written, len(path.steps)), table.name, context, lookups, is_direct
        )

    def _key_part(self, path: paths.Path, name: str, table: Table) -> tuple[Part, bool]:
        """What a path's last parameter is in the rows of a table, and whether that was guessed."""
        parameter = next((one for one in self._any(path).parameters if one.name == name), None)
        schema, description = (True, "") if parameter is None else (parameter.schema, parameter.description)
        return _key_part(name, schema, table, self._shapes, description)

    def _any(self, path: paths.Path) -> Operation:
        return next(iter(path.operations.values()))

    # -- lists --------------------------------------------------------------------------------------------------------

    def _add_list(self, path: paths.Path) -> None:
        found = path.listed or path.row(["post"])
        context = self.above(path.steps)
        below = self._item_below(path.steps)
        if below is not None:
            table = self.tables[below.table]
            self.lists[path.steps] = self._listing(table, context)
            shown = None if path.listed is None else path.listed.item
            name = None if shown is None else self._shapes.of(shown).name
            if name is not None and table.summary is None and self._table_of(shown, path.steps) is None:
                table.summary = name
                self._homes.setdefault(name, []).insert(0, ((*path.steps, "{}"), table))
            return
        if found is None:
            return
        known = self._table_of(found.item, path.steps) or self._everywhere(found.item, path, context)
        if known is None and path.listed is None:
            return  # what is made here could never be read: it is something done to the row above
        if known is None:
            table = self._new_table(path.collection, path.written, found.item)
            part, table.guessed_key = _key_part("id", True, table, self._shapes)
            table.parent, table.parts = self._parent(table, context), (part,)
            self._homes.setdefault(self._shapes.of(found.item).name or "/" + "/".join(path.steps), []).append(
                ((*path.steps, "{}"), table)
            )
            self.lists[path.steps] = Listing(table.name, context, "within" if context else None)
            return
        home, table = known
        is_new = path.listed is None and paths.success_of(path.operations["post"]) == "201"
        is_new = is_new or (path.listed is None and bool(MAKES & set(words_of(path.word))))
        if context is not None and context.table == table.name and path.listed is None:
            # Something is done to the row; only an answer of 201 says that there is another one now.
            if is_new:
                self.lists[path.steps] = Listing(table.name, context, None)
            return
        if path.listed is None and not is_new and path.steps[:-1] == paths.steps_of(table.path):
            return  # `/orders/calculate` answers with an order, and makes none
        at_home = path.word == paths.word_of(home) or bool(_VERBS & set(words_of(path.word)[:1]))
        # `/pets/findByStatus` and `/pets/available` show some of the rows of `/pets`, unless others put them there.
        if not at_home and path.listed is None and context is not None and not is_new:
            return
        at_home = at_home or (path.steps[:-1] == home[:-1] and (*path.steps, "{}") not in self._item_steps)
        if at_home or self._creates(path):
            self.lists[path.steps] = self._listing(table, context)
        else:
            self._collects(path.steps, path.written, table, context)

    def _everywhere(self, schema: Any, path: paths.Path, context: Item | None) -> tuple[paths.Steps, Table] | None:
        """The table whose rows are listed without the rows that they stand under: `/pods` of every namespace."""
        name = self._shapes.of(schema).name
        if name is None or context is not None or path.listed is None:
            return None
        nested = (one for one in self._homes.get(name, []) if self._context(one[0]) is not None)
        return next((one for one in nested if paths.word_of(one[0]) == path.word), None)

    def _item_below(self, steps: paths.Steps) -> Item | None:
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

    def _collects(self, steps: paths.Steps, written: str, members: Table, context: Item | None) -> Table:
        """A table of which rows, that live elsewhere, are in the collection at `steps`."""
        table = self._new_table(steps, written, members.schema)
        table.members, table.parent = members.name, self._parent(table, context)
        table.parts = (Part("member", "@of", "string", members.name),)
        if steps in self.paths:
            self.lists[steps] = Listing(table.name, context, "within" if context else None)
        return table

    def _add_membership(self, path: paths.Path) -> None:
        context = self.above(path.collection)
        listing = self.lists.get(path.collection)
        names = paths.names_of(path.written)[-path.run :]
        table = self.tables[listing.table] if listing is not None else None
        if table is None or table.members is None:
            # The rows that are listed there are the members of what was taken for another view of their table.
            members = table or self._member_table(path, names)
            if members is None or path.collection == paths.steps_of(members.path):
                return
            table = self._collects(path.collection, path.written, members, context)
        members = self.tables[str(table.members)]
        if len(members.parts) == len(names) and members.parent is None:
            columns = [part.column for part in members.parts]
            columns[-1] = self._key_part(path, names[-1], members)[0].column
            lookups = tuple(zip(names, columns, strict=True))
            self.items[path.steps] = Item(path.written, table.name, context, lookups, False)

    def _member_table(self, path: paths.Path, names: list[str]) -> Table | None:
        for table in self.tables.values():
            if table.members or table.parent or len(table.parts) != len(names):
                continue
            if table.name == path.word or paths.same_words(table.key.parameter, names[-1]):
                return table
        return None

    # -- paths that name one row without a parameter ------------------------------------------------------------------

    def _add_single(self, path: paths.Path) -> None:
        context = self.above(path.steps)
        found = path.row(["get"])
        assert found is not None
        known = self._table_of(found.item, path.steps)
        selector = _SELECTORS.get(path.word)
        if known is not None and known[1].members is None:
            table = known[1]
            if selector or (context is None and paths.same_words(singular_of(table.singular), path.word)):
                self.singles[path.steps] = (Item(path.written, table.name, context, (), False), selector or "first")
                return
        if {"put", "patch", "post", "delete"} & set(path.operations):
            table = self._new_table(path.steps, path.written, found.item)
            table.parent, table.single = self._parent(table, context), True
            table.parts = (Part("", "@one", "string"),)
            self.singles[path.steps] = (Item(path.written, table.name, context, (), True), None)


# -- links: properties that show or name rows of another table ---------------------------------------------------------

_KEY_WORDS = frozenset(("id", "uuid", "slug", "login", "username"))
_ANY_WORDS = frozenset(("name", "title", "label", "date", "type", "status", "path", "url", "text", "value"))
"""Keys whose word says nothing: the `file_name` of an upload need not be a file that is there."""
_NAMED_PEOPLE = frozenset((
    "user", "owner", "author", "assignee", "creator", "reporter", "reviewer", "sender", "recipient", "manager",
    "requester", "approver",
))  # fmt: skip


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
        """The table that `customer_id`, `customerId`, `customer_ids`, `idCustomer` or `owner_id` names a row of; and
        `warehouse_code`, where `code` is the key of warehouses."""
        words = words_of(name)
        if words[:1] == ["id"]:
            words = [*words[1:-1], singular_of(words[-1]), "id"]
        if len(words) < 2:
            return None
        last = singular_of(words[-1])
        for size in range(len(words) - 1):
            found = self._nearest(self._by_word.get(tuple(words[size:-1]), []), table)
            if found is None or found.key.kind != kind:
                continue
            is_itself = found is table and words[:-1] == words_of(table.singular)
            keys = ([last], [*words[size:-1], last])
            by_key = last not in _ANY_WORDS and words_of(found.key.column) in keys
            if not is_itself and (last in _KEY_WORDS or by_key):
                return found
        if last not in _KEY_WORDS:
            return None
        people = self._nearest(self._by_word.get(("user",), []), table)
        is_person = words[-2] in _NAMED_PEOPLE and people is not None and people.key.kind == kind
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
