"""Sandboxes over SQLite in memory. A fork is a copy of the database's pages, which takes well under a millisecond.

SQL is always a constant text with parameters; nothing is ever joined into it.
"""

from __future__ import annotations

import copy
import random
import sqlite3
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any, ClassVar, Self

from mcp_bridge.records import Tool

from .changes import State
from .sandbox import Sandbox, SetupError

_CLOCK = "CREATE TABLE clock (id TEXT PRIMARY KEY, now TEXT NOT NULL) WITHOUT ROWID"
_READ_CLOCK = "SELECT id AS key, * FROM clock"
_SQLITE_HEADER = b"SQLite format 3\x00"
_IMAGES_KEPT = 1024  # pristine databases of about 20 kB each


@dataclass(frozen=True)
class SqlTool:
    """A tool and the function that answers it: `run(database, **arguments)` returns JSON or raises `Refused`."""

    tool: Tool
    run: Callable[..., Any]


class SqlSandbox(Sandbox):
    """A sandbox whose state is a SQLite database.

    A subclass gives `schema` (the tables' SQL), `reads` (for each table a SELECT whose first column is named `key`),
    `sql_tools`, and `populate`.
    """

    schema: ClassVar[str]
    reads: ClassVar[Mapping[str, str]]
    sql_tools: ClassVar[tuple[SqlTool, ...]]

    def __init__(self, seed: int = 0, scenario: str = "default") -> None:
        self._tools = tuple(entry.tool for entry in self.sql_tools)
        self._handlers = {entry.tool.name: entry.run for entry in self.sql_tools}
        super().__init__()
        self._own(_connect())
        self.reset(seed, scenario)

    def _own(self, database: sqlite3.Connection) -> None:
        self.database = database
        weakref.finalize(self, database.close)  # a sandbox that is only let go of leaves nothing open

    @abstractmethod
    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        """Fill the empty tables. All chance comes from `chance`. Returns the time at which the world begins."""

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    @property
    def now(self) -> datetime:
        return read_clock(self.database)

    def _reset(self, seed: int, scenario: str) -> None:
        key = (type(self), seed, scenario)
        image = _images.get(key)
        if image is None:
            image = self._build(seed, scenario)
            _images.put(key, image)
        self.database.deserialize(image)

    def _build(self, seed: int, scenario: str) -> bytes:
        database = _connect()
        try:
            # Small pages keep the image, which every fork copies, small.
            database.execute("PRAGMA page_size = 1024")
            database.executescript(self.schema)
            database.execute(_CLOCK)
            start = self.populate(database, random.Random(f"{self.name}/{scenario}/{seed}"), scenario)
            database.execute("INSERT INTO clock VALUES ('world', ?)", (start.isoformat(),))
            database.commit()
            self._check_reads(database)
            return database.serialize()
        finally:
            database.close()

    def _check_reads(self, database: sqlite3.Connection) -> None:
        names = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := sorted(names - {*self.reads, "clock"}):
            raise SetupError(f"{self.name}: `reads` has no SELECT for {', '.join(missing)}; state() would miss it")

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin._own(_connect())
        twin.database.deserialize(self.database.serialize())
        return twin

    def snapshot(self) -> bytes:
        return self.database.serialize()

    def restore(self, snapshot: bytes) -> None:
        trial = _connect()
        try:
            if not snapshot.startswith(_SQLITE_HEADER):
                raise sqlite3.DatabaseError("it is no SQLite database")
            trial.deserialize(snapshot)
            if (fault := trial.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(fault)
            for select in (_READ_CLOCK, *self.reads.values()):
                trial.execute(select)
        except sqlite3.Error as error:
            raise SetupError(f"this is no snapshot of {self.name} ({error}); give what snapshot() returned") from error
        finally:
            trial.close()
        self.database.deserialize(snapshot)

    def state(self) -> State:
        state: State = {}
        for table, select in {"clock": _READ_CLOCK, **self.reads}.items():
            cursor = self.database.execute(select)
            columns = [column[0] for column in cursor.description][1:]
            state[table] = {str(row[0]): dict(zip(columns, row[1:], strict=True)) for row in cursor}
        return state

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        with self.database:  # commits, or rolls back when the tool raises
            return self._handlers[name](self.database, **arguments)

    def close(self) -> None:
        self.database.close()


def read_clock(database: sqlite3.Connection) -> datetime:
    """The simulated time of the world that `database` holds."""
    row = database.execute("SELECT now FROM clock WHERE id = 'world'").fetchone()
    return datetime.fromisoformat(row[0])


def _connect() -> sqlite3.Connection:
    # A world may be opened in one thread and used in another; SQLite is built to serialize access.
    return sqlite3.connect(":memory:", check_same_thread=False)


class _Images:
    """Pristine databases by kind, seed and scenario; the least recently used is dropped first."""

    def __init__(self) -> None:
        self._images: OrderedDict[tuple[type, int, str], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[type, int, str]) -> bytes | None:
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
            return self._images.get(key)

    def put(self, key: tuple[type, int, str], image: bytes) -> None:
        with self._lock:
            self._images[key] = image
            if len(self._images) > _IMAGES_KEPT:
                self._images.popitem(last=False)


_images = _Images()
