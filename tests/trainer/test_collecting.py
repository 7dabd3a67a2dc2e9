"""The rollouts of a step, played by a simulated policy and kept in a run folder: what goes on and what is recalled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from simulation import SimulatedPolicy, simulated_agent

from sandboxes.helpdesk import Helpdesk
from sdk.errors import ToolbakeError
from sdk.progress import Silent
from sdk.records import Message, Rollout, Task, ToolCall, Verdict
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.limits import Limits
from sdk.rollouts.run_context import RunContext
from sdk.traces import RunFolder
from sdk.trainer.batch import BatchStats
from sdk.trainer.config import TrainConfig
from sdk.trainer.curriculum import Curriculum
from sdk.trainer.rollout_worker import Collector

pytestmark = pytest.mark.timeout(60)
DESK = Helpdesk()
ORDER = next(iter(DESK.state()["orders"]))
TASKS = [Task(prompt=f"p{n}", id=f"t{n}", tags={"kind": "ab"[n % 2]}) for n in range(20)]


def look_then_say_a_number(turn: int, seed: int) -> Message:
    if turn == 0:
        look = ToolCall(id="", name="get_order", arguments={"order_id": ORDER})
        return Message(role="assistant", tool_calls=[look])
    return Message(role="assistant", content=str(seed % 5))


def even(rollout: Rollout) -> Verdict:
    right = float(int(rollout.answer) % 2 == 0)
    return Verdict(score=right, turn_rewards=[0.0] * (rollout.turns - 1) + [right])


def collector(folder: RunFolder, verifier: Any = even, **options: Any) -> tuple[Collector, Curriculum]:
    config = TrainConfig.of({"grpo.num_generations": 2, "grpo.prompts_per_step": 3, "grpo.max_steps": 6, **options})
    engine = RolloutEngine(
        agent=simulated_agent(SimulatedPolicy(look_then_say_a_number, latency_s=0)),
        source=DESK,
        verifier=verifier,
        limits=Limits(max_turn_tokens=1000, max_tokens=10_000),
        concurrency=8,
    )
    curriculum = Curriculum(TASKS, config)
    with Silent().track("", 0) as step:
        context = RunContext(
            tools=engine.source, verifier=engine.verifier, limits=engine.limits, concurrency=8, folder=folder
        )
        return Collector(engine, curriculum, config, context, step=step), curriculum


async def collect(made: Collector, steps: Iterable[int]) -> list[BatchStats]:
    async with made.sampling():
        return [(await anyio.to_thread.run_sync(made, step)).stats for step in steps]


@contextlib.contextmanager
def new_folder(path: Path) -> Any:
    with RunFolder.create_or_resume(path, {"seed": 0}) as folder:
        yield folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grpo.advantages": "turn"},
        {"curriculum.dynamic_sampling_rounds": 2},
        {"curriculum.dynamic_sampling_rounds": 2, "rollouts.branches": 2},
        {"off_policy.max_off_policy_steps": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_a_resumed_run_takes_the_tasks_that_it_would_have_taken(
    options: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    options = {"curriculum.by": "kind", "seed": seed, **options}
    with new_folder(tmp_path / "run") as folder:
        first, before = collector(folder, **options)
        await collect(first, range(4))
        again, after = collector(folder, **options)
        again.recall(4)
        later = range(4 + options.get("off_policy.max_off_policy_steps", 0), 9)
        assert [[task.id for task in after.choose(step)] for step in later] == [
            [task.id for task in before.choose(step)] for step in later
        ]


async def test_a_further_group_that_breaks_is_counted_and_the_step_goes_on(tmp_path: Path) -> None:
    first = {task.id for task in Curriculum(TASKS, TrainConfig.of({"grpo.prompts_per_step": 3})).choose(0)}

    def judge_is_down_for_others(rollout: Rollout) -> float:
        if rollout.task.id not in first:
            raise ConnectionError("the judge is down")
        return 1.0  # no signal, so that others are taken

    with new_folder(tmp_path / "run") as folder:
        made, _ = collector(folder, judge_is_down_for_others, **{"curriculum.dynamic_sampling_rounds": 1})
        (stats,) = await collect(made, range(1))
        assert (stats.rollouts, stats.unscored) == (12, 6)
        assert (stats.groups_all_right, stats.groups_unscored) == (3, 3)
        assert len(folder.read_rollouts("grpo")) == 12


async def test_a_step_of_which_nothing_can_be_scored_ends_the_run(tmp_path: Path) -> None:
    def broken(rollout: Rollout) -> float:
        raise ConnectionError("the judge is down")

    with new_folder(tmp_path / "run") as folder:
        made, _ = collector(folder, broken, **{"curriculum.dynamic_sampling_rounds": 1})
        with pytest.raises(ToolbakeError, match=r"GRPO step 0: none of 6 rollouts could be scored.*the judge is down"):
            await collect(made, range(1))
