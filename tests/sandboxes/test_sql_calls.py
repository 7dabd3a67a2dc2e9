"""A call of a tool over SQL happens whole or not at all, however its function uses the database."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

import pytest

import sdk
from mcp_bridge.errors import ToolFailure
from mcp_bridge.records import Tool
from sandboxes import Refused, SetupError, SqlSandbox
from sandboxes.sql import SqlTool


def _with(database: sqlite3.Connection) -> None:
    database.execute("WITH rich AS (SELECT id FROM accounts WHERE balance > 1) UPDATE accounts SET balance = 0")


def _script(database: sqlite3.Connection) -> None:
    database.executescript("UPDATE accounts SET balance = 0; UPDATE accounts SET balance = 1 WHERE id = 2;")


def _committed(database: sqlite3.Connection) -> None:
    database.execute("UPDATE accounts SET balance = 0")
    database.commit()


def _table(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE others AS SELECT * FROM accounts")


def _dropped(database: sqlite3.Connection) -> None:
    database.execute("DROP TABLE payments")


def _autocommit(database: sqlite3.Connection) -> None:
    database.isolation_level = None
    database.execute("UPDATE accounts SET balance = 0")


WAYS = (_with, _script, _committed, _table, _dropped, _autocommit)


def _tools(end: str, fails: Callable[[], Any]) -> tuple[SqlTool, ...]:
    def tool(change: Callable[[sqlite3.Connection], None]) -> SqlTool:
        def run(database: sqlite3.Connection) -> Any:
            change(database)
            return fails()

        return SqlTool(Tool(name=f"{change.__name__[1:]}_{end}", input_schema={"type": "object"}), run)

    return tuple(tool(change) for change in WAYS)


def _refuse() -> None:
    raise Refused("no")


def _break() -> None:
    raise ValueError("a bug")


def _moment() -> Any:
    return {"at": datetime(2026, 1, 1)}


def _by_name(database: sqlite3.Connection) -> Any:
    database.row_factory = lambda cursor, row: dict(zip([one[0] for one in cursor.description], row, strict=True))
    database.text_factory = bytes
    return len(database.execute("SELECT * FROM accounts").fetchall())


def _close(database: sqlite3.Connection) -> None:
    database.execute("UPDATE accounts SET balance = 0")
    database.commit()
    database.close()


def _loosely(database: sqlite3.Connection) -> int:
    return database.execute("PRAGMA foreign_keys = OFF").rowcount


def _delete(database: sqlite3.Connection, id: int) -> int:
    return database.execute("DELETE FROM accounts WHERE id = ?", (id,)).rowcount


ONE = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


class Bank(SqlSandbox):
    name = "bank"
    schema = """
    PRAGMA foreign_keys = ON;
    CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, note TEXT);
    CREATE TABLE payments (id INTEGER PRIMARY KEY, account INTEGER REFERENCES accounts (id) ON DELETE CASCADE);
    """
    reads: ClassVar = {
        "accounts": "SELECT id AS key, id, balance FROM accounts",
        "payments": "SELECT id AS key, * FROM payments",
    }
    sql_tools = (
        *_tools("refused", _refuse),
        *_tools("broken", _break),
        *_tools("unfit", _moment),
        SqlTool(Tool(name="by_name", input_schema={"type": "object"}), _by_name),
        SqlTool(Tool(name="close", input_schema={"type": "object"}), _close),
        SqlTool(Tool(name="loosely", input_schema={"type": "object"}), _loosely),
        SqlTool(Tool(name="delete", input_schema=ONE), _delete),
    )
    accounts = 3

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        rows = ((number, 100 * number, "n" * 200) for number in range(1, self.accounts + 1))
        database.executemany("INSERT INTO accounts VALUES (?, ?, ?)", rows)
        database.executemany("INSERT INTO payments VALUES (?, ?)", [(1, 1), (2, 2)])
        return datetime(2026, 1, 5)


class LargeBank(Bank):
    """Of 400 kB, so that forks share its pages."""

    name = "large bank"
    accounts = 2_000


@pytest.fixture(params=[Bank, LargeBank])
def bank(request: pytest.FixtureRequest) -> Bank:
    made: Bank = request.param()
    return made


@pytest.mark.parametrize("end", ["refused", "broken", "unfit"])
@pytest.mark.parametrize("way", [way.__name__[1:] for way in WAYS])
def test_a_call_that_fails_changes_nothing_whatever_its_function_committed(bank: Bank, way: str, end: str) -> None:
    before, fork = bank.state(), bank.fork()
    if end == "refused":
        assert bank.call_now(f"{way}_{end}", {}).is_error
    else:
        with pytest.raises(ToolFailure, match="a bug" if end == "broken" else "datetime is not JSON serializable"):
            bank.call_now(f"{way}_{end}", {})
    assert bank.diff(before, bank.state()) == []
    names = {row[0] for row in bank.database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"accounts", "payments", "clock"}
    assert bank.call_now("delete", {"id": 3}).structured == 1  # and goes on
    assert set(before["accounts"]) - set(bank.state()["accounts"]) == {"3"}
    assert fork.state() == before


def test_a_tool_that_closes_the_database_has_failed(bank: Bank) -> None:
    before = bank.state()
    with pytest.raises(ToolFailure, match="Cannot operate on a closed database"):
        bank.call_now("close", {})
    assert bank.state() == before


def test_how_a_tool_reads_rows_is_its_own_matter(bank: Bank) -> None:
    before = bank.state()
    assert bank.call_now("by_name", {}).structured == bank.accounts
    assert bank.state() == before
    assert bank.now == datetime(2026, 1, 5)
    assert bank.fork().state() == before


def test_foreign_keys_that_the_schema_turns_on_are_kept_in_every_world(bank: Bank) -> None:
    saved = bank.snapshot()
    bank.call_now("loosely", {})
    for world in (bank.fork(), bank):
        assert world.call_now("delete", {"id": 1}).structured == 1
        assert list(world.state()["payments"]) == ["2"]
    bank.restore(saved)
    bank.call_now("delete", {"id": 2})
    assert list(bank.state()["payments"]) == ["1"]


def test_a_result_that_is_no_json_ends_its_rollout_alone() -> None:
    class Half(Bank):
        name = "half"
        sql_tools = (
            SqlTool(Tool(name="ok", input_schema={"type": "object"}), lambda database: "ok"),
            SqlTool(Tool(name="bad", input_schema={"type": "object"}), lambda database: {"at": datetime(2026, 1, 1)}),
        )

    def task(name: str, tool: str) -> dict[str, Any]:
        said = [{"role": "assistant", "tool_calls": [{"id": "1", "name": tool, "arguments": {}}]}]
        return {
            "id": name,
            "prompt": f"Do {name}.",
            "demonstration": [*said, {"role": "assistant", "content": "Done."}],
            "expected": {"changes": []},
        }

    checked = sdk.check_tasks(Half(), [task("first", "ok"), task("second", "bad")])
    assert [task.id for task in checked.tasks] == ["first"]
    (problem,) = checked.problems
    assert problem.task_id == "second"
    assert "datetime is not JSON serializable" in problem.what


def test_reads_that_would_lose_rows_or_a_column_are_refused() -> None:
    class Same(Bank):
        name = "same"
        reads: ClassVar = Bank.reads | {"payments": "SELECT 'x' AS key, * FROM payments"}

    with pytest.raises(SetupError, match="gives several rows of payments the key 'x'; give each its own"):
        Same().state()

    class Unnamed(Bank):
        name = "unnamed"
        reads: ClassVar = Bank.reads | {"payments": "SELECT account, id FROM payments"}

    with pytest.raises(SetupError, match="the first column of `reads` for payments is 'account'; it must be named key"):
        Unnamed()

    class Doubled(Bank):
        name = "doubled"
        reads: ClassVar = Bank.reads | {"payments": "SELECT id AS key, account, id AS account FROM payments"}

    with pytest.raises(SetupError, match="`reads` for payments gives two columns the name 'account'; name one"):
        Doubled()


class Library(SqlSandbox):
    """A schema with tables that SQLite keeps for itself, and values that JSON has not."""

    name = "library"
    schema = """
    CREATE TABLE books (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT, cover BLOB, weight REAL);
    CREATE VIRTUAL TABLE titles USING fts5 (title);
    CREATE TRIGGER indexed AFTER INSERT ON books BEGIN
        INSERT INTO titles (rowid, title) VALUES (new.id, new.title);
    END;
    """
    reads: ClassVar = {"books": "SELECT id AS key, * FROM books", "titles": "SELECT rowid AS key, title FROM titles"}
    sql_tools = ()

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        database.execute("INSERT INTO books (title, cover, weight) VALUES ('Emma', x'00FF', 9e999)")
        return datetime(2026, 1, 5)


def test_tables_that_sqlite_keeps_for_itself_need_no_select() -> None:
    assert Library().state()["titles"] == {"1": {"title": "Emma"}}


def test_a_table_that_is_named_after_a_virtual_one_needs_a_select_too() -> None:
    class Shelves(Library):
        name = "shelves"
        schema = Library.schema + "CREATE TABLE titles_lent (id INTEGER PRIMARY KEY);"

    with pytest.raises(SetupError, match="`reads` has no SELECT for titles_lent; state\\(\\) would miss it"):
        Shelves()


def test_the_state_is_json_whatever_sqlite_holds() -> None:
    state = Library().state()
    assert state["books"]["1"] == {"id": 1, "title": "Emma", "cover": "AP8=", "weight": "inf"}
    assert json.loads(json.dumps(state, allow_nan=False)) == state
