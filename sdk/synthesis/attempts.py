"""Attempts of a policy at a task: how hard it is, and whether it is ambiguous."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_bridge import Toolset
from sandboxes import diff

from ..policies.protocol import Agent, Sampling
from ..records import Rollout, Task
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..rollouts.seeds import derive_seed
from ..trainer.config import CurriculumOptions, TrainConfig
from ..trainer.curriculum import Difficulty
from ..verifiers import all_of, answer_match, final_state
from .task_checks import normalised

_AGREEING = 0.5
"""The share of attempts that must come to one other end for a task to count as ambiguous."""


@dataclass(frozen=True)
class Tried:
    """What came of the attempts. `success`: the share that was right, of those that could be scored."""

    success: float
    scored: int
    other_end: int
    """How many came to one end that is not the gold one."""

    @property
    def ambiguous(self) -> bool:
        return self.other_end >= max(2, _AGREEING * self.scored)


async def tried(
    source: Toolset, agent: Agent, task: Task, *, attempts: int, limits: Limits, seed: int
) -> tuple[Tried, list[Rollout]]:
    """Play a task `attempts` times at temperature 1, each in a world of its own."""
    engine = RolloutEngine(
        agent=agent, source=source, verifier=all_of(final_state(), answer_match()), limits=limits, concurrency=attempts
    )
    jobs = [
        Job(
            id=f"attempt/{task.id}/{n}", task=task, seed=derive_seed(seed, "attempt", task.id, n), group=task.id, step=0
        )
        for n in range(attempts)
    ]
    rollouts = await engine.run(jobs, sampling=Sampling(temperature=1.0, max_tokens=limits.max_turn_tokens))
    scored = [rollout for rollout in rollouts if rollout.scored and rollout.verdict is not None]
    wrong = [r for r in scored if r.verdict is not None and r.verdict.score < 1 and r.stop_reason == "answered"]
    ends = Counter(_end(rollout) for rollout in wrong if any(not record.result.is_error for record in rollout.calls))
    most = max(ends.values(), default=0)
    success = (len(scored) - sum(r.verdict is not None and r.verdict.score < 1 for r in scored)) / max(1, len(scored))
    return Tried(success, len(scored), most), rollouts


def is_left_out(task: Task, rollouts: Sequence[Rollout], band: tuple[float, float]) -> bool:
    """Whether training with this `curriculum.difficulty_filter` would leave the task out after these rollouts."""
    filtered = Difficulty([task], TrainConfig(curriculum=CurriculumOptions(difficulty_filter=band)))
    filtered.observe(rollouts)
    return bool(filtered.left_out(1))


def _end(rollout: Rollout) -> str:
    """What an attempt came to: the changes it made and what it said."""
    changes = diff(rollout.initial_state or {}, rollout.final_state or {})
    return json.dumps([changes, normalised(rollout.answer)], sort_keys=True, default=str)
