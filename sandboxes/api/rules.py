"""Rules in Python, for what an API does beyond its document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..sandbox import Refused as SandboxRefused
from .maker import NOTHING
from .model import Table
from .requests import Reply, Request, status_of
from .store import Store, free_key, row_key

When = Literal["before", "after", "instead"]


class Refused(SandboxRefused):
    """Raised by a rule: the API answers with `status` and `message`, and nothing has changed.

    The body has the shape that the document gives to errors of that status.
    """

    def __init__(self, status: int, message: str) -> None:
        if not 400 <= status <= 599:
            raise ValueError(f"status is {status!r}; a refusal has one of 400 to 599, such as 409")
        super().__init__(message)
        self.status = status


class RowStore:
    """The rows of the world that a rule is called in. Rows are copies: `change` writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tables = store.tables

    def rows(self, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Keys and rows, the oldest first."""
        self._known(table)
        for key, row in list(self._store.items(table)):
            yield key, deepcopy(row)

    def get(self, table: str, key: object) -> dict[str, Any] | None:
        """A row by its key, `None` where there is none. Keys of nested rows begin with the parent's: `"7/12"`."""
        self._known(table)
        return deepcopy(self._store.get(table, str(key)))

    def change(self, table: str, key: object, **columns: Any) -> dict[str, Any]:
        """Set columns of a row. Raises `KeyError` where there is none."""
        row = self.get(table, key)
        if row is None:
            raise KeyError(f"{table} has no row {key!r}")
        row |= deepcopy(columns)
        self._store.put(table, str(key), row)
        return deepcopy(row)

    def add(self, table: str, row: Mapping[str, Any]) -> str:
        """Add a row, which must have its key's column, and return its key."""
        known = self._known(table)
        column = known.key.column
        if column not in row:
            raise KeyError(f"a row of {table} needs its key, {column!r}")
        key = free_key(self._store, table, row_key(row.get("@in"), [row[part.column] for part in known.parts]))
        self._store.put(table, key, deepcopy(dict(row)))
        return key

    def drop(self, table: str, key: object) -> None:
        """Take a row away. What stands under it stays: a rule decides for itself."""
        self._known(table)
        self._store.drop(table, str(key))

    def _known(self, table: str) -> Table:
        if table not in self._tables:
            raise KeyError(f"there is no table {table!r}; there are {', '.join(self._tables)}")
        return self._tables[table]


@dataclass
class ApiCall:
    """What a rule sees, in copies. `path`, `query` and `body`: as sent. `reply`: what the operation has answered."""

    operation: str
    path: dict[str, Any]
    query: dict[str, Any]
    body: Any
    store: RowStore
    now: datetime
    reply: Any = None


Rule = Callable[[ApiCall], Any]


@dataclass(frozen=True)
class Rules:
    """The rules of a twin. Never written to: a twin and its forks may have different ones."""

    rules: tuple[tuple[str, When, Rule], ...] = ()

    def plus(self, operation: str, when: When, rule: Rule) -> Rules:
        """These rules and one more."""
        return Rules((*self.rules, (operation, when, rule)))

    def has(self, operation: str) -> bool:
        """Whether an operation has a rule."""
        return any(name == operation for name, _, _ in self.rules)

    def of(self, operation: str, when: When) -> list[Rule]:
        """The rules of an operation, in the order in which they were given."""
        return [rule for name, own, rule in self.rules if (name, own) == (operation, when)]

    def apply(self, request: Request, store: RowStore, now: datetime, answer: Callable[[], Reply]) -> Reply:
        """The reply of an operation with its rules around it. The rows that its path names exist."""
        name = request.plan.operation.operation_id
        if not self.has(name):
            return answer()
        body = None if request.body is NOTHING else deepcopy(request.body)
        call = ApiCall(name, dict(request.path), deepcopy(dict(request.query)), body, store, now)
        for rule in self.of(name, "before"):
            rule(call)
        instead = self.of(name, "instead")
        reply = answer() if not instead else Reply(status_of(request.plan.success), instead[-1](call))
        for rule in self.of(name, "after"):
            call.reply = None if reply.body is NOTHING else deepcopy(reply.body)
            changed = rule(call)
            if changed is not None:
                reply = Reply(reply.status, changed)
        return reply
