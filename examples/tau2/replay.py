"""Plays the gold actions of every task with a user by rules, and says how many the verifier finds right.

    python examples/tau2/replay.py                     # the twins in this process
    python examples/tau2/replay.py --mcp               # the same behind MCP, in other processes
    python examples/tau2/replay.py --domain telecom
    python examples/tau2/replay.py --forks 200         # how long a world of its own takes instead

Ends with status 1 where one is wrong or left unscored.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
from domain_tasks import tasks
from domain_twin import Tau2Twin
from domains import DOMAINS, origin
from reward import verify

import mcp_bridge
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import replay_demonstration
from sdk.records import Rollout, Task
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.limits import Limits

MCP_JSON = Path(__file__).with_name("mcp.json")
CHANGES = {
    "airline": ("send_certificate", {"user_id": "mia_li_3668", "amount": 50}),
    "retail": ("cancel_pending_order", {"order_id": "#W5918442", "reason": "no longer needed"}),
    "telecom": ("enable_roaming", {"customer_id": "C1001", "line_id": "L1001"}),
}
"""A call for each domain that changes its world."""
_NO_LIMITS = Limits(max_turns=1000, max_calls=1000, max_turn_tokens=10**9, max_tokens=10**9)


async def replay(
    domain: str, played: Sequence[Task], *, over_mcp: bool = False, concurrency: int = 16
) -> list[Rollout]:
    """One rollout for each task of a domain, in their order, each with its demonstration as the script."""
    rollouts: dict[int, Rollout] = {}
    limiter = anyio.CapacityLimiter(concurrency)

    async def one(toolset: mcp_bridge.Toolset, place: int, task: Task) -> None:
        async with limiter:
            engine = RolloutEngine(agent=replay_demonstration(task), source=toolset, verifier=verify, limits=_NO_LIMITS)
            job = Job(id=f"gold/{task.id}", task=task, seed=0)
            rollouts[place] = (await engine.run([job], sampling=Sampling(max_tokens=10**9)))[0]

    source = {"mcpServers": mcp_server(domain)} if over_mcp else Tau2Twin(domain)
    async with mcp_bridge.connect(source, connect_timeout_s=60) as toolset, anyio.create_task_group() as group:
        for place, task in enumerate(played):
            group.start_soon(one, toolset, place, task)
    return [rollouts[place] for place in range(len(played))]


def mcp_server(domain: str) -> dict[str, dict[str, object]]:
    """The server of `mcp.json` for a domain, with this Python."""
    return {"tau2": {"command": sys.executable, "args": [str(MCP_JSON.with_name("server.py")), domain]}}


def print_forks(domains: Sequence[str], times: int) -> None:
    """How long a world of its own takes: a fork, a fork and its first change, and the package's own copy."""
    print("| domain | fork | fork and its first change | deepcopy of the package's |\n| --- | --- | --- | --- |")
    for domain in domains:
        twin, package = Tau2Twin(domain), origin(domain)
        change = CHANGES[domain]
        assert not twin.fork().call_now(*change).is_error
        shown = [
            _timed(twin.fork, times),
            _timed(lambda twin=twin, change=change: twin.fork().call_now(*change), times),
            _timed(lambda package=package: copy.deepcopy(package), max(5, times // 20)),
        ]
        print("|", " | ".join([domain, *shown]), "|")


def _timed(act: Callable[[], object], times: int) -> str:
    """Median and 95th percentile, in milliseconds of the processor: others may use the machine, too."""
    took = []
    for _ in range(times):
        began = time.process_time()
        act()
        took.append((time.process_time() - began) * 1000)
    return f"{statistics.median(took):.3f} ({statistics.quantiles(took, n=20)[-1]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mcp", action="store_true", help="over stdio, from a server in another process")
    parser.add_argument("--domain", action="append", choices=DOMAINS, help="default: all three")
    parser.add_argument("--forks", type=int, metavar="N", help="measure N forks of each world, and play nothing")
    options = parser.parse_args()
    domains = options.domain or DOMAINS
    if options.forks:
        print_forks(domains, options.forks)
        return
    began, all_rollouts, right = time.monotonic(), [], 0
    for domain in domains:
        rollouts = anyio.run(lambda domain=domain: replay(domain, tasks((domain,)), over_mcp=options.mcp))
        good = [one for one in rollouts if one.scored and one.verdict.score == 1]
        print(f"{domain}: {len(good)} of {len(rollouts)}")
        for one in rollouts:
            if one not in good:
                print(f"{one.task.id}: {one.failure.message if one.failure else one.verdict.explanation}")
        all_rollouts += rollouts
        right += len(good)
    calls = sum(len(one.calls) for one in all_rollouts)
    users = sum(len(turn.calls) for one in all_rollouts for turn in one.user_turns)
    print(f"{right} of {len(all_rollouts)}, {calls} calls and {users} of users, {time.monotonic() - began:.1f} s")
    sys.exit(right != len(all_rollouts))


if __name__ == "__main__":
    main()
