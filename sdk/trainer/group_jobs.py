"""The rollouts that a step asks for: a group for each task."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Task
from ..rollouts.episode import Job
from ..rollouts.seeds import derive_seed
from .config import TrainConfig
from .drawn_prompts import drawn_tool_prompt


def group_jobs(stage: str, step: int, tasks: Sequence[Task], *, config: TrainConfig, group: str) -> list[Job]:
    """`group_size` jobs for each task, one task after the other; those of a task share their tool prompt.

    `group`: what the names of the groups begin with.
    """
    return [
        Job(
            id=f"{stage}/{step}/{task.id}/{member}",
            task=task,
            seed=derive_seed(config.seed, stage, step, task.id, member),
            group=f"{group}/{task.id}",
            step=step,
            tool_prompt=drawn_tool_prompt(config, stage, step, task.id),
        )
        for task in tasks
        for member in range(config.group_size)
    ]
