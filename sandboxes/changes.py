"""Changes between two states of a sandbox.

A state is plain JSON: table -> key -> column -> value. A backend without tables names its parts so all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from mcp_bridge.errors import SourceError, kind_of

State = dict[str, dict[str, dict[str, Any]]]
"""Table -> key -> column -> value."""


class Change(TypedDict):
    """One value that changed. A new row has `before` None in every column, a deleted one `after` None. Of a row that
    has no value but its key, the column is "", and what is there of it `{}`.

    Example: `{"table": "orders", "key": "4417", "column": "status", "before": "processing", "after": "cancelled"}`
    """

    table: str
    key: str
    column: str
    before: Any
    after: Any


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The changes from `before` to `after`, sorted by table, key and column.

    Values of different types are different (`1` is not `True`, nor `1.0`) at any depth, so that a state cannot be right
    by accident.
    Raises `SourceError` for a table of another form: by what its rows are the same before and after is not known.
    """
    changes: list[Change] = []
    for table in sorted({*before, *after}):
        old_rows, new_rows = _rows(table, before.get(table, {})), _rows(table, after.get(table, {}))
        for key in sorted({*old_rows, *new_rows}):
            old, new = old_rows.get(key), new_rows.get(key)
            found = _in_row(table, key, old or {}, new or {})
            if not found and (old is None) != (new is None):
                found = [{"table": table, "key": key, "column": "", "before": _there(old), "after": _there(new)}]
            changes += found
    return changes


_KEYS = ("id", "key", "name")


def _rows(table: str, rows: Any) -> Mapping[str, Any]:
    if isinstance(rows, Mapping) and all(row is None or isinstance(row, Mapping) for row in rows.values()):
        return rows
    fix = "write for example {table: {row_key: {column: value}}}"
    if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
        key = next((name for name in _KEYS if all(name in row for row in rows)), "id")
        fix = f"write for example {{str(row[{key!r}]): row for row in {table}}} in place of the list"
    kind = "an object whose values are not objects" if isinstance(rows, Mapping) else kind_of(rows)
    raise SourceError(
        f"the state has {kind} at {table!r}, whose changes cannot be told; give it as table -> key -> column -> value "
        f"where the state is made: {fix}"
    )


def _there(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else {}


def _in_row(table: str, key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    changes: list[Change] = []
    for column in sorted({*old, *new}):
        was, now = old.get(column), new.get(column)
        if not _same(was, now):
            changes.append({"table": table, "key": key, "column": column, "before": was, "after": now})
    return changes


def _same(was: Any, now: Any) -> bool:
    if was != now or type(was) is not type(now):
        return False
    if isinstance(was, dict):
        return all(_same(value, now[key]) for key, value in was.items())
    return not isinstance(was, list) or all(map(_same, was, now))
