"""The rollouts that a step asks for: a group for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from ..policies.tool_prompt import TOOL_PROMPTS
from ..records import Rollout, Task, ToolPrompt
from ..rollouts.episode import Job
from ..rollouts.seeds import derive_seed
from .config import TrainConfig

# ---------------------------------------------------------------------------------------------------------------------
# Which of the tool prompts that a model is trained with a demonstration or a group of rollouts is shown.


def drawn_tool_prompt(config: TrainConfig, *names: object) -> ToolPrompt:
    """One of `config.tool_prompt`, by the shares there: the same for the same seed and `names`, so that the rollouts of
    a group share their prompt, and a run that goes on draws the same."""
    shares = config.tool_prompt
    if not isinstance(shares, Mapping):
        return shares
    place = derive_seed(config.seed, "tool prompt", *names) / 2**63
    reached = 0.0
    given = [length for length in TOOL_PROMPTS if length in shares]
    for length in given:
        reached += shares[length]
        if place < reached:
            return length
    return given[-1]  # shares that add up to a little less than 1


def rewards_by_prompt(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """For the metrics of a step: the mean score of the scored rollouts of each tool prompt, `reward/names` and such."""
    scores: dict[ToolPrompt, list[float]] = {}
    for rollout in rollouts:
        if rollout.scored and rollout.verdict is not None:
            scores.setdefault(rollout.tool_prompt, []).append(rollout.verdict.score)
    return {f"reward/{length}": fmean(scores[length]) for length in TOOL_PROMPTS if length in scores}


# ---------------------------------------------------------------------------------------------------------------------


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
