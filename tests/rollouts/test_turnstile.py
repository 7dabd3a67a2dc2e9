"""Verdicts of rollouts that end together: a few at a time, and those under way go first."""

from __future__ import annotations

import itertools
from typing import Any

import anyio
import pytest

from sandboxes.helpdesk import Helpdesk
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Rollout, Task
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.simulation import run_virtual
from sdk.rollouts.turnstile import AT_ONCE, FEW

pytestmark = pytest.mark.timeout(60)
MANY = 3 * FEW


def jobs(count: int) -> list[Job]:
    return [Job(id=f"r{n}", task=Task(prompt="Hi"), seed=n) for n in range(count)]


def engine(verifier: Any, concurrency: int) -> RolloutEngine:
    return RolloutEngine(agent=ScriptedAgent(["done"]), source=Helpdesk(), verifier=verifier, concurrency=concurrency)


async def verdicts_between_turns(count: int) -> list[int]:
    """How many verdicts each turn of another task had before it, of `count` rollouts that end in one turn."""
    given = 0

    async def verify(_: Rollout) -> float:
        nonlocal given
        given += 1
        return 1.0

    seen: list[int] = []

    async def under_way() -> None:
        while given < count:
            seen.append(given)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(under_way)
        rollouts = await engine(verify, count).run(jobs(count), sampling=Sampling())
    assert [r.id for r in rollouts if r.verdict and r.verdict.score == 1.0] == [f"r{n}" for n in range(count)]
    return [after - before for before, after in itertools.pairwise([*seen, given])]


async def test_who_is_under_way_has_a_turn_between_each_eight_verdicts_of_those_that_ended_together() -> None:
    steps = await verdicts_between_turns(MANY)
    assert max(steps) == AT_ONCE
    assert sum(steps) == MANY


async def test_few_rollouts_wait_for_nobody() -> None:
    assert max(await verdicts_between_turns(FEW)) == FEW


async def test_a_rollout_that_is_given_up_while_it_waits_holds_up_no_other() -> None:
    judged = anyio.Event()

    async def verify(_: Rollout) -> float:
        judged.set()
        return 1.0

    runner = engine(verify, MANY)
    async with runner.stream(sampling=Sampling()) as stream:
        stream.submit(jobs(MANY))
        await judged.wait()
    # The stream was closed with most of them played and not judged yet: they are given up, and counted.
    assert 0 < runner.counts.given_up < MANY
    assert runner.counts.begun == MANY
    assert len(await runner.run(jobs(MANY), sampling=Sampling())) == MANY


def test_where_computing_takes_no_time_nobody_waits() -> None:
    async def verify(_: Rollout) -> float:
        return 1.0

    async def run() -> float:
        started = anyio.current_time()
        await engine(verify, MANY).run(jobs(MANY), sampling=Sampling())
        return anyio.current_time() - started

    assert run_virtual(run) == 0.0
