"""Which weights a run ends with: those that do best on validation tasks, which nothing else was done with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evaluation.conditions import best_condition, summarise_condition
from ..evaluation.measuring import measure
from ..policies.tool_prompt import shown_by_default
from ..progress import Progress
from ..records import Task
from ..rollouts.engine import RolloutEngine
from ..traces.run_folder import RunFolder
from .collecting import STAGE
from .config import TrainConfig
from .validating import LAST_STAGE, VALIDATION, WARM_STAGE, figures_of, stage_of_step

if TYPE_CHECKING:
    from .stages import Learner

CHOICE = "choice"
"""The stage that says what was chosen."""


@dataclass(frozen=True)
class Candidate:
    """Weights that a run has kept. `version`: the steps of GRPO in them, by which token rows name them."""

    name: str
    stage: str
    folder: Path
    version: int


def candidates(checkpoints: Path, config: TrainConfig) -> list[Candidate]:
    """After the warm start, after each checkpoint of GRPO and after its last step, in this order."""
    found = []
    if config.warm_start_steps:
        found.append(Candidate("after warm start", WARM_STAGE, checkpoints / "warm_start", 0))
    steps = sorted(int(path.name.rpartition("-")[2]) for path in (checkpoints / STAGE).glob("checkpoint-*"))
    found += [
        Candidate(f"step {step}", stage_of_step(step), checkpoints / STAGE / f"checkpoint-{step}", step)
        for step in steps
        if step < config.grpo_steps
    ]
    if config.grpo_steps:
        found.append(Candidate("after GRPO", LAST_STAGE, checkpoints / "trained", config.grpo_steps))
    return found


async def choose_checkpoint(
    learner: Learner,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    *,
    folder: RunFolder,
    config: TrainConfig,
    progress: Progress,
) -> tuple[str, dict[str, Any]]:
    """Measure every candidate on `tasks` and leave the learner with the best: that with the most success, of equals
    that with the higher mean score, then the least trained. Done once; a resumed run takes what was chosen.

    Returns its name, and what the report says of the choice.
    """
    kept = folder.checkpoints / "chosen"
    done = folder.stage(CHOICE)
    if done is not None:
        await learner.use(kept, version=done["version"])
        return done["chosen"], done["facts"]
    found = candidates(folder.checkpoints, config)
    summaries = {}
    for candidate in found:
        await learner.use(candidate.folder, version=candidate.version)
        rollouts = await measure(
            engine,
            tasks,
            stage=candidate.stage,
            folder=folder,
            progress=progress,
            title=f"validation, {candidate.name}",
            seed=config.seed,
            threshold=config.success_threshold,
            tool_prompt=shown_by_default(config.tool_prompt),
        )
        summaries[candidate.name] = summarise_condition(rollouts, threshold=config.success_threshold)
        if config.evaluate_every is not None and candidate.stage == LAST_STAGE:
            folder.drop_metrics_after(candidate.version - 1, VALIDATION)
            folder.append_metrics(figures_of(candidate.version, rollouts, config.success_threshold))
    best = next(candidate for candidate in found if candidate.name == best_condition(summaries))
    await learner.use(best.folder, version=best.version)
    learner.keep(kept)
    folder.record_weights(kept, version=best.version)
    rates = {name: c.success.interval.estimate for name, c in summaries.items() if c.success is not None}
    facts = {"chosen_weights": best.name, "validation": {"tasks": len(tasks), "success": rates}}
    folder.finish_stage(CHOICE, {"chosen": best.name, "version": best.version, "facts": facts})
    progress.say(f"chosen on {len(tasks)} validation tasks: {best.name}")
    return best.name, facts
