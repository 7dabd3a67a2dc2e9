"""What is in a world's state: rows and their columns, wherever they stand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.records import ToolResult

from .naming import noun_of

Scalar = str | int | float
_LONGEST = 80
"""Characters of a value that a request may name."""


@dataclass(frozen=True)
class Cell:
    """One value of the state. `is_key`: it names its row."""

    table: str
    key: str
    column: str
    value: Scalar
    is_key: bool = False

    @property
    def noun(self) -> str:
        return noun_of(self.table)


@dataclass
class Facts:
    """The rows of a state. Parts whose names begin with `@` are a sandbox's own and are left out."""

    rows: dict[tuple[str, str], dict[str, Scalar]] = field(default_factory=dict)
    columns: dict[tuple[str, str], list[Cell]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Facts:
        """Of the JSON that a world tells. A mapping of mappings is a table; of plain values under `value`, one with a
        single column; mappings inside rows are tables of their own."""
        found = cls()
        for name, node in state.items():
            if isinstance(node, Mapping):
                found._table(str(name), node)
        return found

    def _table(self, name: str, node: Mapping[Any, Any]) -> None:
        if name.startswith("@"):
            return
        for key, row in node.items():
            if not isinstance(row, Mapping):
                continue
            inner = name if key == "value" else str(key)
            plain = {str(column): value for column, value in row.items() if _is_scalar(value)}
            if key == "value" and plain and len(plain) == len(row):
                for column, value in plain.items():
                    self._row(name, column, {"value": value})
            elif plain:
                self._row(name, str(key), {c: v for c, v in plain.items() if not c.startswith("@")})
            if not plain:
                self._table(inner, row)
            else:
                for column, value in row.items():
                    if isinstance(value, Mapping) and not str(column).startswith("@"):
                        self._table(str(column), {key: value})

    def _row(self, table: str, key: str, columns: dict[str, Any]) -> None:
        named = next((column for column, value in columns.items() if str(value) == key), None)
        cells = {**columns} if named is not None else {"id": key, **columns}
        self.rows[table, key] = cells
        for column, value in cells.items():
            cell = Cell(table, key, column, value, is_key=column == (named or "id"))
            self.columns.setdefault((table, column), []).append(cell)

    def cells(self) -> Iterator[Cell]:
        for cells in self.columns.values():
            yield from cells

    def named_by(self, value: Scalar) -> list[Cell]:
        """The keys with this value."""
        return [cell for cell in self.cells() if cell.is_key and str(cell.value) == str(value)]

    def is_unique(self, cell: Cell) -> bool:
        """Whether no other row of its table has the same value there."""
        same = [other for other in self.columns[cell.table, cell.column] if _alike(other.value, cell.value)]
        return len(same) == 1


def content_of(result: ToolResult) -> Any:
    """What a result holds. MCP has no structured content that is a list: such a one comes as its text."""
    if result.structured is not None:
        return result.structured
    if result.text[:1] in ("[", "{"):
        try:
            return json.loads(result.text)
        except ValueError:
            return result.text
    return result.text


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Scalar]]:
    """The plain values of a result, each with its path. Yes, no and nothing are no values that one asks for."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(inner, (*path, str(name)))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    elif _is_scalar(value):
        yield path, value


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    """What stands at a path of `leaves`; None where there is nothing."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip()) and len(value) <= _LONGEST and "\n" not in value
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(one: Scalar, other: Scalar) -> bool:
    return str(one).casefold() == str(other).casefold()
