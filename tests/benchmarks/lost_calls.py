"""Exactly once: 10 000 calls over a network that loses a tenth of them, to a server that is killed."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "bridge"))

from lost_answers import KINDS, Audit, play

WORLDS, CALLS, RATE, KILLS = 16, 625, 0.1, 10


def section() -> str:
    """Twice the same calls: as they are, and as a client makes them that replays whatever failed."""
    logging.disable(logging.WARNING)  # each call that is sent again warns
    try:
        ours, replaying = measured({}), measured({"idempotent": ["*"]})
    finally:
        logging.disable(logging.NOTSET)
    faults = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in sorted(ours.faults.items()) if name != "none"
    )
    rows = [
        ("calls", *(f"{len(one.ends):,}" for one in (ours, replaying))),
        ("calls without an end in the ledger", *(str(_endless(one)) for one in (ours, replaying))),
        ("charges made twice or more", *(str(one.doubled("charge")) for one in (ours, replaying))),
        ("charges of unknown outcome", *(str(len(one.ended("charge", "unknown"))) for one in (ours, replaying))),
        ("  of which were made", *(str(_made(one)) for one in (ours, replaying))),
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"## Lost answers: {WORLDS * CALLS:,} calls\n\n"
        f"A third each of a tool that charges, an idempotent one and a read-only one, over HTTP in {WORLDS} worlds. "
        f"Faults in the first column: {faults}.\n\n"
        "| | as the tools say | every tool called idempotent |\n| --- | --- | --- |\n" + table
    )


def measured(options: dict[str, list[str]]) -> Audit:
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(_play, Path(folder) / "log", options)


async def _play(log: Path, options: dict[str, list[str]]) -> Audit:
    return await play(log, seed=3, rate=RATE, kills=KILLS, worlds=WORLDS, calls=CALLS, options=options)


def _endless(audit: Audit) -> int:
    return len({line.key for line in audit.lines} - set(audit.ends)) + WORLDS * CALLS - len(audit.ends)


def _made(audit: Audit) -> int:
    return sum(audit.done[key] > 0 for key in audit.ended(KINDS[0], "unknown"))


if __name__ == "__main__":
    sys.stdout.write(section() + "\n")
