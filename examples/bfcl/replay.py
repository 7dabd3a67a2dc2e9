"""Plays the gold calls of every task through the bridge, and says how many the verifier finds right.

    python examples/bfcl/replay.py                     # the twins in this process
    python examples/bfcl/replay.py --mcp               # the same behind MCP, in another process
    python examples/bfcl/replay.py --category base

Ends with status 1 where one is wrong or left unscored.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
from dataset import CATEGORIES
from tasks import tasks
from verifier import verify
from worlds import BfclTwin

import mcp_bridge
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import replay_demonstration
from sdk.records import Rollout, Task
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.limits import Limits

MCP_JSON = Path(__file__).with_name("mcp.json")
_NO_LIMITS = Limits(max_turns=1000, max_calls=1000, max_turn_tokens=10**9, max_tokens=10**9)


async def replay(played: Sequence[Task], *, over_mcp: bool = False, concurrency: int = 16) -> list[Rollout]:
    """One rollout for each task, in their order, each with its demonstration as the script."""
    async with mcp_bridge.connect({"mcpServers": mcp_server()} if over_mcp else BfclTwin()) as toolset:
        return await replay_with(toolset, played, concurrency=concurrency)


async def replay_with(toolset: mcp_bridge.Toolset, played: Sequence[Task], *, concurrency: int = 16) -> list[Rollout]:
    """As `replay`, with tools that are there already."""
    rollouts: dict[int, Rollout] = {}
    limiter = anyio.CapacityLimiter(concurrency)

    async def one(place: int, task: Task) -> None:
        async with limiter:
            engine = RolloutEngine(agent=replay_demonstration(task), source=toolset, verifier=verify, limits=_NO_LIMITS)
            job = Job(id=f"gold/{task.id}", task=task, seed=0)
            rollouts[place] = (await engine.run([job], sampling=Sampling(max_tokens=10**9)))[0]

    async with anyio.create_task_group() as group:
        for place, task in enumerate(played):
            group.start_soon(one, place, task)
    return [rollouts[place] for place in range(len(played))]


def mcp_server() -> dict[str, dict[str, object]]:
    """The server of `mcp.json`, with this Python."""
    return {"bfcl": {"command": sys.executable, "args": [str(MCP_JSON.with_name("server.py"))]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mcp", action="store_true", help="over stdio, from a server in another process")
    parser.add_argument("--category", action="append", choices=CATEGORIES, help="default: all four")
    options = parser.parse_args()
    began = time.monotonic()
    rollouts = anyio.run(lambda: replay(tasks(options.category or CATEGORIES), over_mcp=options.mcp))
    right = Counter(one.task.tags["category"] for one in rollouts if one.scored and one.verdict.score == 1)
    for category, count in Counter(one.task.tags["category"] for one in rollouts).items():
        print(f"{category}: {right[category]} of {count}")
    for one in rollouts:
        if not one.scored:
            print(f"{one.task.id}: unscored: {one.failure.message}")
        elif one.verdict.score != 1:
            print(f"{one.task.id}: {one.verdict.explanation}")
    calls = sum(len(one.calls) for one in rollouts)
    print(f"{right.total()} of {len(rollouts)}, {calls} calls, {time.monotonic() - began:.1f} s")
    sys.exit(right.total() != len(rollouts))


if __name__ == "__main__":
    main()
