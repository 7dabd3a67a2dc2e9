"""The planner: from a document to its backend, with the tables and what each operation does to them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mcp_bridge.openapi.document import Document, Operation
from mcp_bridge.safe_text import singular_of

from .listing import EVERYTHING, column_of, query_of
from .model import HIDDEN, STATES, VALUE, Backend, Envelope, Item, Part, Plan, Role, Table
from .paths import (
    answer_schema,
    are_alike,
    body_schema,
    envelope_in,
    is_object,
    same_words,
    steps_of,
    success_of,
)
from .realistic import words_of
from .shapes import Shape, Shapes
from .tables import MAKES, LinkFinder, Listing, TableFinder, ordered

_NO_TABLE = "the document shows no collection that this belongs to"
_UNKNOWN_ACTION = "no field of the resource goes by the action's name"
_NO_OBJECT = "a list is sent, such as a JSON Patch, and not the fields of the row"
_ROW_ROLES: dict[str, Role] = {"get": "read", "head": "read", "patch": "update", "delete": "delete"}
_MEMBER_ROLES: dict[str, Role] = {"get": "read", "head": "check", "put": "add", "post": "add", "delete": "remove"}
_SEARCHES = frozenset(("search", "find", "query", "filter", "list", "lookup", "retrieve", "get", "check", "validate"))
_REPLACES = frozenset(["replace", "replaces", "overwrite", "overwrites"])
_CREATES = frozenset(["create", "creates", "upsert", "upserts"])
_WHOLE = re.compile(r"\b(full|complete|entire)\s+(representation|definition|replacement|object|update)\b", re.I)


def infer(document: Document, shapes: Shapes) -> Backend:
    """The backend behind a document. Nothing is refused: what cannot be known is an `event` or an `answer`."""
    finder = TableFinder(document, shapes)
    finder.find()
    links = LinkFinder(shapes, finder.tables)
    for table in finder.tables.values():
        if table.members is None and not table.single:
            table.links = links.links_of(table)
            table.parts = tuple(_linked(part, table, finder.tables, links) for part in table.parts)
    planner = _Planner(shapes, finder, links)
    plans = {operation.operation_id: planner.plan(operation) for operation in document.operations}
    return Backend(ordered(finder.tables), plans)


def _linked(part: Part, table: Table, tables: dict[str, Table], links: LinkFinder) -> Part:
    """The part of a key that is a link to another table, such as the owner in `/repos/{owner}/{repo}`."""
    link = table.links.get(part.column)
    if link is None or link.many or table.name in links.line_of(tables[link.table]):
        return part  # what stands below a row cannot be in its key
    return replace(part, table=link.table)


class _Planner:
    def __init__(self, shapes: Shapes, finder: TableFinder, links: LinkFinder) -> None:
        self._shapes = shapes
        self._finder = finder
        self._links = links
        self._lists = {steps: self._related(listing) for steps, listing in finder.lists.items()}

    def _related(self, listing: Listing) -> Listing:
        """A list whose rows hang on its context by a property, or by a hidden column where no property does."""
        if listing.relation != "?" or listing.context is None:
            return listing
        table, above = self._finder.tables[listing.table], listing.context.table
        for name, link in table.links.items():
            if link.table == above:
                return Listing(table.name, listing.context, name)
        if above in self._links.line_of(table):
            return Listing(table.name, listing.context, None)
        table.owners = tuple(dict.fromkeys([*table.owners, above]))
        return Listing(table.name, listing.context, HIDDEN + above)

    def plan(self, operation: Operation) -> Plan:
        """What `operation` does."""
        plan = self._role(operation)
        plan.success = success_of(operation)
        plan.envelope = self._envelope(operation)
        if plan.table is not None:
            table = self._finder.tables[plan.table]
            row = self._shapes.of(self._finder.tables[table.members or table.name].schema)
            plan.body_path = self._body_path(operation, row, table.singular)
            plan.envelope = self._around(plan.envelope, row)
            if plan.role == "create" and not plan.body_path:
                plan.body_path, plan.many = self._rows_path(operation, table)
            if plan.role == "list":
                plan.query = query_of(self._shapes, operation.parameters, row, self._beside(plan.envelope))
                for column, values in self._values(plan, row).items():
                    table.values.setdefault(column, values)
        return plan

    def _beside(self, envelope: Envelope | None) -> Iterator[str]:
        """The names of what an answer has beside its rows."""
        schema = None if envelope is None else envelope.schema
        for step in envelope.path if envelope is not None else ():
            for name, inner in self._shapes.of(schema).properties.items():
                yield from (name, *self._shapes.of(inner).properties) if name != step else ()
            schema = self._shapes.of(schema).properties.get(step)

    def _values(self, plan: Plan, row: Shape) -> dict[str, tuple[str, ...]]:
        """Column -> its values, of texts without an enum that a filter has: `?state=` is open, closed or all."""
        found: dict[str, tuple[str, ...]] = {}
        parameters = {one.name: self._shapes.of(one.schema) for one in plan.operation.parameters}
        for one in plan.query.filters:
            asked, column = parameters[one.parameter], self._shapes.of(row.properties[one.column])
            if (
                one.test == "is"
                and asked.enum
                and column.enum is None
                and column.kind == "string"
                and not column.choices
            ):
                known = [value for value in asked.enum if isinstance(value, str) and value.casefold() not in EVERYTHING]
                found[one.column] = tuple(sorted(known, key=lambda value: value != asked.says.get("default")))
        return {column: values for column, values in found.items() if values}

    def _role(self, operation: Operation) -> Plan:
        steps = steps_of(operation.path)
        context = self._finder.above(steps)
        if steps in self._finder.items:
            return self._on_item(operation, self._finder.items[steps])
        if steps in self._lists:
            return self._on_list(operation, self._lists[steps], context)
        if steps in self._finder.singles:
            return self._on_single(operation, *self._finder.singles[steps])
        return self._elsewhere(operation, context, _NO_TABLE)

    def _on_item(self, operation: Operation, item: Item) -> Plan:
        table, method = self._finder.tables[item.table], operation.method
        role: Role | None
        if table.members is not None:
            role = _MEMBER_ROLES.get(method)
            if method == "get" and answer_schema(operation) is None:
                role = "check"
        else:
            role = self._put(operation, table) if method == "put" else _ROW_ROLES.get(method)
            if method == "post" and self._gives_row(operation, table):
                role = "update"
            if role in {"update", "replace"} and not self._sends_row(operation, self._shapes.of(table.schema)):
                role = None
        shows_others = self._lists_rows(operation) and not self._shows(operation, table)
        if role is None or (method == "get" and shows_others):
            sent = body_schema(operation)
            is_list = method in {"put", "patch"} and sent is not None and self._shapes.of(sent).kind == "array"
            return self._elsewhere(operation, item, _NO_OBJECT if is_list else _UNKNOWN_ACTION, table)
        listing = self._lists.get(steps_of(operation.path)[: -len(item.lookups)])
        relation = listing.relation if listing is not None else None
        makes = role in {"update", "replace"} and self._makes_missing(operation, table)
        return Plan(operation, role, table.name, item.context, item, relation=relation, makes=makes)

    def _makes_missing(self, operation: Operation, table: Table) -> bool:
        """Whether a PUT or POST of a row creates it where there is none, under the name in the path.

        By its name it does ("CreateOrUpdate"), or nothing else creates rows and the document has a 201.
        """
        if operation.method not in {"put", "post"} or any(part.table is not None for part in table.parts):
            return False
        above = self._finder.paths.get(steps_of(operation.path)[:-1])
        is_only = above is None or "post" not in above.operations
        return bool(_says(operation) & _CREATES) or ("201" in operation.responses and is_only)

    def _on_list(self, operation: Operation, listing: Listing, context: Item | None) -> Plan:
        table, method = self._finder.tables[listing.table], operation.method
        if method == "get" and self._lists_rows(operation):
            return Plan(
                operation, "list", table.name, context, relation=listing.relation, moves=self._only(operation, table)
            )
        row = self._shapes.of(table.schema)
        sent = body_schema(operation)
        sends_row = self._sends_row(operation, row) and (sent is None or is_object(self._shapes, sent))
        gives_row = self._gives_row(operation, table) or answer_schema(operation) is None
        makes_row = sends_row and gives_row and not self._lists_rows(operation)
        if (*steps_of(operation.path), "{}") in self._finder.items:
            # A row can be read below, so that is what is made of its properties, whatever the document answers.
            makes_row = makes_row or self._makes_rows(operation, table)
        if method == "post" and makes_row and table.members is None:
            return Plan(operation, "create", table.name, context, relation=listing.relation)
        sends_row = sends_row and gives_row and not self._lists_rows(operation)
        if method in {"put", "patch"} and sends_row and self._names_key(operation, table):
            role: Role = "update" if method == "patch" else self._put(operation, table)
            return Plan(operation, role, table.name, context, relation=listing.relation)
        if method == "delete" and operation.body is None and context is not None:
            return Plan(operation, "clear", table.name, context, relation=listing.relation)
        return self._elsewhere(operation, context, "what is sent is not a row of the collection", None)

    def _on_single(self, operation: Operation, item: Item, pick: Any) -> Plan:
        method = operation.method
        role = self._put(operation, self._finder.tables[item.table]) if method == "put" else _ROW_ROLES.get(method)
        if method == "post":
            role = "update"
        if method == "delete" and pick is not None:
            role = None
        if role in {"replace", "update"} and (body_schema(operation) is None or (pick and method == "post")):
            role = None
        if role is None:
            return self._elsewhere(operation, item.context, _UNKNOWN_ACTION)
        return Plan(operation, role, item.table, item.context, item, pick=pick)

    def _put(self, operation: Operation, table: Table) -> Role:
        """Whether a PUT replaces the row or changes what it is sent.

        Of 2,100 PUTs in published documents three in four have no PATCH beside them and no word of a replacement, and
        those whose behaviour is known are partial updates.
        """
        if _says(operation) & _REPLACES or _WHOLE.search(operation.description):
            return "replace"
        sent = body_schema(operation)
        for step in self._body_path(operation, self._shapes.of(table.schema), table.singular):
            sent = self._shapes.of(sent).properties[step]
        has_patch = "patch" in self._finder.paths[steps_of(operation.path)].operations
        return "replace" if has_patch and sent is not None and self._shapes.of(sent).required else "update"

    def _elsewhere(self, operation: Operation, context: Item | None, because: str, table: Table | None = None) -> Plan:
        if operation.method in {"get", "head", "options", "trace"}:
            if context is not None and "204" in operation.responses and "404" in operation.responses:
                owner = self._finder.tables[context.table]
                moves = moves_of(self._shapes, steps_of(operation.path)[-1:], self._shapes.of(owner.schema), "post")
                if moves and owner.members is None:
                    return Plan(operation, "check", owner.name, context.context, context, moves=moves)
            return Plan(operation, "answer", None, context, because="it reads what no collection of the document holds")
        above = table or (self._finder.tables[context.table] if context is not None else None)
        if above is not None and above.members is None and context is not None:
            below = steps_of(operation.path)[len(steps_of(context.path)) :]
            word = below[-1] if below else "{}"
            row = self._shapes.of(above.schema)
            if (field := self._field(operation, context, row)) is not None:
                return Plan(operation, "move", above.name, context.context, context, field=field)
            moves = {} if "{}" in below else moves_of(self._shapes, below, row, operation.method)
            # What is sent to rows below, or with a deletion, is not of the row above, but for the field of that name.
            is_below = steps_of(operation.path) in self._lists and not column_of(word, row)
            shares = not is_below and operation.method != "delete" and self._shares(operation, row, ())
            if moves or shares:
                return Plan(operation, "move", above.name, context.context, context, moves=moves)
        if (several := self._in_bulk(operation)) is not None:
            return several
        if above is not None:
            because = _UNKNOWN_ACTION if because == _NO_TABLE else because
        return Plan(operation, "refused" if self._is_seen(operation) else "event", None, context, because=because)

    def _field(self, operation: Operation, context: Item, row: Shape) -> str | None:
        """The column of `PUT /boards/{id}/desc`, which sends its `value` and nothing else."""
        sent = body_schema(operation)
        below = steps_of(operation.path)[len(steps_of(context.path)) :]
        is_value = sent is not None and self._shapes.of(sent).properties.keys() == {VALUE}
        return column_of("/".join(below), row) if is_value else None

    def _in_bulk(self, operation: Operation) -> Plan | None:
        """What makes rows of the collection above: `POST /users/createWithList` with a list of users."""
        *above, word = steps_of(operation.path)
        item = self._finder.items.get((*above, "{}"))
        if item is None or operation.method != "post" or not MAKES & set(words_of(word)):
            return None
        table, listing = self._finder.tables[item.table], self._lists.get(tuple(above))
        if table.members is not None or not self._rows_path(operation, table)[1]:
            return None
        relation = listing.relation if listing is not None else None
        return Plan(operation, "create", table.name, item.context, relation=relation)

    def _is_seen(self, operation: Operation) -> bool:
        """Whether what an operation would change is read at its path or, of what a POST would make, below it."""
        steps, paths = steps_of(operation.path), self._finder.paths
        places = [steps, (*steps, "{}")] if operation.method == "post" else [steps]
        is_read = any("get" in paths[one].operations for one in places if one in paths)
        return is_read and not self._is_search(operation)

    # -- what an operation sends and gives ----------------------------------------------------------------------------

    def _envelope(self, operation: Operation) -> Envelope | None:
        return envelope_in(self._shapes, self._finder.paths, operation)

    def _around(self, found: Envelope | None, row: Shape) -> Envelope | None:
        """The envelope of a row in an answer, where more stands beside and the row is known by its definition."""
        if (
            found is None
            or found.path
            or found.is_list
            or row.name is None
            or self._shapes.of(found.item).name == row.name
        ):
            return found
        inside = self._shapes.of(found.item).properties.items()
        own = next(((name, inner) for name, inner in inside if self._shapes.of(inner).name == row.name), None)
        links = [inner for _, inner in inside if self._shapes.of(inner).kind not in {"object", "array"}]
        return found if own is None or links else Envelope(found.schema, (own[0],), False, own[1])

    def _lists_rows(self, operation: Operation) -> bool:
        found = self._envelope(operation)
        return found is not None and found.is_list

    def _gives_row(self, operation: Operation, table: Table) -> bool:
        """Whether the answer is a row of `table`."""
        return not self._lists_rows(operation) and self._shows(operation, table)

    def _shows(self, operation: Operation, table: Table) -> bool:
        """Whether the answer has a row, or rows, of `table`: the same definition, or half of its properties."""
        found = self._envelope(operation)
        return found is not None and are_alike(self._shapes, found.item, table.schema)

    def _sends_row(self, operation: Operation, row: Shape) -> bool:
        """Whether columns are sent: as the body, or where there is none as query parameters of a row's properties."""
        if operation.body is not None:
            sent = body_schema(operation)
            return sent is not None and "object" in self._shapes.of(sent).kinds
        return any(one.location == "query" and column_of(one.name, row) for one in operation.parameters)

    def _is_search(self, operation: Operation) -> bool:
        """Whether a POST goes by the name of a search."""
        named = [word for word in words_of(operation.operation_id) if word != operation.method]
        is_named = {*named[:1], *words_of(operation.summary)[:1]} & _SEARCHES or named[-1:] == ["query"]
        return operation.method == "post" and bool(is_named)

    def _makes_rows(self, operation: Operation, table: Table) -> bool:
        """Whether a POST to a collection makes rows: it sends some of their properties, or rows, or gives a new one."""
        if self._is_search(operation):
            return False
        if operation.body is None:
            return self._gives_row(operation, table)
        row = self._shapes.of(table.schema)
        inside = self._body_path(operation, row, table.singular)
        return self._shares(operation, row, inside) or self._rows_path(operation, table)[1]

    def _names_key(self, operation: Operation, table: Table) -> bool:
        """Whether what is sent to the collection itself names the row: `PUT /pets` with `{"id": 7, ...}`."""
        sent = body_schema(operation)
        is_plain = table.members is None and not table.single and len(table.parts) == 1
        return is_plain and sent is not None and table.key.column in self._shapes.of(sent).properties

    def _only(self, operation: Operation, table: Table) -> dict[str, Any]:
        """What the rows of `GET /pets/available` have in common; nothing for `GET /pets` and `GET /pets/search`."""
        *above, word = steps_of(operation.path)
        is_part = tuple(above) == steps_of(table.path) and word != "{}"
        return moves_of(self._shapes, (word,), self._shapes.of(table.schema), "get") if is_part else {}

    def _shares(self, operation: Operation, row: Shape, inside: tuple[str, ...]) -> bool:
        """Whether a property of what is sent is one of the row's."""
        sent = body_schema(operation)
        for step in inside:
            sent = self._shapes.of(sent).properties[step]
        return sent is not None and any(self._is_of(row, *one) for one in self._shapes.of(sent).properties.items())

    def _is_of(self, row: Shape, name: str, schema: Any) -> bool:
        """Whether a property of what is sent is one of the row's: `ips` is none where a row has one `ip`."""
        column = column_of(name, row)
        lists = (self._shapes.of(one).kind == "array" for one in (schema, row.properties.get(column or "", {})))
        return column is not None and len(set(lists)) == 1

    def _body_path(self, operation: Operation, row: Shape, singular: str) -> tuple[str, ...]:
        """The property of what is sent that holds the row, such as `order` in `{"order": {...}}`: named after it or of
        its definition, and what stands beside is none of the row's."""
        sent = body_schema(operation)
        properties = self._shapes.of(sent).properties if sent is not None else {}
        for name, inner in properties.items():
            is_row = row.name is not None and self._shapes.of(inner).name == row.name
            held = is_row or same_words(name, singular) or name in {"data", "attributes"}
            alone = not any(column_of(other, row) for other in properties if other != name)
            if held and alone and name not in row.properties and is_object(self._shapes, inner):
                return (name,)
        return ()

    def _rows_path(self, operation: Operation, table: Table) -> tuple[tuple[str, ...], bool]:
        """The property of what is sent that holds several rows, or their keys, and whether there is one; none where a
        list of rows is what is sent."""
        sent, row = body_schema(operation), self._shapes.of(table.schema)
        if sent is None or self._shares(operation, row, ()):
            return (), False
        whole = self._shapes.of(sent)
        lists: list[tuple[tuple[str, ...], Any]] = [((name,), one) for name, one in whole.properties.items()]
        for path, schema in [((), sent)] if whole.kind == "array" else lists:
            shape = self._shapes.of(schema)
            if shape.kind != "array":
                continue
            item = self._shapes.of(shape.items)
            is_key = bool(path) and same_words(singular_of(path[0]), table.key.column) and item.kind == "string"
            if is_key or any(column_of(name, row) for name in item.properties):
                return path, True
        return (), False


def _says(operation: Operation) -> set[str]:
    """The words of an operation's name, its summary and the opening of its description."""
    opening = re.split(r"\.\s|\n\n", operation.description, maxsplit=1)[0]
    return {word for text in (operation.operation_id, operation.summary, opening) for word in words_of(text)}


_OUTCOMES = {
    "enable": ("active",), "pay": ("paid",), "send": ("sent",), "freeze": ("frozen",), "withdraw": ("withdrawn",),
    "activate": ("active",),
    "deactivate": ("inactive",), "begin": ("begun", "running", "active"), "hold": ("held", "on hold"),
    "start": ("running", "active", "on", "online", "in progress", "up"), "stop": ("off", "inactive", "offline", "down"),
    "power on": ("on", "running", "active"), "power off": ("off", "inactive"), "boot": ("running", "on", "active"),
    "shutdown": ("off", "stopped", "offline"), "finish": ("completed", "done"), "complete": ("done", "finished"),
    "resume": ("active", "running"), "reopen": ("open",), "terminate": ("completed", "stopped"),
}  # fmt: skip
"""Statuses after an action whose names do not begin as the action's does, likely ones first."""
_FOLDERS = frozenset(("action", "actions", "command", "commands"))
_BEFORE = frozenset(("previous", "prior", "last", "old", "initial", "desired", "target", "next", "default"))
_SWITCHES = {
    "enable": ("enabled", True), "disable": ("enabled", False),
    "activate": ("active", True), "deactivate": ("active", False),
}  # fmt: skip
"""The flag that an action without a word of its own sets, and to what."""


def moves_of(shapes: Shapes, steps: Sequence[str], row: Shape, method: str) -> dict[str, Any]:
    """The columns that an action sets: `cancel` sets a status that may be `cancelled`, and `lock` a flag `locked`.

    `steps`: of its path, after the row's. What an action does to a part of the row sets no status of the row:
    `enable_backup` is about its backups. A status that only leads to another (`cancelling`) is passed over, since
    nothing goes on in a twin.
    """
    beside = [word for step in steps[:-1] if step not in _FOLDERS for word in words_of(step)]
    words = words_of(steps[-1]) if steps else []
    if not words:
        return {}
    verb, about = words[0], [*words[1:], *beside]
    undo = method == "delete" or (verb.startswith("un") and len(verb) > 4)
    stem = _stem(verb.removeprefix("un") if undo and method != "delete" else verb)
    if len(stem) < 3:
        return {}
    if not undo and not beside and not _is_part(about, stem, row):
        for name, values in _states(shapes, row):
            known = {" ".join(words_of(value)): value for value in values}
            named = [value for said, value in known.items() if said == " ".join(words)]
            alike = [value for said, value in known.items() if _stem(said) == stem and not said.endswith("ing")]
            ends = (known[one] for one in _after(words) if one in known)
            if (found := next(iter([*named, *alike, *ends]), None)) is not None:
                return {name: found}
    for name, schema in row.properties.items():
        shape = shapes.of(schema)
        if shape.typed and shape.kinds - {"null"} == {"boolean"}:
            value = _switched(name, [stem, *(_stem(word) for word in about)], undo)
            if value is not None:
                return {name: value}
    return {}


def _states(shapes: Shapes, row: Shape) -> Iterator[tuple[str, list[str]]]:
    """Columns with a choice of texts, first those that tell how far a row has come."""
    found = []
    for name, schema in row.properties.items():
        words, enum = words_of(name), shapes.of(schema).enum
        if enum and words and words[0] not in _BEFORE:
            rank = 0 if words[-1:] == words and words[-1] in STATES else 1 if words[-1] in STATES else 2
            found.append((rank, name, [one for one in enum if isinstance(one, str) and words_of(one)]))
    yield from ((name, values) for _, name, values in sorted(found, key=lambda one: one[0]))


def _is_part(about: list[str], stem: str, row: Shape) -> bool:
    """Whether what an action is about is a part of the row, by the row's properties."""
    names = [set(map(singular_of, words_of(name))) for name in row.properties]
    return any({singular_of(word)} & own and stem not in map(_stem, own) for word in about for own in names)


def _after(words: list[str]) -> tuple[str, ...]:
    asked = "".join(words)
    return next((ends for action, ends in _OUTCOMES.items() if action.replace(" ", "") == asked), ())


def _switched(name: str, stems: list[str], undo: bool) -> bool | None:
    """What an action makes of a flag: its name is the action's, or that of what is enabled or disabled."""
    own = sorted(_stem(word) for word in words_of(name) if word not in {"is", "has"})
    switch = next((value for verb, value in _SWITCHES.items() if stems[0] == _stem(verb)), None)
    if switch is not None and own in (sorted([*stems[1:], _stem(switch[0])]), sorted(stems[1:])):
        return switch[1] is not undo
    return not undo if own == sorted(stems) else None


def _stem(word: str) -> str:
    """`cancel`, `canceled` and `cancelled` have one stem, and so do `close` and `closed`, `deny` and `denied`."""
    for ending in ("ing", "ed", "es", "e", "d"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2]:
        return word[:-1]
    return word[:-1] + "i" if word.endswith("y") else word
