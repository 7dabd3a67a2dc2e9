"""The writer: creates, changes and deletes rows. Its keeper decides what a row keeps of a value that was sent."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any, NoReturn

from mcp_bridge.openapi.document import MediaType, RequestBody
from mcp_bridge.safe_text import shortened

from .maker import NOTHING, Maker, kind_fits, scalar_fits
from .model import HIDDEN, IDENTIFIERS, LINK, STATES, WITHIN, Item, Link, Plan, Table, is_link
from .paths import body_schema
from .realistic import has_format, stamp, words_of
from .rendering import converted, nearest
from .requests import IN_USE, INVALID, TAKEN, Problem, Request
from .shapes import Shape, Shapes
from .store import Found, Row, Store, free_key, given_key, lawful, new_key_value, row_key, with_key
from .tables import names_parent, nested_in, twins_of, unique_properties

Place = tuple[str | int, ...]

_NAMES = (*IDENTIFIERS, "value", "key", "code", "slug", "name")
"""What names an object that is sent as one value, likely ones first."""
_MOST_SHOWN = 200
_TRIES = 20


class Unshown(Exception):
    """No value that may be sent can be in an answer."""


class Keeper:
    """Turns values of a request's schema into values of an answer's. Raises `Problem` where the answer could show
    another value of those that may be sent, and not this one, and `Unshown` where it could show none of them."""

    def __init__(self, shapes: Shapes, store: Store) -> None:
        self._shapes = shapes
        self._store = store

    def kept(self, shown: Any, asked: Any, value: Any, place: Place) -> Any:
        """`value` as a property of the schema `shown` holds it; `NOTHING` for a null where there is no null.

        `asked`: the schema under which it was sent, at `place`.
        """
        shape = self._shapes.of(shown)
        if shape.write_only:
            return value
        if shape.choices:
            shape = nearest(self._shapes, shape, value)
        if value is None:
            return None if kind_fits(shape, None) else NOTHING
        sent = self._shapes.of(asked)
        if isinstance(value, str) and not has_format(value, sent.says.get("format")) and "pattern" not in sent.says:
            made = Maker(self._shapes, Random(written(place)), self._store.now, rich=True).make_shape(sent)
            why = f"is not a valid {sent.says['format']}; {_said(made)} would be one"
            raise Problem(INVALID, f"{written(place)}: {_said(value)} {why}", place)
        if kind_fits(shape, value):
            if isinstance(value, dict):
                return self._object(shown, shape, asked, value, place)
            if isinstance(value, list):
                return self._list(shown, shape, asked, value, place)
            if scalar_fits(shape, value) and self._shapes.keeps_rules(shape, value):
                return value
        other = next(self._in_other_words(shape, asked, value, place), NOTHING)
        return self._refuse(shown, shape, asked, value, place) if other is NOTHING else other

    def _object(self, shown: Any, shape: Shape, asked: Any, value: dict[str, Any], place: Place) -> Any:
        if not self._shapes.keeps_rules(shape, value):
            self._refuse(shown, shape, asked, value, place)
        sent = nearest(self._shapes, self._shapes.of(asked), value)
        kept: dict[str, Any] = {}
        for key, inner in value.items():
            is_named = key in shape.properties or self._shapes.patterned(shape, key)
            if not is_named and not isinstance(shape.says.get("additionalProperties"), dict):
                kept[key] = inner  # what no answer shows stays where it was sent
                continue
            own, other = (self._shapes.schema_at(one, key) for one in (shape, sent))
            try:
                found = self.kept(own, other or True, inner, (*place, key))
            except Unshown:
                kept[HIDDEN + key] = inner
                continue
            if found is not NOTHING:
                kept[key] = found
            elif key in shape.required:
                raise Problem(INVALID, f"{written((*place, key))}: null is not valid here; send a value", place)
        if len(kept) < shape.says.get("minProperties", 0):
            self._refuse(shown, shape, asked, value, place)
        return kept

    def _list(self, shown: Any, shape: Shape, asked: Any, value: list[Any], place: Place) -> Any:
        item = self._shapes.of(asked).items
        found = [self.kept(shape.items, item, one, (*place, number)) for number, one in enumerate(value)]
        low, high = shape.says.get("minItems", 0), shape.says.get("maxItems", len(found))
        is_set = shape.says.get("uniqueItems") is True
        is_doubled = is_set and any(one in found[:number] for number, one in enumerate(found))
        if not low <= len(found) <= high or is_doubled or not self._shapes.keeps_rules(shape, found):
            self._refuse(shown, shape, asked, value, place)
        return found

    def _in_other_words(self, shape: Shape, asked: Any, value: Any, place: Place) -> Iterator[Any]:
        """The same value as an answer writes it: in another type or case, or as what names an object."""
        if (number := converted(shape, value)) is not NOTHING:
            yield number
        if (own := _same(shape, value)) is not NOTHING:
            yield own
        if isinstance(value, dict):
            for name in _NAMES:
                if name in value and not isinstance(value[name], dict | list) and scalar_fits(shape, value[name]):
                    yield value[name]
        elif not isinstance(value, list) and shape.kind == "object":
            yield from self._named(shape, value)
        elif not isinstance(value, list) and shape.kind == "array":
            yield [self.kept(shape.items, asked, value, place)]

    def _named(self, shape: Shape, value: Any) -> Iterator[Any]:
        """An object that goes by `value`. Its other names for it are the same in other letters: `active`, `Active`."""
        known = {name: self._shapes.of(inner) for name, inner in shape.properties.items()}
        likely = sorted(
            known, key=lambda one: next((n for n, word in enumerate(_NAMES) if words_of(one) == [word]), len(_NAMES))
        )
        for name in likely:
            if known[name].typed and not known[name].choices and scalar_fits(known[name], value):
                others = {other: own for other, inner in known.items() if (own := _same(inner, value)) is not NOTHING}
                yield {**others, name: value}

    def _refuse(self, shown: Any, shape: Shape, asked: Any, value: Any, place: Place) -> NoReturn:
        """Raises `Problem` where there is a value that may be sent and shown, `Unshown` where there is none."""
        holds = self._shapes.validity.holds
        if shape.enum is not None:
            valid = [one for one in shape.enum if one is not None and holds(asked, one)]
            if not valid:
                raise Unshown
            problem = f"{_said(value)} is not valid; it must be one of {', '.join(map(_said, valid))}"
        else:
            made = Maker(self._shapes, Random(written(place)), self._store.now, rich=True).make_shape(shape)
            if made is NOTHING or not holds(asked, made):
                raise Unshown
            why = self._shapes.validity.problem(shown, value) or "it could not be read back"
            problem = f"{_said(value)} is not valid ({why}); {_said(made)} would be"
        raise Problem(INVALID, f"{written(place)}: {problem}", place)


def written(place: Place) -> str:
    """A place in a body, such as `lines[0].price`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place[1:])
    return "".join(steps).removeprefix(".")


def _said(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str), _MOST_SHOWN)


def _same(shape: Shape, value: Any) -> Any:
    """The value of an enum that is the same but for the letters' case and what stands between words."""
    if not isinstance(value, str):
        return NOTHING
    wanted = "".join(words_of(value))
    known = (one for one in shape.enum or () if isinstance(one, str) and wanted)
    return next((one for one in known if "".join(words_of(one)) == wanted), NOTHING)


_MADE = frozenset(("created", "createdat", "createdon", "creationdate", "datecreated", "createdtime", "creationtime",
                   "createtime", "timecreated", "insertedat", "submittedat"))  # fmt: skip
CHANGED = frozenset(("updated", "updatedat", "updatedon", "modified", "modifiedat", "lastmodified", "lastupdated",
                      "datemodified", "dateupdated", "updatetime", "lastmodifiedat", "lastupdatedat", "modifieddate",
                      "updateddate"))  # fmt: skip
_SELF = frozenset(("user", "author", "creator", "owner", "reporter", "sender", "createdby"))


def _one(table: Table) -> str:
    """A row of the table in words: "an owner", "a user"."""
    return f"{'an' if table.singular[:1].casefold() in tuple('aeio') else 'a'} {table.singular}"


def _merged_request(request: Request, row: Row) -> Request:
    """A JSON merge patch (RFC 7396) with the objects inside as the row has them, changed by what was sent. Any other
    request as it is."""
    body = request.plan.operation.body
    is_patch = body is not None and "application/merge-patch+json" in body.content
    if not is_patch or request.plan.body_path or not isinstance(request.body, dict):
        return request
    return replace(request, body={name: _merged(row.get(name), value) for name, value in request.body.items()})


def _merged(before: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or is_link(before):
        return patch
    before = before if isinstance(before, dict) else {}
    merged = {name: _merged(before.get(name), value) for name, value in patch.items() if value is not None}
    return {**{name: value for name, value in before.items() if name not in patch}, **merged}


class Writer:
    """Changes to the rows of one world. `name`: of the world; what the server chooses is made from it."""

    def __init__(self, shapes: Shapes, store: Store, name: str) -> None:
        self._shapes = shapes
        self._store = store
        self._tables = store.tables
        self._name = name
        self._keeper = Keeper(shapes, store)

    # -- create -------------------------------------------------------------------------------------------------------

    def create(self, request: Request, context: Found | None) -> Found:
        """A new row of what was sent. Raises `Problem`: its key is taken, or what it names does not exist."""
        plan = request.plan
        table = self._tables[str(plan.table)]
        row: Row = {}
        if context is not None:
            self._hang(row, table, plan, context)
        shape = self._shapes.kind_of(self._shapes.of(table.schema), request.sent)
        sent = self._taken_over(table, shape, request, row)
        nested = self._nested(table, sent)
        self._keep_parent(table, row, sent)
        row |= {name: value for name, value in sent.items() if value is not NOTHING}
        if plan.item is not None:
            row = self._with_names(table, row, plan.item, request)
        serial = self._store.next_serial(table.name)
        maker = self._maker(f"{table.name}/{serial}")
        for name, schema in shape.properties.items():
            if name not in row and name != table.key.column:
                made = self._unsent(request, table, name, shape, maker)
                if words_of(name) == ["id"]:
                    # An id beside the key: an issue has a number among its project's, and an id among all.
                    own = self._shapes.of(schema)
                    # Another answer may show as a number what the row shows as text.
                    usable = own.says.get("format") in {None, "int32", "int64"}
                    numbers = (one for one in (serial, str(serial)) if usable and scalar_fits(own, one))
                    made = next(numbers, None) or maker.make_shape(own, "id")
                if made is not NOTHING:
                    row[name] = made
        for part in table.parts[:-1]:
            if row.get(part.column) is None:
                row[part.column] = self._default_scope(table, part.table, part.column)
        row = self._lawful(shape, row, shape.properties.keys() - sent)
        return self._nest(request, table, self._insert(table, row, request, serial, maker), nested)

    def _nested(self, table: Table, sent: Row) -> dict[str, list[Any]]:
        """Takes the nested rows out of what was sent."""
        lists = nested_in(table, self._tables).keys() & sent.keys()
        return {name: sent.pop(name) for name in sorted(lists) if isinstance(sent[name], list)}

    def _nest(self, request: Request, table: Table, found: Found, nested: Mapping[str, list[Any]]) -> Found:
        """A row with the nested rows that were sent and no others. One that is sent with its key is changed."""
        key = found[0]
        for name, sent in nested.items():
            target = self._tables[table.links[name].table]
            column, items = target.key.column, self._shapes.of(self._body(request).properties.get(name, True)).items
            content = {"application/json": MediaType(items)}
            operation = replace(request.plan.operation, body=RequestBody(content, required=True))
            context = Item("", table.name, None, (), direct=False)
            plan = Plan(operation, "create", target.name, context, relation="within")
            left = {below: row for below, row in self._store.items(target.name) if row.get(WITHIN) == key}
            for number, one in enumerate(sent):
                wanted = one.get(column) if isinstance(one, dict) else one
                below = next((below for below, row in left.items() if str(row.get(column)) == str(wanted)), None)
                if below is None and not isinstance(one, dict):
                    place = ("body", name, number)
                    raise Problem(INVALID, f"{written(place)}: there is no {target.singular} {wanted!r}", place)
                if below is None:
                    self.create(Request(plan, body=one), found)
                else:
                    row = left.pop(below)
                    if isinstance(one, dict):
                        self.change(Request(replace(plan, role="update"), body=one), (below, row), {})
            for below in left:
                self.delete(target, below)
        return key, self._store.get(table.name, key) or found[1]

    def _lawful(self, shape: Shape, row: Row, free: Collection[str]) -> Row:
        """`lawful`. Raises `Problem` where what was sent is against the shape's rules."""
        found = lawful(self._shapes, shape, row, free)
        if found is None:
            denied = "; ".join(json.dumps(rule["not"]) for rule in shape.rules if "not" in rule)
            raise Problem(INVALID, f"the fields are not valid together: a row must not be {denied}")
        return found

    def _with_names(self, table: Table, row: Row, item: Item, request: Request) -> Row:
        """A row with what the path calls it. Raises `Problem` where it cannot be called so."""
        for (parameter, column), value in zip(item.lookups, self._store.values_of(item, request), strict=True):
            part = next((one for one in table.parts if one.column == column), table.key)
            shape = self._shapes.of(part.schema)
            name = value if kind_fits(shape, value) else converted(shape, value)
            if name is NOTHING or not scalar_fits(shape, name):
                raise Problem(
                    INVALID,
                    f"{parameter}: {value!r} is not valid for {_one(table)}",
                    ("path", parameter),
                )
            row = with_key(table, row, name) if part is table.key else {**row, column: name}
        return row

    def _insert(self, table: Table, row: Row, request: Request, serial: int, maker: Maker) -> Found:
        given = given_key(table, row)
        parent = row.get(WITHIN)
        if given is None and (known := self._shapes.of(table.key.schema).enum) is not None:
            given = next((one for one in known if one is not None and not self._key_taken(table, row, one)), None)
            if given is None:
                raise Problem(TAKEN, f"There is {_one(table)} of each {table.key.column} already.")
        elif given is None or isinstance(given, dict | list):
            given = self._new_key(table, row, serial, maker)
        elif self._key_taken(table, row, given):
            raise Problem(TAKEN, f"There is {_one(table)} {given!r} already.")
        row = with_key(table, row, given)
        self._refuse_doubles(table, row, request, None)
        values = [self._value(row, part.column) for part in table.parts]
        key = free_key(self._store, table.name, row_key(parent, values))
        self._store.put(table.name, key, row)
        if table.parent is not None and (above := self._store.get(table.parent, str(parent))) is not None:
            self._store.put(table.parent, str(parent), self._store.listing_nested(table, key, above))
        return key, row

    def _new_key(self, table: Table, row: Row, serial: int, maker: Maker) -> Any:
        """A key that no row has. Raises `Problem` where none is left."""
        shape, left = self._shapes.of(table.key.schema), _TRIES
        while left:
            number = self._number(table, row.get(WITHIN), serial)
            value = new_key_value(self._shapes, maker.realistic, table, row, number)
            is_number, ending = table.key.kind == "integer", f"-{serial}"
            room = max(0, int(shape.says.get("maxLength", len(str(value)) + len(ending))) - len(ending))
            for one in (value,) if is_number else (value, value[:room] + ending):
                is_taken = self._key_taken(table, row, one)
                if not is_taken and scalar_fits(shape, one):
                    return one
            if not (is_number and is_taken):  # a number goes on until it is free
                left -= 1
            serial = self._store.next_serial(table.name)
        raise Problem(TAKEN, f"There is no {table.key.column} left for another {table.singular}.")

    def _number(self, table: Table, parent: Any, serial: int) -> int:
        """The next number: ids count through the table, numbers anew under each parent."""
        if table.parent is None or "id" in words_of(table.key.column):
            return serial
        own = [key.rpartition("/")[2] for key in self._store.keys(table.name) if key.startswith(f"{parent}/")]
        rows = (row for _, row in self._store.items(table.name) if row.get(WITHIN) == parent)
        own += [str(row.get(table.key.column)) for row in rows]  # a row may be called otherwise by now
        return max((int(one) for one in own if one.isdecimal()), default=0) + 1

    def _hang(self, row: Row, table: Table, plan: Plan, context: Found) -> None:
        """Tie a new row to the row that its path names."""
        above = plan.context.table if plan.context else ""
        if plan.relation == "within":
            row[WITHIN] = context[0]
            return
        if plan.relation is not None and plan.relation.startswith(HIDDEN):
            row[plan.relation] = context[0]
        elif plan.relation is not None and (link := table.links.get(plan.relation)) is not None:
            value = self._store.link(link, context[0])
            row[plan.relation] = [value] if link.many else value
        if table.parent is not None:
            over = self._store.ancestor(self._tables[above], context[1], table.parent)
            row[WITHIN] = context[0] if above == table.parent else over

    def _keep_parent(self, table: Table, row: Row, sent: Row) -> None:
        """A row names the row that its path names. Raises `Problem` where another one was sent."""
        if WITHIN not in row:
            return
        for name, link in table.links.items():
            if names_parent(name, table, self._tables):
                above = self._store.link(link, row[WITHIN])
                if sent.get(name, NOTHING) not in (NOTHING, above):
                    raise Problem(
                        INVALID, f"{name}: the path names another one; send that, or leave it out", ("body", name)
                    )
                sent[name] = above

    def _default_scope(self, table: Table, target: str | None, column: str) -> Any:
        """The part of a key that nobody gave: the row above, or the one who calls."""
        if target is None:
            return column.removeprefix(HIDDEN)
        first = next((key for key, _ in self._store.items(target)), None)
        if first is None:
            raise Problem(INVALID, f"{column}: there is no {self._tables[target].singular} that it could belong to")
        link = table.links.get(column)
        return self._store.link(link, first) if link else {LINK: [target, first]}

    # -- change -------------------------------------------------------------------------------------------------------

    def change(self, request: Request, found: Found, more: Mapping[str, Any], *, whole: bool = False) -> Found:
        """A row with what was sent, and `more`, in it. `whole`: what may be sent and was not is gone."""
        key, row = found
        table = self._tables[str(request.plan.item.table if request.plan.item else request.plan.table)]
        request = _merged_request(request, row)
        every = self._shapes.of(table.schema)
        shape = self._shapes.kind_of(every, {**row, **request.sent})
        sent = self._taken_over(table, shape, request, row)
        nested = self._nested(table, sent)
        self._keep_parent(table, row, sent)
        # A row that becomes another kind leaves behind what only its old kind has.
        changed = {name: value for name, value in row.items() if name in shape.properties or name not in every.united}
        if whole:
            left_out = self._left_out(table, shape, request, sent)
            changed |= {name: value for name, value in left_out.items() if name not in nested}
            changed = {name: value for name, value in changed.items() if value is not NOTHING}
        changed |= {**sent, **more}
        for name in sent.keys() & shape.properties.keys():
            changed.pop(HIDDEN + name, None)
            if sent[name] is NOTHING:
                if name in shape.required:
                    raise Problem(INVALID, f"{name}: null is not valid here; send a value", ("body", name))
                del changed[name]
        for name, schema in shape.properties.items():
            if "".join(words_of(name)) in CHANGED and name not in sent:
                now = self._moment(self._shapes.of(schema))
                changed |= {} if now is NOTHING else {name: now}
        if not table.single:
            changed = with_key(table, changed, row[table.key.column]) if table.key.shown else changed
            own = changed.get(table.key.column)
            is_other = str(own) != str(row.get(table.key.column))
            if is_other and set(IDENTIFIERS) & set(words_of(table.key.column)):
                why = (
                    f"{table.key.column}: {own!r} is not the row's; send {row.get(table.key.column)!r}, or leave it out"
                )
                raise Problem(INVALID, why, ("body", table.key.column))
            if is_other and self._key_taken(table, changed, own):
                raise Problem(TAKEN, f"There is {_one(table)} {own!r} already.")
            self._refuse_doubles(table, changed, request, key)
        changed = self._lawful(shape, changed, ())
        self._store.put(table.name, key, changed)
        return self._nest(request, table, (key, changed), nested)

    def _left_out(self, table: Table, shape: Shape, request: Request, sent: Row) -> Row:
        found: Row = {}
        maker = self._maker(f"{table.name}/replaced")
        for name in self._body(request).properties:
            if name in shape.properties and name not in sent and name != (table.parts and table.key.column):
                if self._shapes.of(shape.properties[name]).read_only:
                    continue
                found[name] = self._unsent(request, table, name, shape, maker)
        return found

    # -- delete -------------------------------------------------------------------------------------------------------

    def delete(self, table: Table, key: str) -> None:
        """Take away a row, what stands under it, and what it is named in.

        Raises `Problem` where another row must name it.
        """
        gone = list(self._with_nested(table, key))
        values = [self._value(row, one.key.column) if one.parts else None for one, _, row in gone]
        for one, own, _ in gone:
            self._store.drop(one.name, own)
        for (one, own, row), value in zip(gone, values, strict=True):
            self._unlink(one, own, row, str(value))

    def _with_nested(self, table: Table, key: str) -> Iterator[tuple[Table, str, Row]]:
        """A row, what stands under it, and what puts it into collections."""
        yield table, key, self._store.get(table.name, key) or {}
        for other in self._tables.values():
            for below, row in self._store.items(other.name) if other.parent == table.name else ():
                if (other.single and below == key) or row.get(WITHIN) == key:
                    yield from self._with_nested(other, below)
            for member, row in self._store.items(other.name) if other.members == table.name else ():
                if row["@of"][LINK][1] == key:
                    yield other, member, row

    def _unlink(self, table: Table, key: str, gone: Row, name_of_it: str) -> None:
        """`name_of_it`: the value by which other rows name it."""
        for other in self._tables.values():
            links = {name: link for name, link in other.links.items() if link.table == table.name}
            owned = HIDDEN + table.name if table.name in other.owners else None
            for place, row in list(self._store.items(other.name)) if links or owned else ():
                changed = dict(row)
                if owned and row.get(owned) == key:
                    del changed[owned]
                for name, link in links.items():
                    if link.shown or self._store.is_near(other, row, table, gone):
                        self._clear(other, name, link, changed, key if link.shown else name_of_it)
                if changed != row:
                    self._store.put(other.name, place, changed)

    def _clear(self, other: Table, name: str, link: Link, row: Row, value: str) -> None:
        """Take the name of a deleted row out of one property of another row."""

        def names(one: Any) -> bool:
            return bool(one[LINK] == [link.table, value]) if is_link(one) else not link.shown and str(one) == value

        held = row.get(name)
        if link.many and isinstance(held, list):
            row[name] = [one for one in held if not names(one)]
        elif held is not None and names(held):
            if name in {part.column for part in other.parts} or (link.required and not link.nullable):
                raise Problem(IN_USE, f"It is still needed: {name} of {other.name} names it.")
            if link.nullable:
                row[name] = None
            else:
                del row[name]

    # -- what was sent ------------------------------------------------------------------------------------------------

    def _body(self, request: Request) -> Shape:
        """The shape of the row that may be sent."""
        body = body_schema(request.plan.operation)
        for step in request.plan.body_path:
            body = self._shapes.of(body).properties.get(step, True)
        return self._shapes.of(body)

    def _taken_over(self, table: Table, shape: Shape, request: Request, row: Row) -> Row:
        """What was sent, as columns. What a row does not show is kept in a hidden column."""
        found: Row = {}
        sent = request.sent
        body = nearest(self._shapes, self._body(request), sent).properties
        by_words = {"".join(words_of(name)): name for name in shape.properties}
        for given, value in sent.items():
            name = given if given in shape.properties else by_words.get("".join(words_of(given)), given)
            if name not in shape.properties:
                found[HIDDEN + given] = value
                continue
            shown, asked = shape.properties[name], body.get(given, True)
            if self._shapes.of(shown).read_only and (given not in body or self._shapes.of(asked).read_only):
                # A key may be read only in the row, and be sent when it is made. What was read may be sent back.
                if value not in (row.get(name), self._value(row, name)):
                    raise Problem(INVALID, f"{given}: only the server sets this; leave it out", ("body", given))
                continue
            link = table.links.get(name)
            try:
                if name in nested_in(table, self._tables) and isinstance(value, list):
                    found[name] = value  # they become rows of their own
                elif link is not None and value is not None:
                    many = link.many and isinstance(value, list)
                    places: list[Place] = [("body", given, number) for number in range(len(value))] if many else []
                    made = [
                        self._reference(table, link, shown, asked, one, place, row)
                        for one, place in zip(value if many else [value], places or [("body", given)], strict=False)
                    ]
                    found[name] = made if many else made[0]
                    for twin in twins_of(name, table.links):
                        if twin not in sent:
                            found[twin] = self._same(table, row, table.links[twin], link, found[name])
                else:
                    found[name] = self._keeper.kept(shown, asked, value, ("body", given))
            except Unshown:
                found[HIDDEN + given] = value
        # What is called as a hidden column that ties the row to another one is not kept: it would move the row.
        ties = {WITHIN, *(HIDDEN + owner for owner in table.owners)}
        return {name: value for name, value in found.items() if name not in ties}

    def _same(self, table: Table, row: Row, twin: Link, link: Link, value: Any) -> Any:
        """The value of another property for the same rows: `book` where `book_id` was given."""
        if isinstance(value, list):
            return [self._same(table, row, twin, link, one) for one in value]
        if is_link(value):
            return self._store.link(twin, value[LINK][1])
        target = self._tables[link.table]
        near = (one for one in self._store.items(target.name) if self._store.is_near(table, row, target, one[1]))
        key = next((key for key, other in near if self._value(other, target.key.column) == value), "")
        return self._store.link(twin, key)

    def _reference(self, table: Table, link: Link, shown: Any, asked: Any, value: Any, place: Place, row: Row) -> Any:
        """A link to the row that was named. Raises `Problem` where it does not exist."""
        target = self._tables[link.table]
        wanted = value
        if isinstance(value, dict):
            wanted = next((value[key] for key in (target.key.column, "id", "name") if key in value), NOTHING)
            if wanted is NOTHING:
                if len(place) > 2:
                    shown, asked = self._shapes.of(shown).items, self._shapes.of(asked).items
                return self._keeper.kept(shown, asked, value, place)
        for key, other in self._store.items(target.name):
            if not self._store.is_near(table, row, target, other):
                continue
            names = (target.key.column, "id", "name", "login", "username", "title", "slug")
            if any(str(self._value(other, one)) == str(wanted) for one in names if other.get(one) is not None):
                return self._store.link(link, key)
        raise Problem(INVALID, f"{written(place)}: there is no {target.singular} {wanted!r}", place)

    def _value(self, row: Row, column: str) -> Any:
        return self._store.value(row.get(column))

    # -- what the server chooses --------------------------------------------------------------------------------------

    def _unsent(self, request: Request, table: Table, name: str, shape: Shape, maker: Maker) -> Any:
        """What a property of a row of `shape` is where it was not sent: the request's default as if it were sent, which
        answers seldom repeat, or what a fresh row has where no answer could show that."""
        shown = shape.properties[name]
        asked = nearest(self._shapes, self._body(request), request.sent).properties.get(name, True)
        told, word = self._shapes.of(asked).says, "".join(words_of(name))
        if "default" in told and name not in table.links and word not in _MADE and word not in CHANGED:
            with suppress(Problem, Unshown):
                kept = self._keeper.kept(shown, asked, told["default"], ("body", name))
                if kept is not NOTHING:
                    return kept
        return self._fresh(table, name, shown, name in shape.required, maker)

    def _fresh(self, table: Table, name: str, schema: Any, required: bool, maker: Maker) -> Any:
        """What a property of a new row is where nobody said: `NOTHING` where it has none."""
        shape, word = self._shapes.of(schema), "".join(words_of(name))
        if shape.write_only:
            return NOTHING
        if word in _MADE or word in CHANGED:
            now = self._moment(shape)
            if now is not NOTHING:
                return now
        link = table.links.get(name)
        if link is not None:
            return self._fresh_link(name, link, word, schema, maker)
        if "default" in shape.says:
            return shape.says["default"]
        if name in table.values and (required or word in STATES):
            return table.values[name][0]
        if word in STATES and shape.enum is not None:
            return maker.make_shape(shape, name, table.singular)
        if not required:
            if shape.kinds - {"null"} == {"boolean"}:
                return False
            is_counted = words_of(name)[-1:] in (["count"], ["counter"]) and "integer" in shape.kinds
            return 0 if is_counted else None if shape.nullable else NOTHING
        return None if shape.nullable else maker.make_shape(shape, name, table.singular, 1)

    def _fresh_link(self, name: str, link: Link, word: str, schema: Any, maker: Maker) -> Any:
        if link.many:
            return []
        if word in _SELF or (link.required and not link.nullable):
            first = next((key for key, _ in self._store.items(link.table)), None)
            if first is not None:
                return self._store.link(link, first)
            return maker.make(schema, name, "", 2) if link.required and not link.nullable else NOTHING
        return None if link.nullable else NOTHING

    def _moment(self, shape: Shape) -> Any:
        now: datetime = self._store.now
        if "string" in shape.kinds and shape.says.get("format") == "date":
            return now.date().isoformat()
        if shape.typed and "string" not in shape.kinds and "integer" in shape.kinds:
            return int(now.timestamp())
        return stamp(now) if "string" in shape.kinds and scalar_fits(shape, stamp(now)) else NOTHING

    def _key_taken(self, table: Table, row: Row, value: Any) -> bool:
        """Whether a row under the same parent, with the same scope, has that key."""
        scopes = [part.column for part in table.parts[:-1]]
        mine = [str(self._value(row, column)) for column in scopes]
        return any(
            str(other.get(table.key.column)) == str(value)
            and other.get(WITHIN) == row.get(WITHIN)
            and [str(self._value(other, column)) for column in scopes] == mine
            for _, other in self._store.items(table.name)
        )

    def _refuse_doubles(self, table: Table, row: Row, request: Request, own: str | None) -> None:
        """Raise `Problem` where what was sent makes a unique property equal to another row's."""
        before = (self._store.get(table.name, own) or {}) if own is not None else {}
        unique = unique_properties(self._shapes, table.schema, request.plan.operation)
        for name in unique & request.sent.keys() & row.keys():
            if row[name] is None or (own is not None and before.get(name) == row[name]):
                continue
            for key, other in self._store.items(table.name):
                if key != own and other.get(name) == row[name] and other.get(WITHIN) == row.get(WITHIN):
                    raise Problem(TAKEN, f"{name}: there is {_one(table)} with {row[name]!r} already")

    def _maker(self, key: str) -> Maker:
        return Maker(self._shapes, Random(f"{self._name}/new/{key}"), self._store.now, rich=False)
