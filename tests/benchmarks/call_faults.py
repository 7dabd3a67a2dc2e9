"""10 000 calls while servers are killed and answers are dropped. Alone: `python tests/benchmarks/call_faults.py`.

Real servers write down every call that they execute; afterwards that is held against what each call was told.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bridge"))

from fault_run import Tally, Way, fault_run

SEED = 20
WAYS: tuple[tuple[Way, str, int, int], ...] = (
    ("stdio", "stdio, a process for each world", 3_000, 30),
    ("http", "HTTP, 2026-07-28, without sessions", 3_500, 15),
    ("http-handshake", "HTTP, 2025-11-25, a session for each world", 3_500, 15),
)
WORLD_CALLS = 50


def measure() -> list[tuple[str, Tally, float]]:
    """Way, what became of its calls, and seconds."""
    # Every failure is told to its caller, and counted; thousands of log lines say nothing more.
    logging.getLogger("mcp_bridge").setLevel(logging.ERROR)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    measured = []
    for way, label, calls, kills in WAYS:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            tally = asyncio.run(
                fault_run(way, calls, seed=SEED, folder=Path(folder), kills=kills, world_calls=WORLD_CALLS)
            )
        measured.append((label, tally, time.perf_counter() - began))
    return measured


def section() -> str:
    """The section of docs/benchmarks.md."""
    measured = measure()
    rows = [_row(label, tally, f"{seconds:.0f}") for label, tally, seconds in measured]
    columns = zip(*(_counts(tally) for _, tally, _ in measured), strict=True)
    rows.append(f"| all | {' | '.join(str(sum(column)) for column in columns)} | |")
    return "\n".join(
        [
            "## Calls while servers die",
            "",
            "Half of the calls change something (`charge`), a quarter are idempotent, a quarter only read. Servers end "
            "by themselves during calls and are killed at random (kill -9), answers are cut or never sent; seed "
            f"{SEED}. The servers write down what they execute, and that is held against what each call was told.",
            "",
            "| way | calls | kills | answered, executed once | repeated without harm | told: nothing was done | "
            "told: outcome unknown | executed twice | told wrongly | lost without a word | seconds |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows,
        ]
    )


def _counts(tally: Tally) -> tuple[int, ...]:
    return (
        tally.begun,
        tally.kills,
        tally.once,
        tally.repeated,
        tally.failed,
        tally.unknown,
        tally.doubled,
        tally.wrong,
        tally.silent,
    )


def _row(label: str, tally: Tally, seconds: str) -> str:
    return f"| {label} | {' | '.join(str(count) for count in _counts(tally))} | {seconds} |"


if __name__ == "__main__":
    print(section())
