from __future__ import annotations

import random
import sqlite3
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from sandbox_conformance import Call, SandboxConformance

from mcp_bridge.errors import ToolFailure
from mcp_bridge.records import Tool
from sandboxes import Refused, SetupError, SqlSandbox, diff
from sandboxes.api import ApiTwin
from sandboxes.helpdesk import Helpdesk
from sandboxes.sql import SqlTool

SHOP = Path(__file__).parent / "api" / "shop.yaml"


def _add(database: sqlite3.Connection, by: int) -> dict[str, int]:
    database.execute("UPDATE counters SET value = value + ?", (by,))
    if by == 13:
        raise Refused("13 is not allowed.")
    if by == 98:
        sys.exit(3)
    if by == 99:
        raise RuntimeError("a bug")
    return {"value": database.execute("SELECT value FROM counters").fetchone()[0]}


class Counter(SqlSandbox):
    """The smallest sandbox: one number."""

    name = "counter"
    schema = "CREATE TABLE counters (id TEXT PRIMARY KEY, value INTEGER)"
    reads: ClassVar = {"counters": "SELECT id AS key, * FROM counters"}
    sql_tools = (
        SqlTool(
            Tool(
                name="add",
                input_schema={"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
            ),
            _add,
        ),
    )

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        database.execute("INSERT INTO counters VALUES ('c', ?)", (chance.randrange(1000),))
        return datetime(2026, 1, 1)


def _some_processing_order() -> str:
    orders: dict[str, Any] = Helpdesk().state()["orders"]
    return next(key for key, row in orders.items() if row["status"] == "processing")


class TestHelpdesk(SandboxConformance):
    def make(self) -> Helpdesk:
        return Helpdesk()

    def change(self) -> Call:
        return "cancel_order", {"order_id": _some_processing_order()}

    def calls(self) -> list[Call]:
        customer = next(iter(Helpdesk().state()["customers"]))
        return [
            ("list_orders", {"customer_id": customer}),
            ("get_policy", {"topic": "returns"}),
            ("get_policy", {"topic": "the weather"}),
            ("change_address", {"order_id": _some_processing_order(), "address": "1 New Road"}),
            ("refund_order", {"order_id": _some_processing_order(), "amount": 1}),
        ]


class TestCounter(SandboxConformance):
    def make(self) -> Counter:
        return Counter()

    def change(self) -> Call:
        return "add", {"by": 2}

    def calls(self) -> list[Call]:
        return [("add", {"by": 13}), ("add", {"by": "2"})]


class Shelf(Counter):
    """As many counters as the object says."""

    def __init__(self, size: int, **options: Any) -> None:
        self.size = size
        super().__init__(**options)

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        for number in range(self.size):
            database.execute("INSERT INTO counters VALUES (?, 0)", (f"c{number or ''}",))
        return datetime(2026, 1, 1)


def test_sandboxes_of_one_class_that_hold_other_values_have_other_worlds() -> None:
    assert [len(Shelf(size).state()["counters"]) for size in (2, 5, 2)] == [2, 5, 2]
    shelf = Shelf(2)
    shelf.size = 3
    shelf.reset()
    assert len(shelf.state()["counters"]) == 3
    assert len(Shelf(4, seed=1).fork().state()["counters"]) == 4


class Listing(Shelf):
    """Makes its world of a list, which may change without being another one."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        super().__init__(0)

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        database.executemany("INSERT INTO counters VALUES (?, 0)", [(name,) for name in self.names])
        return datetime(2026, 1, 1)


@pytest.mark.parametrize("make", [Helpdesk, lambda **given: ApiTwin(SHOP, **given)], ids=["sql", "api"])
def test_a_reset_without_a_seed_goes_back_to_the_one_that_the_sandbox_was_made_with(make: Any) -> None:
    sandbox = make(seed=5)
    begun = sandbox.state()
    fork = sandbox.fork()
    fork.reset(seed=6)
    assert fork.state() != begun
    for world in (fork, sandbox):
        world.reset()
        assert world.state() == begun
    assert sandbox.prepare({"scenario": "default"}).state() == begun
    assert sandbox.prepare({"seed": 0}).state() != begun


def test_a_world_that_is_made_of_what_can_change_is_made_anew() -> None:
    listing = Listing(["c"])
    listing.names.append("d")
    listing.reset()
    assert set(listing.state()["counters"]) == {"c", "d"}


@pytest.mark.parametrize("by", [2**63, -(2**63) - 1, 10**400], ids=["above", "below", "far above"])
def test_a_number_that_no_database_holds_is_the_callers_mistake(by: int) -> None:
    counter = Counter()
    before = counter.state()
    result = counter.call_now("add", {"by": by})
    assert result.error_kind == "invalid_arguments"
    assert "by: holds a whole number beyond 64 bits" in result.text
    assert counter.state() == before


def test_half_of_a_surrogate_pair_is_the_callers_mistake_too() -> None:
    result = Helpdesk().call_now("get_policy", {"topic": "\ud800"})
    assert result.error_kind == "invalid_arguments"
    assert "topic: holds" in result.text


class Leaky(Counter):
    """Breaks its promise: its forks share one database."""

    def fork(self) -> Leaky:
        return self


def test_the_conformance_suite_notices_forks_that_share() -> None:
    with pytest.raises(AssertionError):
        TestCounter().test_forks_share_nothing_that_a_call_can_change(Leaky())


class Hasty(Counter):
    """Breaks its promise: its clock is the computer's."""

    @property
    def now(self) -> datetime:
        return datetime.now()


def test_the_conformance_suite_notices_the_wall_clock() -> None:
    with pytest.raises(AssertionError):
        TestCounter().test_time_passes_only_when_it_is_told_to(Hasty())


class Ripening(Counter):
    """A rule of time: each whole day adds one; and after a year it breaks."""

    def time_passes(self, database: sqlite3.Connection, before: datetime, after: datetime) -> None:
        database.execute("UPDATE counters SET value = value + ?", ((after - before).days,))
        if after - before > timedelta(days=365):
            raise RuntimeError("a bug")


def test_what_time_brings_is_part_of_the_world() -> None:
    sandbox = Ripening()
    value = sandbox.state()["counters"]["c"]["value"]
    sandbox.advance(timedelta(days=4, hours=5))
    assert sandbox.state()["counters"]["c"]["value"] == value + 4
    assert sandbox.now == datetime(2026, 1, 5, 5)
    with pytest.raises(RuntimeError, match="a bug"):
        sandbox.advance(timedelta(days=366))
    assert sandbox.now == datetime(2026, 1, 5, 5)
    assert sandbox.state()["counters"]["c"]["value"] == value + 4


def test_a_refusal_undoes_what_the_tool_had_changed() -> None:
    sandbox = Counter()
    before = sandbox.state()
    result = sandbox.call_now("add", {"by": 13})
    assert (result.is_error, result.error_kind, result.text) == (True, "tool_error", "13 is not allowed.")
    assert sandbox.state() == before


@pytest.mark.parametrize(("by", "told"), [(99, "RuntimeError: a bug"), (98, "SystemExit: 3")])
def test_a_broken_tool_is_a_failure_of_the_infrastructure_and_changes_nothing(by: int, told: str) -> None:
    sandbox = Counter()
    before = sandbox.state()
    with pytest.raises(ToolFailure, match=rf"counter\.add broke: {told}"):
        sandbox.call_now("add", {"by": by})
    assert sandbox.state() == before


def test_an_argument_that_the_function_does_not_take_is_the_callers_mistake() -> None:
    sandbox = Counter()
    before = sandbox.state()
    result = sandbox.call_now("add", {"by": 1, "unit": "kg"})
    assert (result.is_error, result.error_kind) == (True, "invalid_arguments")
    assert "unit: there is no such argument; it takes by" in result.text
    assert sandbox.state() == before


def test_a_table_that_the_state_would_miss_is_refused() -> None:
    class Forgetful(Counter):
        schema = "CREATE TABLE counters (id TEXT PRIMARY KEY, value INTEGER); CREATE TABLE log (line TEXT)"

    with pytest.raises(SetupError, match="log"):
        Forgetful()


def test_a_sandbox_made_in_one_thread_works_in_another() -> None:
    sandbox = Counter()

    async def main() -> bool:
        return (await anyio.to_thread.run_sync(sandbox.call_now, "add", {"by": 1})).is_error

    assert anyio.run(main) is False


def test_the_diff_tells_new_deleted_and_changed_values_and_their_types() -> None:
    before = {"t": {"a": {"x": 1, "y": 1}, "b": {"x": 2}}}
    after = {"t": {"a": {"x": 3, "y": True}, "c": {"x": None, "y": 4}}}
    assert diff(before, after) == [
        {"table": "t", "key": "a", "column": "x", "before": 1, "after": 3},
        {"table": "t", "key": "a", "column": "y", "before": 1, "after": True},
        {"table": "t", "key": "b", "column": "x", "before": 2, "after": None},
        {"table": "t", "key": "c", "column": "y", "before": None, "after": 4},
    ]


def test_the_diff_tells_other_types_inside_lists_and_objects_apart() -> None:
    before = {"t": {"a": {"flags": [1, 0], "size": {"width": 2}, "same": [{"x": 1}]}}}
    after = {"t": {"a": {"flags": [True, 0], "size": {"width": 2.0}, "same": [{"x": 1}]}}}
    assert [change["column"] for change in diff(before, after)] == ["flags", "size"]


async def test_opening_a_world_takes_less_than_two_milliseconds() -> None:
    sandbox = Helpdesk()
    async with sandbox.open_world("first", {"seed": 5}):
        pass
    best = float("inf")
    for number in range(20):  # the best of many: a busy machine is no fault of the sandbox
        started = time.perf_counter()
        async with sandbox.open_world(f"w{number}", {"seed": 5}):
            best = min(best, time.perf_counter() - started)
    assert best < 0.002


def _add_all(database: sqlite3.Connection, numbers: list[list[int]]) -> dict[str, int]:
    found = {"value": 0}
    while numbers:
        found = _add(database, sum(numbers.pop()))
    return found


class Adder(Counter):
    sql_tools = (
        SqlTool(Tool(name="add_all", input_schema={"type": "object", "properties": {"numbers": {}}}), _add_all),
    )


def test_what_a_tool_does_to_its_arguments_is_done_to_its_own() -> None:
    given = {"numbers": [[1, 2], [3]]}
    assert not Adder().call_now("add_all", given).is_error
    assert given == {"numbers": [[1, 2], [3]]}
