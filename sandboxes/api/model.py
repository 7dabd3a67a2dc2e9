"""Records of what is inferred from a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mcp_bridge.openapi.document import Operation

Role = Literal[
    "list",
    "read",
    "create",
    "replace",
    "update",
    "delete",
    "clear",
    "add",
    "remove",
    "check",
    "move",
    "event",
    "refused",
    "answer",
]
"""What an operation does.

| role | means |
| --- | --- |
| `list`, `read`, `create`, `replace`, `update`, `delete` | of rows of a table |
| `clear` | deletes all rows that a path holds |
| `add`, `remove`, `check` | an existing row is put into a collection, taken out of it, looked for in it |
| `move` | an action that sets a field, such as `POST /orders/{id}/cancel` sets `status` |
| `event` | what it changes cannot be known: it is recorded, and answered by its schema |
| `refused` | it would change rows that can be read, and how cannot be known: it is refused with 422 or 400 |
| `answer` | reads what no table holds: answered by its schema, always the same in one world |
"""

STATEFUL: frozenset[str] = frozenset(get_args(Role)) - {"event", "refused", "answer"}
"""The roles that work on rows."""

IDENTIFIERS = ("id", "uuid", "guid", "gid", "sid")
"""What a property that identifies a row is usually called."""

KEY_TAILS = frozenset((*IDENTIFIERS, "number", "slug", "key", "code", "name"))
"""Last words of what a row is named by: `order_number`."""

STATES = frozenset(("status", "state", "phase", "stage"))
"""What a property is called that tells how far a row has come."""

HIDDEN = "@"
"""Columns that begin so are not in any answer."""

WITHIN = "@in"
"""The column with the key of the row that a row stands under."""

VALUE = "value"
"""What is sent to the path of one field."""

LINK = "@link"
"""The key of a link in a row: `{"@link": [table, key]}` refers to another row."""


def is_link(value: Any) -> bool:
    """Whether a value refers to another row. No caller can send one: see `holds_link`."""
    if not isinstance(value, dict) or value.keys() != {LINK}:
        return False
    target = value[LINK]
    return isinstance(target, list) and len(target) == 2 and all(isinstance(one, str) for one in target)


def holds_link(value: Any) -> bool:
    """Whether a value is a link, or holds one at any depth."""
    left = [value]  # not by recursion: a policy may nest deeper than that goes
    while left:
        one = left.pop()
        if is_link(one):
            return True
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return False


@dataclass(frozen=True)
class Link:
    """A property that names, or shows, rows of `table`. `shown`: as objects, else by their key."""

    table: str
    many: bool
    shown: bool
    required: bool
    nullable: bool


@dataclass(frozen=True)
class Part:
    """A path parameter that is part of a row's key. `column`: where the row has it. `table`: what it is a key of.

    `shown`: the object and its property that show a hidden column, such as `name` in `metadata`.
    """

    parameter: str
    column: str
    kind: Literal["integer", "string"]
    table: str | None = None
    schema: Any = True
    shown: tuple[str, str] | None = None


@dataclass
class Table:
    """Rows of one kind.

    `schema`: of a row as it is read. `parent`: the table whose rows it stands under. `parts`: what its key is made of,
    after the parent's. `members`: the table whose rows it only collects. `owners`: tables whose rows it is listed
    under without a property that says so. `single`: at most one row under each parent. `summary`: the definition that
    its list shows rows as, where that is another one. `values`: of a text, where only a list's filter names them, the
    filter's default first.
    """

    name: str
    path: str
    schema: Any
    singular: str
    parent: str | None = None
    parts: tuple[Part, ...] = ()
    links: dict[str, Link] = field(default_factory=dict)
    owners: tuple[str, ...] = ()
    members: str | None = None
    single: bool = False
    guessed_key: bool = False
    summary: str | None = None
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def key(self) -> Part:
        """The last part of the key."""
        return self.parts[-1]


@dataclass(frozen=True)
class Item:
    """A path that names one row. `lookups`: parameter -> column. `direct`: the parameters are the row's whole key."""

    path: str
    table: str
    context: Item | None
    lookups: tuple[tuple[str, str], ...]
    direct: bool


@dataclass(frozen=True)
class Filter:
    """A query parameter that chooses rows. `test`: how the column's value compares with the parameter's.

    `key`: of an object in the query, such as `gte` of `created[gte]`.
    """

    parameter: str
    column: str
    test: Literal["is", "at_least", "at_most", "above", "below", "has"]
    key: str | None = None


@dataclass(frozen=True)
class Query:
    """The query parameters of a list by what they do; `None` for what none does. `unknown`: those that do nothing."""

    limit: str | None = None
    page: str | None = None
    offset: str | None = None
    cursor: str | None = None
    before: str | None = None
    search: str | None = None
    sort: str | None = None
    direction: str | None = None
    filters: tuple[Filter, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Envelope:
    """Where in an answer's body the row or rows are: the properties that lead there. `schema`: of the whole body."""

    schema: Any
    path: tuple[str, ...]
    is_list: bool
    item: Any


@dataclass
class Plan:
    """How one operation is answered.

    `context`: the row that must exist before anything else. `item`: the row that the operation is about.
    `relation`: how a list's rows hang on the context: `within`, the name of a link, a hidden column, or nothing.
    `pick`: `first` or `last` where the path names one row without a parameter. `moves`: columns an action sets.
    `field`: the column that the path ends in, of what sends a `value` alone.
    `makes`: an update of a row that is not there creates it. `body_path`: the properties of what is sent that lead to
    the row, or where `many` to a list of rows, which may be given by their keys. `because`: why it is no more than an
    `event` or an `answer`, or `refused`.
    """

    operation: Operation
    role: Role
    table: str | None = None
    context: Item | None = None
    item: Item | None = None
    relation: str | None = None
    pick: Literal["first", "last"] | None = None
    success: str = "200"
    envelope: Envelope | None = None
    query: Query = Query()
    moves: Mapping[str, Any] = field(default_factory=dict)
    field: str | None = None
    makes: bool = False
    body_path: tuple[str, ...] = ()
    many: bool = False
    because: str = ""


@dataclass
class Backend:
    """Everything inferred: tables by name in an order in which links lead back, and plans by operation id."""

    tables: dict[str, Table]
    plans: dict[str, Plan]
