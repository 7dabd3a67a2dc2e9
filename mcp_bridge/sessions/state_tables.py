"""The state of a world as tables, out of what a server's own tool answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..records import ToolResult

_KEYS = ("id", "key", "name")
"""The columns that name a row, in this order."""
_RESULT = "result"
"""The table of an answer that is not an object; servers wrap such answers under this name too."""

Tables = dict[str, dict[str, dict[str, Any]]]
"""Table -> key -> column -> value."""


def state_tables(result: ToolResult) -> Tables:
    """The answer as tables, so that two of them can be compared row by row.

    A list of objects is a table with its rows keyed by `id`, `key` or `name`, whichever all have and no two share;
    otherwise by their whole content. Other lists are tables of their values. A value is the table of one row "".

    Example: `{"entities": [{"name": "Ann", "age": 7}]}` is `{"entities": {"Ann": {"name": "Ann", "age": 7}}}`
    """
    content = _content(result)
    parts = content if isinstance(content, Mapping) else {_RESULT: content}
    return {str(name): _table(value) for name, value in parts.items()}


def _content(result: ToolResult) -> Any:
    if result.structured is not None:
        return result.structured
    try:
        return json.loads(result.text)
    except ValueError:
        return result.text


def _table(value: Any) -> dict[str, dict[str, Any]]:
    if isinstance(value, Mapping):
        if all(isinstance(row, Mapping) for row in value.values()):
            return {str(key): dict(row) for key, row in value.items()}
        return {"": dict(value)}
    if not isinstance(value, list):
        return {"": {"value": value}}
    if not all(isinstance(row, Mapping) for row in value):
        return dict(zip(_distinct(map(_text, value)), ({"value": one} for one in value), strict=True))
    column = next((name for name in _KEYS if _names_all(name, value)), None)
    keys = [_text(row if column is None else row[column]) for row in value]
    return dict(zip(_distinct(keys), (dict(row) for row in value), strict=True))


def _names_all(column: str, rows: list[Mapping[str, Any]]) -> bool:
    values = [row.get(column) for row in rows]
    return all(isinstance(one, str | int) for one in values) and len(set(map(_text, values))) == len(values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _distinct(keys: Iterable[str]) -> list[str]:
    """The keys, each that was there before with its number."""
    counts: dict[str, int] = {}
    found = []
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
        found.append(key if counts[key] == 1 else f"{key} #{counts[key]}")
    return found
