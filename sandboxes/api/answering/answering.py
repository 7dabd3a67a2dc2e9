"""Answers requests: one method for each role that an operation can have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..inference.model import HIDDEN, WITHIN, Backend, Table
from ..inference.paths import answer_schema
from ..shapes import Shapes
from ..values.fitting import LINK
from ..values.making import NOTHING
from ..world.store import Row, Store
from .listing import Lister
from .rendering import Renderer
from .requests import MISSING, TAKEN, Problem, Reply, Request, status_of
from .rows import Found, Rows
from .writes import Writer

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Operation

EVENTS = "@events"
"""The table of what was done and could not be played out."""


class Answerer:
    """Answers the requests of one world. `name`: of the world, from which everything is made that no row says."""

    def __init__(self, backend: Backend, shapes: Shapes, store: Store, name: str) -> None:
        self._shapes = shapes
        self._store = store
        self._tables = backend.tables
        self._rows = Rows(store, backend.tables)
        self._renderer = Renderer(shapes, backend.tables, store, name)
        self._lister = Lister(shapes, backend.tables, store)
        self._writer = Writer(shapes, self._rows, name)

    def answer(self, request: Request) -> Reply:
        """Do what is asked. Raises `Problem`; what has changed until then is for the caller to undo."""
        plan = request.plan
        context = self._rows.at(plan.context, request) if plan.context is not None else None
        reply: Reply = getattr(self, f"_{plan.role}")(request, context)
        return reply

    def check_path(self, request: Request) -> None:
        """Raise `Problem` where a row that the path names does not exist."""
        plan = request.plan
        if plan.context is not None:
            self._rows.at(plan.context, request)
        if plan.item is not None and self._tables[plan.item.table].members is None and plan.item.lookups:
            self._rows.at(plan.item, request)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _list(self, request: Request, context: Found | None) -> Reply:
        only = request.plan.moves
        found = self._rows.listed(request.plan, context)
        rows = [one for one in found if all(one[1].get(name) == value for name, value in only.items())]
        shown, facts = self._lister.page(request.plan, rows, request.query)
        envelope = request.plan.envelope
        assert envelope is not None
        body = self._renderer.many(envelope, shown, facts, self._key(request))
        return Reply(status_of(request.plan.success), body)

    def _read(self, request: Request, context: Found | None) -> Reply:
        table = self._table(request)
        if table.members is not None:
            return self._show(request, self._member(request, context))
        return self._show(request, self._item(request))

    def _check(self, request: Request, context: Found | None) -> Reply:
        if request.plan.moves:
            _, row = self._item(request)
            if any(row.get(name) != value for name, value in request.plan.moves.items()):
                raise Problem(MISSING, "It is not so.")
        elif self._table(request).members is not None:
            self._member(request, context)
        else:
            self._item(request)
        return self._plain(request)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _create(self, request: Request, context: Found | None) -> Reply:
        return self._show(request, self._writer.create(request, context))

    def _replace(self, request: Request, context: Found | None) -> Reply:
        return self._changed(request, context, whole=True)

    def _update(self, request: Request, context: Found | None) -> Reply:
        return self._changed(request, context, whole=False)

    def _changed(self, request: Request, context: Found | None, *, whole: bool) -> Reply:
        table = self._table(request)
        try:
            found = self._item(request)
        except Problem:
            if not (table.single and request.plan.operation.method == "put"):
                raise
            # What a path holds once is put there, whether or not something was there before.
            found = self._writer.put_single(table, context, {})
        return self._show(request, self._writer.change(request, found, {}, whole=whole))

    def _delete(self, request: Request, context: Found | None) -> Reply:  # noqa: ARG002 - all roles are called alike
        found = self._item(request)
        self._writer.delete(self._table(request), found[0])
        return self._show(request, found)

    def _clear(self, request: Request, context: Found | None) -> Reply:
        table = self._table(request)
        for key, _ in list(self._rows.listed(request.plan, context)):
            if table.members is None:
                self._writer.delete(table, key)
            else:
                self._store.drop(table.name, key)
        return self._by_schema(request)

    def _add(self, request: Request, context: Found | None) -> Reply:
        item = request.plan.item
        assert item is not None
        table = self._table(request)
        key, member = self._rows.member(item, request, context)
        row: dict[str, Any] = {WITHIN: context[0]} if context else {}
        row |= {HIDDEN + name: value for name, value in request.sent.items()}
        self._store.put(table.name, key, {**row, "@of": {LINK: [str(table.members), member[0]]}})
        return self._show(request, member)

    def _remove(self, request: Request, context: Found | None) -> Reply:
        found = self._member(request, context)
        item = request.plan.item
        assert item is not None
        self._store.drop(self._table(request).name, self._rows.member(item, request, context)[0])
        return self._show(request, found)

    def _move(self, request: Request, context: Found | None) -> Reply:  # noqa: ARG002 - all roles are called alike
        found = self._item(request)
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
        return self._by_schema(request, {**self._shown_row(request, context), **request.sent})

    def _shown_row(self, request: Request, context: Found | None) -> Row:
        """The row above, where the answer is of its kind."""
        plan = request.plan
        if context is None or plan.context is None or plan.envelope is None or plan.envelope.is_list:
            return {}
        name = self._shapes.name_of(plan.envelope.item)
        own = self._shapes.name_of(self._tables[plan.context.table].schema)
        return context[1] if name is not None and name == own else {}

    def _answer(self, request: Request, context: Found | None) -> Reply:  # noqa: ARG002 - all roles are called alike
        return self._by_schema(request)

    # -- replies ------------------------------------------------------------------------------------------------------

    def _table(self, request: Request) -> Table:
        return self._tables[str(request.plan.table)]

    def _item(self, request: Request) -> Found:
        if request.plan.item is None:
            return self._rows.named(request)
        return self._rows.at(request.plan.item, request)

    def _member(self, request: Request, context: Found | None) -> Found:
        """The row, where it is in the collection."""
        item = request.plan.item
        assert item is not None
        key, member = self._rows.member(item, request, context)
        if self._store.get(item.table, key) is None:
            raise Problem(MISSING, f"{member[0]!r} is not among the {item.table}.")
        return member

    def _show(self, request: Request, found: Found) -> Reply:
        envelope = request.plan.envelope
        if envelope is None:
            return self._plain(request)
        key, row = found
        if envelope.is_list:
            return self._by_schema(request, row)
        status = status_of(request.plan.success)
        return Reply(status, self._renderer.one(envelope, row, f"{request.plan.table}/{key}"))

    def _by_schema(self, request: Request, value: Any = NOTHING) -> Reply:
        schema = answer_schema(request.plan.operation, request.plan.success)
        if schema is None:
            return self._plain(request)
        rich = request.plan.role == "answer"
        return Reply(
            status_of(request.plan.success),
            self._renderer.made(schema, self._key(request), value, rich=rich),
        )

    def _plain(self, request: Request) -> Reply:
        """Without a JSON body: nothing, or a text where the document says there is one."""
        operation = request.plan.operation
        status = request.plan.success
        schema = answer_schema(operation, status)
        if schema is not None and operation.method != "head":
            return self._by_schema(request)
        kind = _text_kind(operation, status)
        if not kind or operation.method == "head":
            return Reply(status_of(status))
        media = operation.responses[status].content[kind]
        made = media.examples[0] if media.examples else f"{operation.summary or operation.operation_id}"
        return Reply(status_of(status), text=str(made), kind=kind)

    def _key(self, request: Request) -> str:
        """The same for the same request: what is made for it does not change from call to call."""
        return json.dumps(
            [request.plan.operation.operation_id, list(request.path.values())],
            sort_keys=True,
            default=str,
        )


def _text_kind(operation: Operation, status: str) -> str:
    answer = operation.responses.get(status)
    return next(iter(answer.content), "") if answer is not None else ""
