"""Milliseconds and memory of forking a 50 MB world: a deep copy, a copied database, and one whose pages are shared.

    python tests/benchmarks/world_forks.py [--rounds 9]

The same 100 000 customers as Python objects and as a table. The three alternate; each fork then changes one customer.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from mcp_bridge.records import Tool
from sandboxes import SqlSandbox
from sandboxes.sql import SqlTool

CUSTOMERS, NOTE_CHARS = 100_000, 420
_MOVE = {"type": "object", "properties": {"id": {"type": "integer"}, "city": {"type": "string"}}}


def customers() -> list[tuple[int, str, str, str]]:
    """Rows of the world; about 50 MB as a database."""
    chance = random.Random(0)
    return [(n, f"Customer {n}", f"City {chance.randrange(500)}", "n" * NOTE_CHARS) for n in range(CUSTOMERS)]


def _move(database: sqlite3.Connection, id: int, city: str) -> dict[str, str]:
    database.execute("UPDATE customers SET city = ? WHERE id = ?", (city, id))
    return {"city": city}


class Customers(SqlSandbox):
    """The customers as a table."""

    name = "customers"
    schema = "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, note TEXT);"
    reads: ClassVar = {"customers": "SELECT id AS key, * FROM customers"}
    sql_tools = (SqlTool(Tool(name="move", input_schema=_MOVE), _move),)
    page_bytes = 4096

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", customers())
        return datetime(2026, 1, 1)


def resident_mb() -> float:
    """Megabytes of this process in memory."""
    import resource

    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def measured(fork: Callable[[], Any], change: Callable[[Any, int], object], close: Callable[[Any], object]) -> float:
    """Seconds of one fork."""
    started = time.perf_counter()
    one = fork()
    taken = time.perf_counter() - started
    change(one, 7)
    close(one)
    return taken


def memory_kb(
    kept: int, fork: Callable[[], Any], change: Callable[[Any, int], object], close: Callable[[Any], object]
) -> float:
    """What each of `kept` forks adds to the process, each with one customer changed."""
    gc.collect()
    before = resident_mb()
    forks = [fork() for _ in range(kept)]
    for number, one in enumerate(forks):
        change(one, number * 17)
    after = resident_mb()
    for one in forks:
        close(one)
    return max(0.0, after - before) * 1000 / kept


def section(*, rounds: int = 9) -> str:
    """The result as Markdown."""
    sandbox = Customers()
    objects = [{"id": n, "name": name, "city": city, "note": [note]} for n, name, city, note in customers()]
    size = len(sandbox.snapshot())

    def copied() -> sqlite3.Connection:
        database = sqlite3.connect(":memory:")
        database.deserialize(sandbox.snapshot())
        return database

    def move_row(database: sqlite3.Connection, number: int) -> None:
        with database:
            _move(database, number, "Elsewhere")

    ways: dict[str, tuple[Any, Any, Any]] = {
        "`copy.deepcopy` of Python objects": (
            lambda: copy.deepcopy(objects),
            lambda world, number: world[number].update(city="Elsewhere"),
            list.clear,
        ),
        "a copy of the SQLite database": (copied, move_row, sqlite3.Connection.close),
        "`SqlSandbox.fork`, pages shared": (
            sandbox.fork,
            lambda world, number: world.call_now("move", {"id": number, "city": "Elsewhere"}),
            SqlSandbox.close,
        ),
    }
    # The small ones first: memory that a large one leaves behind would be used again, and not be seen.
    kept = dict(zip(ways, (3, 10, 2000), strict=True))
    memory = {name: memory_kb(kept[name], *ways[name]) for name in reversed(list(ways))}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(measured(*way))
    lines = [
        f"## Worlds: forking {size / 1e6:.0f} MB",
        "",
        f"{CUSTOMERS} customers; median of {rounds}. Memory is what the process grows by for each of many forks, with "
        "one customer changed in each.",
        "",
        "| | milliseconds | kB a fork |",
        "| --- | --- | --- |",
    ]
    for name in ways:
        lines.append(f"| {name} | {statistics.median(seconds[name]) * 1000:.3g} | {memory[name]:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    print(section(rounds=parser.parse_args().rounds))


if __name__ == "__main__":
    main()
