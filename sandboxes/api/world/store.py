"""The rows of one world: those it began with, shared by all worlds of a seed, and what has changed since."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol, Self

Row = dict[str, Any]
"""Column -> value. Rows are never written into: a change puts a new row in the place of the old one."""


def copied(value: Any) -> Any:
    """A copy of a JSON value; `copy.deepcopy` looks for more than JSON can hold, and takes ten times as long."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


class Origin(Protocol):
    """Where a world's rows come from."""

    @property
    def tables(self) -> tuple[str, ...]: ...

    def rows(self, table: str) -> dict[str, Row]:
        """The rows that a table begins with, by key. Must not be written to."""
        ...

    def serial(self, table: str) -> int:
        """The first number that no row of the table has had as its key."""
        ...


class Store:
    """Tables of rows. A fork costs what has changed since the beginning, whatever the size of the world."""

    def __init__(self, origin: Origin, now: datetime) -> None:
        self.origin = origin
        self.now = now
        self._changes: dict[str, dict[str, Row | None]] = {}
        self._serials: dict[str, int] = {}
        self._journal: list[tuple[str, str, bool, Row | None]] | None = None
        self._serials_before: dict[str, int] = {}

    def fork(self) -> Self:
        """A store that shares only what is never written to."""
        twin = type(self)(self.origin, self.now)
        twin._changes = {table: dict(changes) for table, changes in self._changes.items()}
        twin._serials = dict(self._serials)
        return twin

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, table: str, key: str) -> Row | None:
        """The row, or `None`."""
        changes = self._changes.get(table)
        if changes is not None and key in changes:
            return changes[key]
        return self.origin.rows(table).get(key)

    def items(self, table: str) -> Iterator[tuple[str, Row]]:
        """Keys and rows, the oldest first."""
        base, changes = self.origin.rows(table), self._changes.get(table, {})
        for key, row in base.items():
            found = changes.get(key, row) if key in changes else row
            if found is not None:
                yield key, found
        for key, new in changes.items():
            if key not in base and new is not None:
                yield key, new

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, table: str, key: str, row: Row) -> None:
        """Put a row in its place, new or not."""
        self._set(table, key, row)

    def drop(self, table: str, key: str) -> None:
        """Take a row away."""
        self._set(table, key, None)

    def _set(self, table: str, key: str, row: Row | None) -> None:
        changes = self._changes.setdefault(table, {})
        if self._journal is not None:
            self._journal.append((table, key, key in changes, changes.get(key)))
        changes[key] = row

    def next_serial(self, table: str) -> int:
        """A number that no row of the table has had, deleted ones included."""
        number = self._serials.get(table)
        if number is None:
            number = self.origin.serial(table)
        self._serials[table] = number + 1
        return number

    # -- all or nothing -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Remember from here on what `undo` takes back."""
        self._journal, self._serials_before = [], dict(self._serials)

    def undo(self) -> None:
        """Take back everything since `begin`."""
        for table, key, was_changed, before in reversed(self._journal or []):
            changes = self._changes[table]
            # A row that is put back must stand where it stood: its place is the order in which it came.
            if was_changed:
                changes[key] = before
            else:
                changes.pop(key, None)
        self._journal, self._serials = None, self._serials_before
        self._changes = {table: changes for table, changes in self._changes.items() if changes}

    def commit(self) -> None:
        """Keep everything since `begin`."""
        self._journal = None

    # -- saving -------------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What has changed, as JSON."""
        return {
            "now": self.now.isoformat(),
            "changes": self._changes,
            "serials": self._serials,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Take over what `saved` gave, of a world with the same origin."""
        self.now = datetime.fromisoformat(saved["now"])
        self._changes = saved["changes"]
        self._serials = saved["serials"]
