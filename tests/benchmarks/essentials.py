"""The figures that no refactoring may lose: run it before and after.

    python tests/benchmarks/essentials.py [--folder runs/essentials] [--rounds 1] [--threads 2]

Plain functions as tools, and MCP over HTTP with 256 sessions, beside the SDK's client; the rollouts of a quickstart
step beside `generate` with its cache kept; a GRPO step of that shape beside TRL's forward. The folder keeps the warm
start and the step's rollouts, which the first run makes in some minutes more. Later ones took seven minutes on two
cores at a load of three. On a shared machine compare the processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from pathlib import Path
from typing import Any

import end_to_end  # its import sets what must be set before torch is loaded
import rollout_sampling
import tool_calls
import training_step
from engine_throughput import ENGINE, Seconds

HEAD = [
    "| | ours | the peer | ratio | processor time, ours | the peer's | ratio |",
    "| --- | --- | --- | --- | --- | --- | --- |",
]


def calls(name: str, figures: dict[str, Any], ours: str, peer: str) -> str:
    """A row about calls a second."""
    rate, other = (statistics.median(figures[side].rates) for side in (ours, peer))
    cpu_us, other_us = (statistics.median(figures[side].cpu_us) for side in (ours, peer))
    return (
        f"| {name} | {rate:.0f} calls/s | {other:.0f} | {rate / other:.2f} | {cpu_us:.0f} µs a call | {other_us:.0f} | "
        f"{other_us / cpu_us:.2f} |"
    )


def seconds(name: str, ours: list[Seconds], peer: list[Seconds]) -> str:
    """A row about runs: medians, and the median of the rounds' ratios."""
    cells = []
    for one, other in zip(zip(*ours, strict=True), zip(*peer, strict=True), strict=True):
        ratio = statistics.median(b / a for a, b in zip(one, other, strict=True))
        cells.append(f"{statistics.median(one):.1f} s | {statistics.median(other):.1f} | {ratio:.2f}")
    return f"| {name} | {' | '.join(cells)} |"


async def tools(rounds: int) -> list[str]:
    functions = await tool_calls.compare(tool_calls.function_contenders(), rounds=rounds, seconds=2)
    with tool_calls.served() as url:
        sessions = {"sdk": tool_calls.sdk_over_http(url, 256, shared=False), "bridge": tool_calls.bridge(url, 256)}
        over_http = await tool_calls.compare(sessions, rounds=rounds, seconds=4)
    sdk, ours = functions
    return [
        calls("plain functions as tools", functions, ours, sdk),
        calls("MCP over HTTP, 256 sessions", over_http, "bridge", "sdk"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/essentials"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = end_to_end.warm_start(folder / "warm_start", options.threads)
    work = rollout_sampling.recorded_step(model, folder / "step", options.threads)
    rows = asyncio.run(tools(options.rounds))
    sampled = rollout_sampling.measure(
        model, work, options.rounds, options.threads, only=(ENGINE, rollout_sampling.KEPT)
    )
    rows.append(seconds("the rollouts of a quickstart step", sampled[ENGINE], sampled[rollout_sampling.KEPT]))
    shape = training_step.of_quickstart(work)
    trained = training_step.measure(shape, training_step.loaded_for(options.threads), options.rounds)
    rows.append(seconds(f"a GRPO step, {shape.name}", trained.shared, trained.padded))
    print("\n".join([*HEAD, *rows]))


if __name__ == "__main__":
    main()
