"""The answerer of requests: one handler for each role that an operation can have."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .listing import Lister
from .maker import NOTHING
from .model import HIDDEN, LINK, WITHIN, Role, Table
from .paths import answer_schema
from .rendering import Renderer, WholeRow
from .requests import INVALID, MISSING, TAKEN, Problem, Reply, Request, status_of
from .shapes import Shapes
from .store import ONLY, Found, Row, Store
from .writes import Writer

EVENTS = "@events"
"""The table of operations that were recorded and could not be simulated."""


class Answerer:
    """Answers the requests of one world. `name`: of the world; values that no row holds are made from it."""

    def __init__(self, shapes: Shapes, store: Store, name: str) -> None:
        self._shapes = shapes
        self._store = store
        self._tables = store.tables
        self._renderer = Renderer(shapes, store, name)
        self._lister = Lister(shapes, store)
        self._writer = Writer(shapes, store, name)

    def answer(self, request: Request) -> Reply:
        """Do what is asked. Raises `Problem`; what has changed until then is for the caller to undo."""
        plan = request.plan
        context = self._store.at(plan.context, request) if plan.context is not None else None
        return _HANDLERS[plan.role](self, request, context)

    def check_path(self, request: Request) -> None:
        """Raise `Problem` where a row that the path names does not exist."""
        plan = request.plan
        if plan.context is not None:
            self._store.at(plan.context, request)
        item = None if plan.makes else plan.item
        if item is not None and self._tables[item.table].members is None and item.lookups:
            self._store.at(item, request)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _list(self, request: Request, context: Found | None) -> Reply:
        only = request.plan.moves
        found = self._store.listed(request.plan, context)
        rows = [one for one in found if all(one[1].get(name) == value for name, value in only.items())]
        shown, facts = self._lister.page(request, rows)
        envelope = request.plan.envelope
        assert envelope is not None
        body = self._renderer.many(envelope, shown, facts, self._key(request))
        return Reply(status_of(request.plan.success), body)

    def _read(self, request: Request, context: Found | None) -> Reply:
        return self._show(request, self._item(request, context))

    def _check(self, request: Request, context: Found | None) -> Reply:
        _, row = self._item(request, context)
        if any(row.get(name) != value for name, value in request.plan.moves.items()):
            raise Problem(MISSING, "It is not so.")
        return self._plain(request)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _create(self, request: Request, context: Found | None) -> Reply:
        key = self._table(request).key.column
        made = [self._writer.create(one, context) for one in request.each(key)]
        envelope = request.plan.envelope
        if envelope is not None and envelope.is_list:
            return Reply(status_of(request.plan.success), self._renderer.many(envelope, made, {}, self._key(request)))
        if not made or (request.plan.many and isinstance(request.body, dict)):
            return self._by_schema(request, request.body)
        return self._show(request, made[-1])

    def _change(self, request: Request, context: Found | None) -> Reply:
        table = self._table(request)
        try:
            found = self._item(request, context)
        except Problem:
            if request.plan.makes:
                return self._show(_as_created(request), self._writer.create(request, context))
            if not (table.single and request.plan.operation.method == "put"):
                raise
            # What a path holds once is put there, whether or not something was there before.
            found = context[0] if context else ONLY, {WITHIN: context[0]} if context else {}
            self._store.put(table.name, *found)
        whole = request.plan.role == "replace"
        return self._show(request, self._writer.change(request, found, {}, whole=whole))

    def _delete(self, request: Request, context: Found | None) -> Reply:
        found = self._item(request, context)
        self._writer.delete(self._table(request), found[0])
        return self._show(request, found)

    def _clear(self, request: Request, context: Found | None) -> Reply:
        table = self._table(request)
        for key, _ in list(self._store.listed(request.plan, context)):
            if table.members is None:
                self._writer.delete(table, key)
            else:
                self._store.drop(table.name, key)
        return self._by_schema(request)

    def _add(self, request: Request, context: Found | None) -> Reply:
        item = request.plan.item
        assert item is not None
        table = self._table(request)
        key, member = self._store.member(item, request, context)
        row = {HIDDEN + name: value for name, value in request.sent.items()}
        row |= {WITHIN: context[0]} if context else {}
        self._store.put(table.name, key, {**row, "@of": {LINK: [str(table.members), member[0]]}})
        return self._show(request, member)

    def _remove(self, request: Request, context: Found | None) -> Reply:
        key, member = self._member(request, context)
        self._store.drop(self._table(request).name, key)
        return self._show(request, member)

    def _move(self, request: Request, context: Found | None) -> Reply:
        found = self._item(request, context)
        moves = request.plan.moves
        is_there = bool(moves) and all(found[1].get(name) == value for name, value in moves.items())
        if is_there and not request.sent and "409" in request.plan.operation.responses:
            name, value = next(iter(moves.items()))
            raise Problem(TAKEN, f"Its {name} is {value!r} already.")
        return self._show(request, self._writer.change(request, found, moves))

    # -- what no table holds ------------------------------------------------------------------------------------------

    def _event(self, request: Request, context: Found | None) -> Reply:
        number = self._store.next_serial(EVENTS)
        self._store.put(
            EVENTS,
            str(number),
            {
                "operation": request.plan.operation.operation_id,
                "path": dict(request.path),
                "query": dict(request.query),
                "body": None if request.body is NOTHING else request.body,
                "at": self._store.now.isoformat(),
            },
        )
        row, envelope = self._shown_row(request, context), request.plan.envelope
        told: Any = {**row, **request.sent}
        for step in reversed(envelope.path) if row and envelope is not None else ():
            told = {step: WholeRow(told)}
        return self._by_schema(request, told)

    def _refuse(self, request: Request, context: Found | None) -> Reply:  # noqa: ARG002 - all roles are called alike
        raise Problem(INVALID, f"This simulation cannot do it: {request.plan.because}.")

    def _shown_row(self, request: Request, context: Found | None) -> Row:
        """The row above, where the answer is of its kind."""
        plan = request.plan
        if context is None or plan.context is None or plan.envelope is None or plan.envelope.is_list:
            return {}
        name = self._shapes.of(plan.envelope.item).name
        own = self._shapes.of(self._tables[plan.context.table].schema).name
        return context[1] if name is not None and name == own else {}

    def _answer(self, request: Request, context: Found | None) -> Reply:  # noqa: ARG002 - all roles are called alike
        return self._by_schema(request)

    # -- replies ------------------------------------------------------------------------------------------------------

    def _table(self, request: Request) -> Table:
        return self._tables[str(request.plan.table)]

    def _item(self, request: Request, context: Found | None) -> Found:
        """The row that the operation is about. Raises `Problem` where there is none."""
        if request.plan.item is None:
            return self._store.named(request)
        if self._table(request).members is not None:
            return self._member(request, context)[1]
        return self._store.at(request.plan.item, request)

    def _member(self, request: Request, context: Found | None) -> tuple[str, Found]:
        """The key of a membership and its row. Raises `Problem` where the row is not in the collection."""
        item = request.plan.item
        assert item is not None
        key, member = self._store.member(item, request, context)
        if self._store.get(item.table, key) is None:
            raise Problem(MISSING, f"{member[0]!r} is not among the {item.table}.")
        return key, member

    def _show(self, request: Request, found: Found) -> Reply:
        envelope = request.plan.envelope
        key, row = found
        schema = answer_schema(request.plan.operation, request.plan.success)
        if envelope is None and schema is not None and request.plan.role != "delete":
            return self._by_schema(request, row)  # an answer that the document leaves open may be the row
        if envelope is None:
            return self._plain(request)
        status = status_of(request.plan.success)
        if envelope.is_list and request.plan.role == "read":
            return Reply(status, self._renderer.many(envelope, [found], {}, f"{request.plan.table}/{key}"))
        if envelope.is_list:
            return self._by_schema(request, row)
        return Reply(status, self._renderer.one(envelope, row, f"{request.plan.table}/{key}"))

    def _by_schema(self, request: Request, value: Any = NOTHING) -> Reply:
        schema = answer_schema(request.plan.operation, request.plan.success)
        if schema is None:
            return self._plain(request)
        rich = request.plan.role == "answer"
        return Reply(status_of(request.plan.success), self._renderer.made(schema, self._key(request), value, rich=rich))

    def _plain(self, request: Request) -> Reply:
        """A reply without a JSON body: nothing, or a text where the document has one."""
        operation = request.plan.operation
        status = request.plan.success
        schema = answer_schema(operation, status)
        if schema is not None and operation.method != "head":
            return self._by_schema(request)
        answer = operation.responses.get(status)
        kind = next(iter(answer.content), "") if answer is not None else ""
        if not kind or operation.method == "head":
            return Reply(status_of(status))
        media = operation.responses[status].content[kind]
        made = media.examples[0] if media.examples else f"{operation.summary or operation.operation_id}"
        return Reply(status_of(status), text=str(made), kind=kind)

    def _key(self, request: Request) -> str:
        """The same for the same request: what is made for it does not change from call to call."""
        return json.dumps(
            [request.plan.operation.operation_id, list(request.path.values())], sort_keys=True, default=str
        )


def _as_created(request: Request) -> Request:
    """With the status of a creation, where its answer is described as that of the update."""
    operation, plan = request.plan.operation, request.plan
    if "201" in operation.responses and answer_schema(operation, "201") == answer_schema(operation, plan.success):
        return replace(request, plan=replace(plan, success="201"))
    return request


_HANDLERS: dict[Role, Callable[[Answerer, Request, Found | None], Reply]] = {
    "list": Answerer._list,
    "read": Answerer._read,
    "check": Answerer._check,
    "create": Answerer._create,
    "replace": Answerer._change,
    "update": Answerer._change,
    "delete": Answerer._delete,
    "clear": Answerer._clear,
    "add": Answerer._add,
    "remove": Answerer._remove,
    "move": Answerer._move,
    "event": Answerer._event,
    "refused": Answerer._refuse,
    "answer": Answerer._answer,
}
