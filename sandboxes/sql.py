"""Sandboxes whose state is a SQLite database in memory, and whose tools are functions of a connection.

A small database is copied by a fork, which takes some tens of microseconds. From 256 kB on, forks share its pages and
hold those that they change (`page_vfs`).

SQL is always a constant text with parameters; nothing is ever joined into it.
"""

from __future__ import annotations

import base64
import copy
import inspect
import math
import random
import sqlite3
import weakref
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, Self

from mcp_bridge.records import Tool

from .changes import State
from .page_vfs import HEADER, Pages, page_size, registered_vfs
from .sandbox import InvalidArguments, Sandbox, SetupError

MOST_IMAGES = 1024
MOST_BYTES = 256 * 2**20

Key = tuple[type, int, str, tuple[Any, ...]]
"""The kind of sandbox, the seed, the scenario, and what the sandbox itself may make its world from."""


class Images:
    """The images used last, up to a number and a size. The newest is kept whatever its size."""

    def __init__(self, *, most_images: int = MOST_IMAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most_images, self._most_bytes = most_images, most_bytes
        self._images: OrderedDict[Key, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Key) -> bytes | None:
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
            return self._images.get(key)

    def put(self, key: Key, image: bytes) -> None:
        with self._lock:
            self._bytes += len(image) - len(self._images.pop(key, b""))
            self._images[key] = image
            while len(self._images) > 1 and (len(self._images) > self._most_images or self._bytes > self._most_bytes):
                self._bytes -= len(self._images.popitem(last=False)[1])


SHARED_FROM_BYTES = 256 * 2**10
"""Forks of databases of at least this size share pages. A smaller one is copied faster than shared, and read faster."""

_PAGE_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_CLOCK = "CREATE TABLE clock (id TEXT PRIMARY KEY, now TEXT NOT NULL) WITHOUT ROWID"
_READ_CLOCK = "SELECT id AS key, * FROM clock"
_images = Images()
_OF_ALL = frozenset({"_checker", "_closing", "_first", "_handlers", "_pages", "_taken", "_tools", "database"})
"""Attributes that every sandbox over SQL has; nothing is made from them."""
_MOST_INTEGER = 2**63


@dataclass(frozen=True)
class SqlTool:
    """A tool and the function that answers it: `run(database, **arguments)` returns JSON or raises `Refused`. Lists and
    dicts in `arguments` are copies."""

    tool: Tool
    run: Callable[..., Any]


class SqlSandbox(Sandbox):
    """A sandbox whose state is a SQLite database.

    A subclass gives `schema` (the tables' SQL), `reads` (for each table a SELECT whose first column is named `key`),
    `sql_tools`, and `populate`. `page_bytes` is what a fork copies when it changes a row: 1024 is best for worlds of up
    to a few megabytes, 4096 for larger ones.
    """

    schema: ClassVar[str]
    reads: ClassVar[Mapping[str, str]]
    sql_tools: ClassVar[tuple[SqlTool, ...]]
    page_bytes: ClassVar[int] = 1024

    database: sqlite3.Connection
    """The world's database; another one after a reset, a restore, a fork, and a call that failed. What a connection
    has of its own goes with it: a tool that needs a function makes it in each call (`database.create_function`)."""

    def __init__(self, seed: int = 0, scenario: str = "default") -> None:
        self._tools = tuple(entry.tool for entry in self.sql_tools)
        self._handlers = {entry.tool.name: entry.run for entry in self.sql_tools}
        self._taken = {entry.tool.name: _arguments_of(entry.run) for entry in self.sql_tools}
        super().__init__()
        self._own(_connect())
        self._first = (seed, scenario)
        self.reset()

    @abstractmethod
    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        """Fill the empty tables. All chance comes from `chance`. Returns the time at which the world begins.

        Called once for each seed and scenario of the class; where its objects hold attributes of their own, such as a
        size, once for each of their values. With one that is not a number, a text or a tuple of these, at every reset.
        """

    def time_passes(self, database: sqlite3.Connection, before: datetime, after: datetime) -> None:
        """What time brings, in one transaction with the clock. Nothing here: tools may read the clock themselves."""

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    @property
    def now(self) -> datetime:
        return read_clock(self.database)

    def fork(self) -> Self:
        self._require_rest()
        twin = copy.copy(self)
        if self._pages is None:
            image = self.database.serialize()
            if len(image) < SHARED_FROM_BYTES or registered_vfs() is None:
                twin._own(_connect())
                twin.database.deserialize(image)
                return twin
            self._load(image)  # it has grown: from now on it shares pages itself
        assert self._pages is not None
        twin._own_pages(self._pages.copy())
        return twin

    def snapshot(self) -> bytes:
        self._require_rest()
        return self.database.serialize() if self._pages is None else self._pages.image()

    def _restore(self, snapshot: bytes) -> None:
        trial = _connect()
        try:
            if not snapshot.startswith(HEADER):
                raise sqlite3.DatabaseError("it is not a SQLite database")
            if len(snapshot) % (page_size(snapshot) or 1):
                raise sqlite3.DatabaseError("it ends within a page")
            trial.deserialize(snapshot)
            if (fault := trial.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(fault)
            for select in (_READ_CLOCK, *self.reads.values()):
                trial.execute(select)
        except sqlite3.Error as error:
            told = f"this is not a snapshot of {self.name} ({error}); give what snapshot() returned"
            raise SetupError(told) from error
        finally:
            trial.close()
        self._load(snapshot)

    def state(self) -> State:
        self._require_reads(self.database)
        state: State = {}
        for table, select in {"clock": _READ_CLOCK, **self.reads}.items():
            cursor = self.database.execute(select)
            columns = [column[0] for column in cursor.description][1:]
            rows = [(str(row[0]), dict(zip(columns, map(_shown, row[1:]), strict=True))) for row in cursor]
            state[table] = dict(rows)
            if len(state[table]) < len(rows):
                twice, _ = Counter(key for key, _ in rows).most_common(1)[0]
                raise SetupError(
                    f"{self.name}: `reads` gives several rows of {table} the key {twice!r}; give each its own, such "
                    "as id AS key, or two columns joined: a || '/' || b AS key"
                )
        return state

    def close(self) -> None:
        self.database.close()

    @property
    def held_bytes(self) -> int:
        """Bytes of database pages that no other fork need hold: what this one has changed, or all of a small one."""
        if self._pages is not None:
            return self._pages.changed_bytes
        pages, size = (self.database.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
        return int(pages * size)

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        taken = self._taken[name]
        if taken is not None and (more := sorted({*arguments} - taken)):
            # The schema lets them pass unless it says "additionalProperties": false.
            raise InvalidArguments(
                f"Invalid arguments for {name}; nothing was called.\n- {', '.join(more)}: there is no such argument; "
                f"it takes {', '.join(sorted(taken)) or 'none'}"
            )
        # What a function does to them, the caller does not see.
        own = {
            key: copy.deepcopy(value) if isinstance(value, list | dict) else value for key, value in arguments.items()
        }
        try:
            return self._handlers[name](self.database, **own)
        except (OverflowError, UnicodeEncodeError) as error:
            unfit = next((key for key, value in arguments.items() if not _fits(value)), None)
            if unfit is None:
                raise
            raise InvalidArguments(
                f"Invalid arguments for {name}; nothing was called.\n- {unfit}: holds a whole number beyond 64 bits, "
                "or half of a surrogate pair, which is not valid text"
            ) from error

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        # A tool may commit by itself, and so do `executescript`, a WITH before an UPDATE, and CREATE and DROP, which
        # begin no transaction: what a rollback does not undo, the pages of before do.
        before = self.database.serialize() if self._pages is None else self._pages.copy()
        try:
            with self.database:
                yield
        except BaseException:
            self._load(before)
            raise
        finally:
            # What a tool sets of the connection is its own.
            self.database.row_factory, self.database.text_factory = None, str
            self._keep_foreign_keys()

    def _advance(self, by: timedelta) -> None:
        before = self.now
        with self._all_or_nothing():
            self.database.execute("UPDATE clock SET now = ? WHERE id = 'world'", ((before + by).isoformat(),))
            self.time_passes(self.database, before, before + by)

    def _reset(self, seed: int, scenario: str) -> None:
        own = _plain({name: value for name, value in vars(self).items() if name not in _OF_ALL})
        key = None if own is None else (type(self), seed, scenario, own)
        image = None if key is None else _images.get(key)
        if image is None:
            image = self._build(seed, scenario)
            if key is not None:
                _images.put(key, image)
        self._load(image)

    def _build(self, seed: int, scenario: str) -> bytes:
        if self.page_bytes not in _PAGE_SIZES:
            sizes = ", ".join(map(str, _PAGE_SIZES))
            raise SetupError(f"{self.name}: page_bytes is {self.page_bytes!r}; SQLite knows {sizes}")
        database = _connect()
        try:
            database.execute(f"PRAGMA page_size = {int(self.page_bytes)}")
            database.executescript(self.schema)
            database.execute(_CLOCK)
            start = self.populate(database, random.Random(f"{self.name}/{scenario}/{seed}"), scenario)
            database.execute("INSERT INTO clock VALUES ('world', ?)", (start.isoformat(),))
            database.commit()
            self._check_reads(database)
            self._refuse_what_is_not_copied(database)
            return database.serialize()
        finally:
            database.close()

    def _require_reads(self, database: sqlite3.Connection) -> None:
        """Of every table, also one that a tool has made since."""
        # Not those of type `shadow`, in which SQLite keeps what a virtual table holds.
        own = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'virtual')"
        tables = {name for (name,) in database.execute(own) if not name.startswith("sqlite_")}
        if missing := sorted(tables - {*self.reads, "clock"}):
            raise SetupError(f"{self.name}: `reads` has no SELECT for {', '.join(missing)}; state() would miss it")

    def _check_reads(self, database: sqlite3.Connection) -> None:
        self._require_reads(database)
        for table, select in self.reads.items():
            first, *columns = (column[0] for column in database.execute(select).description)
            if first != "key":
                told = f"{self.name}: the first column of `reads` for {table} is {first!r}; it must be named key"
                raise SetupError(f"{told}, such as SELECT id AS key, * FROM {table}")
            if twice := [name for name, count in Counter(columns).items() if count > 1]:
                told = f"{self.name}: `reads` for {table} gives two columns the name {twice[0]!r}"
                raise SetupError(f"{told}; name one otherwise, such as b.{twice[0]} AS b_{twice[0]}")

    def _load(self, image: bytes | Pages) -> None:
        """Begin from a whole database."""
        former = self._closing
        if isinstance(image, Pages):
            self._own_pages(image)
        elif len(image) >= SHARED_FROM_BYTES and registered_vfs() is not None:
            self._own_pages(Pages(image))
        else:
            self._own(_connect())
            self.database.deserialize(image)
        former()

    def _own_pages(self, pages: Pages) -> None:
        vfs = registered_vfs()
        assert vfs is not None
        self._own(vfs.connect(pages), pages)

    def _own(self, database: sqlite3.Connection, pages: Pages | None = None) -> None:
        self.database, self._pages = database, pages
        self._keep_foreign_keys()
        # A sandbox that is only let go of leaves nothing open.
        self._closing = weakref.finalize(self, database.close)

    def _keep_foreign_keys(self) -> None:
        if _keeps_foreign_keys(self.schema):
            self.database.execute("PRAGMA foreign_keys = ON")  # is a connection's, not the database's

    def _require_rest(self) -> None:
        if self.database.in_transaction:
            raise SetupError(f"{self.name} is in the middle of a transaction; commit it or roll it back first")
        self._refuse_what_is_not_copied(self.database)

    def _refuse_what_is_not_copied(self, database: sqlite3.Connection) -> None:
        """They are a connection's, and a fork has another one: it would answer otherwise, and nobody would know why."""
        if made := database.execute("SELECT type, name FROM temp.sqlite_master LIMIT 1").fetchone():
            kind, name = made
            raise SetupError(
                f"{self.name} has a temporary {kind}, {name!r}, which no fork and no snapshot would have; make it an "
                "ordinary one in `schema`, or drop it before the tool returns"
            )
        attached = "SELECT name FROM pragma_database_list WHERE name NOT IN ('main', 'temp')"
        if others := [name for (name,) in database.execute(attached)]:
            raise SetupError(
                f"{self.name} has a database attached, {others[0]!r}, which no fork and no snapshot would have, and no "
                "state() shows; make its tables in `schema`, or detach it before the tool returns"
            )


def read_clock(database: sqlite3.Connection) -> datetime:
    """The simulated time of the world that `database` holds."""
    row = database.execute("SELECT now FROM clock WHERE id = 'world'").fetchone()
    return datetime.fromisoformat(row[0])


@lru_cache
def _keeps_foreign_keys(schema: str) -> bool:
    """Whether a schema says `PRAGMA foreign_keys = ON`."""
    with closing(_connect()) as database:
        database.executescript(schema)
        return bool(database.execute("PRAGMA foreign_keys").fetchone()[0])


def _connect() -> sqlite3.Connection:
    # A world may be opened in one thread and used in another; SQLite is built to serialize access.
    return sqlite3.connect(":memory:", check_same_thread=False)


def _arguments_of(run: Callable[..., Any]) -> set[str] | None:
    """The names of what a tool's function takes beside the database; None where it takes any."""
    others = [*inspect.signature(run).parameters.values()][1:]
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in others):
        return None
    return {one.name for one in others}


def _shown(value: Any) -> Any:
    """A value of SQLite as JSON: bytes in base64, infinity in words."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _fits(value: Any) -> bool:
    """Whether SQLite can hold what an argument is made of."""
    if isinstance(value, dict):
        return all(_fits(key) and _fits(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_fits, value))
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    return not isinstance(value, int) or -_MOST_INTEGER <= value < _MOST_INTEGER


def _plain(attributes: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The attributes as a key; None where one of them may change without being another object."""

    def part(value: Any) -> tuple[Any, ...] | None:
        if isinstance(value, tuple):
            parts = [part(one) for one in value]
            return None if None in parts else (type(value), *parts)
        # With its type: Python holds 1, 1.0 and True to be equal.
        return (type(value), value) if value is None or type(value) in {bool, int, float, str, bytes} else None

    found = [(name, part(value)) for name, value in sorted(attributes.items())]
    return None if any(one is None for _, one in found) else tuple(found)
