"""Forks of large SQLite worlds share pages: exactly the semantics of copies, at the price of what changes."""

from __future__ import annotations

import logging
import random
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_conformance import Call, SandboxConformance

from mcp_bridge.errors import ToolFailure
from mcp_bridge.records import Tool
from sandboxes import Refused, SetupError, SqlSandbox, page_vfs
from sandboxes.page_vfs import Pages, registered_vfs
from sandboxes.sql import Images, SqlTool

_AMOUNT = {"type": "object", "properties": {"id": {"type": "integer"}, "by": {"type": "integer"}}}


def _pay(database: sqlite3.Connection, id: int, by: int) -> dict[str, int]:
    database.execute("UPDATE accounts SET balance = balance + ? WHERE id = ?", (by, id))
    found = database.execute("SELECT balance FROM accounts WHERE id = ?", (id,)).fetchone()
    if found is None:
        raise Refused(f"No account {id}.")
    if found[0] < 0:
        raise Refused("Not enough.")
    return {"balance": found[0]}


class Bank(SqlSandbox):
    """Some thousand accounts, with notes that make it large."""

    name = "bank"
    schema = "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER, note TEXT);"
    reads: ClassVar = {"accounts": "SELECT id AS key, owner, balance FROM accounts"}
    sql_tools = (SqlTool(Tool(name="pay", input_schema={**_AMOUNT, "required": ["id", "by"]}), _pay),)
    accounts = 2_000

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        rows = ((n, f"o{chance.randrange(10**9)}", chance.randrange(1000), "n" * 200) for n in range(self.accounts))
        database.executemany("INSERT INTO accounts VALUES (?, ?, ?, ?)", rows)
        return datetime(2026, 1, 1)


class LargeBank(Bank):
    """50 MB."""

    name = "large bank"
    accounts = 210_000


class TestBank(SandboxConformance):
    def make(self) -> Bank:
        return Bank()

    def change(self) -> Call:
        return "pay", {"id": 7, "by": 20}

    def calls(self) -> list[Call]:
        return [("pay", {"id": 1_500, "by": 1}), ("pay", {"id": 3, "by": -100_000}), ("pay", {"id": -1, "by": 0})]


@pytest.fixture(scope="module")
def large() -> Iterator[LargeBank]:
    bank = LargeBank()
    yield bank
    bank.close()


def test_a_fork_of_fifty_megabytes_takes_less_than_a_millisecond(large: LargeBank) -> None:
    assert len(large.snapshot()) > 50e6
    best = float("inf")
    fork = large.fork()
    fork.call_now("pay", {"id": 5, "by": 1})
    for origin in [large, fork] * 20:  # the best of many: a busy machine is no fault of the fork
        started = time.perf_counter()
        other = origin.fork()
        best = min(best, time.perf_counter() - started)
        other.close()
    assert best < 0.001


def test_a_fork_holds_what_it_has_changed_and_no_more(large: LargeBank) -> None:
    tracemalloc.start()
    try:
        forks = [large.fork() for _ in range(200)]
        for number, fork in enumerate(forks):
            assert fork.held_bytes == 0
            assert not fork.call_now("pay", {"id": number * 1000, "by": 1}).is_error
            assert 0 < fork.held_bytes <= 8 * 1024
        assert tracemalloc.get_traced_memory()[1] < 200 * 16 * 1024
    finally:
        tracemalloc.stop()
    for fork in forks:
        fork.close()


@pytest.mark.parametrize("kind", ["TABLE scratch (id)", "VIEW scratch AS SELECT 1"])
def test_what_a_fork_would_silently_lack_is_refused(kind: str) -> None:
    def scratch(database: sqlite3.Connection) -> str:
        database.execute(f"CREATE TEMP {kind}")
        return "made"

    def tidy(database: sqlite3.Connection) -> str:
        database.execute(f"DROP {kind.split()[0]} scratch")
        return "dropped"

    class Few(Bank):
        accounts = 3
        sql_tools = (SqlTool(Tool(name="scratch"), scratch), SqlTool(Tool(name="tidy"), tidy))

    class Temporary(Few):
        schema = f"{Bank.schema} CREATE TEMP {kind};"

    bank = Few()
    bank.call_now("scratch", {})
    for copied in (bank.fork, bank.snapshot):
        with pytest.raises(
            SetupError, match=f"bank has a temporary {kind.split()[0].lower()}, 'scratch', which no fork"
        ):
            copied()
    bank.call_now("tidy", {})
    bank.fork().close()
    bank.close()
    with pytest.raises(SetupError, match="make it an ordinary one in `schema`"):
        Temporary()


def test_what_a_tool_makes_beside_the_tables_is_refused_where_it_would_be_missing() -> None:
    def attach(database: sqlite3.Connection) -> str:
        database.execute("ATTACH ':memory:' AS beside")
        return "attached"

    def create(database: sqlite3.Connection) -> str:
        database.execute("CREATE TABLE secrets (id INTEGER PRIMARY KEY)")
        return "made"

    class Making(Bank):
        accounts = 3
        sql_tools = (SqlTool(Tool(name="attach"), attach), SqlTool(Tool(name="create"), create))

    bank = Making()
    assert not bank.call_now("create", {}).is_error
    for one in (bank, bank.fork()):
        with pytest.raises(SetupError, match=r"`reads` has no SELECT for secrets; state\(\) would miss it"):
            one.state()
        one.close()
    bank = Making()
    assert not bank.call_now("attach", {}).is_error
    for copied in (bank.fork, bank.snapshot):
        with pytest.raises(SetupError, match="bank has a database attached, 'beside', which no fork"):
            copied()
    bank.close()


def test_a_world_that_grows_large_is_shared_from_then_on() -> None:
    class Small(Bank):
        name = "small bank"
        accounts = 10

    bank = Small()
    small = bank.fork()
    assert small.held_bytes > 0
    with bank.database:
        bank.database.executemany(
            "INSERT INTO accounts VALUES (?, 'x', 1, ?)", ((n, "n" * 999) for n in range(10, 900))
        )
    state, fork = bank.state(), bank.fork()
    assert fork.held_bytes == bank.held_bytes == 0
    assert fork.state() == bank.state() == state
    bank.reset()
    assert (len(bank.state()["accounts"]), len(fork.state()["accounts"])) == (10, 900)


def test_a_world_whose_pages_are_made_larger_is_read_written_and_forked_as_before() -> None:
    bank = Bank()
    before = bank.state()
    bank.database.execute("PRAGMA page_size = 4096")
    bank.database.execute("VACUUM")
    assert bank.database.execute("PRAGMA page_size").fetchone() == (4096,)
    assert bank.state() == before
    bank.call_now("pay", {"id": 7, "by": 20})
    fork, copy = bank.fork(), Bank()
    copy.restore(bank.snapshot())
    assert bank.state() == fork.state() == copy.state() != before
    assert fork.database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_world_in_the_middle_of_a_transaction_is_not_forked() -> None:
    bank = Bank()
    bank.database.execute("UPDATE accounts SET balance = 0")
    for copying in (bank.fork, bank.snapshot):
        with pytest.raises(SetupError, match="transaction"):
            copying()
    bank.database.rollback()
    assert bank.fork().state() == bank.state()


def _rename_all(database: sqlite3.Connection, to: str) -> dict[str, int]:
    changed = database.execute("UPDATE accounts SET owner = ?, note = ? || note", (to, to)).rowcount
    if to == "nobody":
        raise Refused("Not that name.")
    return {"changed": changed}


class LoudBank(Bank):
    """Its one tool changes more pages than a connection keeps to itself."""

    name = "loud bank"
    accounts = 20_000
    sql_tools = (
        SqlTool(
            Tool(name="rename_all", input_schema={"type": "object", "properties": {"to": {"type": "string"}}}),
            _rename_all,
        ),
    )


def test_a_change_too_large_for_the_cache_is_kept_or_undone_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = LoudBank()
    before, fork = bank.state(), bank.fork()
    held: list[int] = []
    write = Pages.write

    def noted(self: Pages, offset: int, page: bytes) -> None:
        write(self, offset, page)
        held.append(self.changed_bytes)

    monkeypatch.setattr(Pages, "write", noted)
    refused = fork.call_now("rename_all", {"to": "nobody"})
    assert refused.error_kind == "tool_error"
    assert max(held) > 2**20, "pages were written before the refusal"
    assert fork.held_bytes < 8 * 1024, "and are held no longer"
    assert fork.state() == bank.state() == before
    assert fork.call_now("rename_all", {"to": "Ann"}).structured == {"changed": 20_000}
    assert {row["owner"] for row in fork.state()["accounts"].values()} == {"Ann"}
    assert fork.database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert bank.fork().state() == bank.state() == before


@pytest.mark.parametrize("size", [0, 1000, 131072, "4096"])
def test_a_page_size_that_sqlite_does_not_know_is_refused(size: Any) -> None:
    with pytest.raises(SetupError, match="page_bytes"):
        type("Odd", (Bank,), {"page_bytes": size})()
    assert type("Wide", (Bank,), {"page_bytes": 65536})().fork().held_bytes == 0


def test_pages_that_cannot_be_read_are_a_broken_tool(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    before = bank.state()
    fork = bank.fork()

    def broken(self: Pages, offset: int, amount: int) -> bytes:
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(Pages, "read", broken)
        with pytest.raises(ToolFailure, match="disk I/O error"):
            fork.call_now("pay", {"id": 1_900, "by": 1})
        assert "injected" in caplog.text
    assert fork.state() == bank.state() == before


def test_where_sqlite_cannot_be_extended_forks_are_copies_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = Bank().state()
    page_vfs._registered.cache_clear()
    monkeypatch.setitem(sys.modules, "_sqlite3", None)
    try:
        with caplog.at_level(logging.WARNING):
            bank = Bank()
            fork = bank.fork()
        assert caplog.text.count("copy all of their pages") == 1
        assert fork.held_bytes == len(bank.snapshot()) > 256 * 1024
        fork.call_now("pay", {"id": 1, "by": 1})
        assert (bank.state(), fork.state() == expected) == (expected, False)
    finally:
        page_vfs._registered.cache_clear()


def test_a_process_that_leaves_worlds_open_ends_in_peace() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_sql_forks import Bank\n"
        "bank = Bank(); fork = bank.fork(); fork.call_now('pay', {'id': 1, 'by': 1})\n"
        "fork.database.execute('UPDATE accounts SET balance = 0')\n"
        "from sandboxes.page_vfs import Pages, registered_vfs\n"
        "bare = registered_vfs().connect(Pages(bank.snapshot())); bare.execute('DELETE FROM accounts')\n"
        "left = [bare]; left.append(left)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_threads_that_fork_at_once_in_a_new_process_all_get_a_world() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import threading\n"
        "from test_sql_forks import Bank\n"
        "start, made = threading.Barrier(16), []\n"
        "sys.setswitchinterval(1e-6)\n"
        "def play():\n"
        "    start.wait(); bank = Bank(); fork = bank.fork(); fork.call_now('pay', {'id': 1, 'by': 1})\n"
        "    made.append(fork.state() != bank.state()); fork.close(); bank.close()\n"
        "threads = [threading.Thread(target=play) for _ in range(16)]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\n"
        "assert made == [True] * 16, made\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_images_are_kept_by_number_and_by_size() -> None:
    images = Images(most_images=3, most_bytes=100)
    for seed, size in enumerate((30, 30, 30)):
        images.put((Bank, seed, "", ()), bytes(size))
    assert images.get((Bank, 0, "", ())) is not None  # used last: the next to go is 1
    images.put((Bank, 3, "", ()), bytes(20))
    assert [seed for seed in range(4) if images.get((Bank, seed, "", ()))] == [0, 2, 3]
    images.put((Bank, 4, "", ()), bytes(1000))
    assert [seed for seed in range(5) if images.get((Bank, seed, "", ()))] == [4]


# -- pages beside plain copies ----------------------------------------------------------------------------------------

_PAGE = 512
_pages_steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 12), st.integers(0, 255)),
        st.tuples(st.just("truncate"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("fork"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(_pages_steps)
def test_pages_are_what_a_copied_file_would_be(steps: list[tuple[str, int, int]]) -> None:
    header = b"SQLite format 3\x00" + _PAGE.to_bytes(2, "big")
    image = header + bytes(range(256)) * 8
    image = image[: len(image) // _PAGE * _PAGE]
    pages, file = Pages(image), bytearray(image)
    left: list[tuple[Pages, bytes]] = []
    for what, number, value in steps:
        if what == "write":
            end = (number + 1) * _PAGE
            file.extend(bytes(max(0, end - len(file))))
            file[number * _PAGE : end] = bytes([value]) * _PAGE
            pages.write(number * _PAGE, bytes([value]) * _PAGE)
        elif what == "truncate" and number * _PAGE < len(file):
            del file[number * _PAGE :]
            pages.truncate(number * _PAGE)
        elif what == "fork":
            left.append((pages, bytes(file)))
            pages = pages.copy()
    for one, expected in [*left, (pages, bytes(file))]:
        assert one.size == len(expected)
        assert one.image() == expected
        assert b"".join(one.read(place, _PAGE) for place in range(0, one.size, _PAGE)) == expected
        assert one.read(one.size, _PAGE) == b""
        assert one.read(24, 16) == expected[24:40]


_STATEMENTS = (
    "INSERT INTO t (k, v) SELECT :one + column1, hex(zeroblob(:two)) FROM (VALUES (1), (2), (3))",
    "UPDATE t SET v = v || hex(zeroblob(:two)) WHERE k % 5 = :one % 5",
    "DELETE FROM t WHERE k % 3 = :one % 3 AND length(v) > :two",
    "UPDATE OR REPLACE t SET id = :one WHERE id % 11 = :two % 11",
    "CREATE INDEX IF NOT EXISTS i ON t (v, k)",
    "DROP INDEX IF EXISTS i",
    "DELETE FROM t",
    "SELECT count(*), group_concat(v) FROM (SELECT v FROM t WHERE k > :one ORDER BY v LIMIT :two)",
)
_sql_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(range(len(_STATEMENTS))), st.integers(0, 40), st.integers(0, 900)),
        st.tuples(st.sampled_from(["commit", "rollback", "fork", "vacuum", "savepoint"]), st.just(0), st.just(0)),
    ),
    max_size=25,
)


def _play(database: sqlite3.Connection, step: tuple[Any, int, int]) -> Any:
    what, one, two = step
    try:
        if what == "commit":
            return database.commit()
        if what == "rollback":
            return database.rollback()
        if what == "vacuum":
            return database.in_transaction or database.execute("VACUUM").fetchall()
        if what == "savepoint":
            database.execute("SAVEPOINT s")
            database.execute("UPDATE t SET v = 'lost'")
            database.execute("ROLLBACK TO s")
            return database.execute("RELEASE s").fetchall()
        return database.execute(_STATEMENTS[what], {"one": one, "two": two}).fetchall()
    except sqlite3.Error as error:
        return str(error)


@settings(max_examples=60, deadline=None)
@given(_sql_steps)
def test_a_world_on_pages_behaves_as_a_copied_one(steps: list[tuple[Any, int, int]]) -> None:
    first = sqlite3.connect(":memory:")
    first.execute("PRAGMA page_size = 512")
    first.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, k INTEGER, v TEXT)")
    first.executemany("INSERT INTO t (k, v) VALUES (?, ?)", [(n, "x" * n) for n in range(60)])
    first.commit()
    image = first.serialize()
    first.close()
    pages = Pages(image)
    worlds = [(registered_vfs().connect(pages), _copied(image), pages)]
    for step in steps:
        shared, copied, pages = worlds[-1]
        if step[0] == "fork":
            shared.rollback()
            copied.rollback()
            twin = pages.copy()
            worlds.append((registered_vfs().connect(twin), _copied(copied.serialize()), twin))
        else:
            assert _play(shared, step) == _play(copied, step)
    for shared, copied, pages in worlds:
        shared.commit()
        copied.commit()
        assert shared.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert list(shared.iterdump()) == list(copied.iterdump())
        assert pages.size == shared.execute("PRAGMA page_count").fetchone()[0] * pages.page_size
        again = _copied(pages.image())
        assert list(again.iterdump()) == list(copied.iterdump())
        for database in (shared, copied, again):
            database.close()


def _copied(image: bytes) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.deserialize(image)
    return database
