"""A small run with everything in it: calls, token rows, a discarded rollout, a finished stage, a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio

from mcp_bridge import connect
from sdk.evidence.expected_run import Verification
from sdk.evidence.run_verification import verify_run
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Rollout, Task, ToolCall
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.traces import RunFolder

CONFIG = {"model": "scripted", "seed": 7, "verifier": {"name": "says_shipped", "digest": "0"}}


def get_order(order_id: str) -> str:
    """Read an order."""
    return f'{{"id": "{order_id}", "status": "shipped", "by": "Zoë 🚚", "weight": 1.50}}'


def says_shipped(rollout: Rollout) -> float:
    """1 for a right answer after a call, a little for each call."""
    return float("shipped" in rollout.answer and bool(rollout.calls)) + 0.01 * len(rollout.calls)


SCRIPT = [[ToolCall(id="", name="get_order", arguments={"order_id": "Ω-1"})], "It is shipped."]


def play(run: RunFolder, stage: str, names: list[str], *, step: int = -1, id_prefix: str = "") -> None:
    """Rollouts of a scripted agent with real tools, into `stage`."""

    async def played() -> None:
        async with connect([get_order]) as source:
            run.record_tools(source.tools)
            agent = ScriptedAgent(SCRIPT)
            engine = RolloutEngine(agent=agent, source=source, verifier=says_shipped, on_call=run.append_call)
            jobs = [
                Job(id=id_prefix + name, task=Task(prompt=f"Where is {name}?", id=name), seed=3, step=step)
                for name in names
            ]
            for rollout in await engine.run(jobs, sampling=Sampling(max_tokens=256)):
                run.append_rollout(stage, rollout)

    anyio.run(played)


def make_run(path: Path) -> Path:
    """Two sessions of one run: stages `grpo` and `after`, one step set aside and played again."""
    with RunFolder.create_or_resume(path, CONFIG) as run:
        play(run, "grpo", ["a", "b", "c"], step=0)
        play(run, "grpo", ["d", "e"], step=1)
        run.finish_stage("warm", {"steps": 2})
    with RunFolder.create_or_resume(path, CONFIG) as run:
        run.drop_after("grpo", 0)
        play(run, "grpo", ["d", "e"], step=1)
        play(run, "after", ["f", "g"])
        run.finish_stage("after", {"rollouts": 2})
    return path


def verified(path: Path, verifier: Callable[[Rollout], float] | None = None, **options: object) -> Verification:
    async def run() -> Verification:
        return await verify_run(path, verifier=verifier, **options)  # type: ignore[arg-type]

    return anyio.run(run)


def named(found: Verification) -> list[str]:
    """The findings in short: `changed rollouts/grpo.jsonl:2 b`."""
    return [f"{one.kind} {one.file}:{one.line or ''} {one.rollout}".rstrip() for one in found.findings]


EVIDENCE_FILES = (
    "evidence.jsonl",
    "calls.jsonl",
    "rollouts/grpo.jsonl",
    "rollouts/after.jsonl",
    "rollouts/grpo.discarded.jsonl",
    "run.json",
    "evidence.root.json",
    "stages/after.json",
    "stages/warm.json",
)
CHAINED_LINES = EVIDENCE_FILES[:5]
