"""Calls over a faulty network, and what the server's log and the ledgers say of them afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from faulty_network import FaultyNetwork

import mcp_bridge
from mcp_bridge import ToolFailure
from mcp_bridge.ledger import ENDS, LedgerLine

KINDS = ("charge", "set_limit", "balance")
"""Not to be called twice; idempotent; read-only."""


@dataclass(frozen=True)
class Audit:
    """`done`: how often the server did each call, by key, from its own log."""

    faults: Counter[str]
    lines: list[LedgerLine]
    done: Counter[str]
    raised: int

    @property
    def ends(self) -> dict[str, LedgerLine]:
        return {line.key: line for line in self.lines if line.event in ENDS}

    def doubled(self, tool: str) -> int:
        return sum(self.done[key] > 1 for key, end in self.ends.items() if end.tool == tool)

    def ended(self, tool: str, event: str) -> list[str]:
        """Keys."""
        return [key for key, end in self.ends.items() if (end.tool, end.event) == (tool, event)]


async def play(
    log: Path, *, seed: int, rate: float, kills: int, worlds: int, calls: int, options: dict[str, Any] | None = None
) -> Audit:
    """`calls` calls in each of so many worlds at once, one kind of tool after the other."""
    lines: list[LedgerLine] = []
    raised = 0
    async with FaultyNetwork(log, seed=seed, rate=rate, kills=kills) as network:
        entry = {"url": network.url, "toolbake": {"isolation": "shared", **(options or {})}}
        async with mcp_bridge.connect({"mcpServers": {"bank": entry}}) as toolset:

            async def play_one(number: int) -> None:
                nonlocal raised
                async with toolset.open_world(f"r{number}") as world:
                    for count in range(calls):
                        kind = KINDS[(number + count) % 3]
                        try:
                            await world.call(kind, {} if kind == "balance" else {"amount": count})
                        except ToolFailure:
                            raised += 1
                    lines.extend(world.ledger.lines)

            async with anyio.create_task_group() as group:
                for number in range(worlds):
                    group.start_soon(play_one, number)
    return Audit(network.faults, lines, _executions(log), raised)


def _executions(log: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in log.read_text().splitlines())
