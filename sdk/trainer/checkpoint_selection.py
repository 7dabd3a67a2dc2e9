"""Which weights a run ends with: those that do best on tasks kept aside, which nothing else was done with. Those that
the run began with are among them, so that no run ends with a worse model than it began with as far as it can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evaluation import figures
from ..evaluation.conditions import ConditionSummary, best_condition, summarise_condition
from ..evaluation.measuring import measure
from ..policies.tool_prompt import shown_by_default
from ..progress import Progress
from ..records import Rollout, Task
from ..rollouts.engine import RolloutEngine
from ..traces.run_folder import RunFolder
from .config import TrainConfig
from .rollout_worker import STAGE
from .validation import LAST_STAGE, UNTRAINED_STAGE, VALIDATION, WARM_STAGE, figures_of, stage_of_step

if TYPE_CHECKING:
    from .learner import Learner

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
    """Untrained, after the warm start, after each checkpoint of GRPO and after its last step, in this order."""
    found = [Candidate("untrained", UNTRAINED_STAGE, checkpoints / "untrained", 0)]
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


async def keep_untrained(
    learner: Learner,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    *,
    folder: RunFolder,
    config: TrainConfig,
    progress: Progress,
) -> None:
    """Before anything is trained: keep the weights that the run begins with, and measure them on `tasks`."""
    if folder.stage(CHOICE) is not None:
        return
    untrained = candidates(folder.checkpoints, config)[0]
    learner.keep(untrained.folder)
    await _measure(untrained, engine, tasks, folder=folder, config=config, progress=progress)


async def choose_checkpoint(
    learner: Learner,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    *,
    folder: RunFolder,
    config: TrainConfig,
    progress: Progress,
) -> tuple[str, dict[str, Any]]:
    """Measure every candidate on `tasks` and leave the learner with the best, see `choose`. Done once; a resumed run
    takes what was chosen.

    Returns its name, and what the report says of the choice.
    """
    kept = folder.checkpoints / "chosen"
    done = folder.stage(CHOICE)
    if done is not None:
        await learner.use(kept, version=done["version"])
        return done["chosen"], done["facts"]
    found = candidates(folder.checkpoints, config)
    measured: dict[str, list[Rollout]] = {}
    for candidate in found:
        await learner.use(candidate.folder, version=candidate.version)
        rollouts = await _measure(candidate, engine, tasks, folder=folder, config=config, progress=progress)
        measured[candidate.name] = rollouts
        if config.evaluate_every is not None and candidate.stage == LAST_STAGE:
            folder.drop_metrics_after(candidate.version - 1, VALIDATION)
            folder.append_metrics(figures_of(candidate.version, rollouts, config.success_threshold))
    choice = choose(measured, threshold=config.success_threshold)
    best = next(candidate for candidate in found if candidate.name == choice.name)
    await learner.use(best.folder, version=best.version)
    learner.keep(kept)
    folder.record_weights(kept, version=best.version)
    facts = {
        "handed_over": choice.reason,
        "chosen_weights": best.name,
        "validation": {"tasks": choice.tasks, "families": choice.families, "success": choice.success},
    }
    folder.finish_stage(CHOICE, {"chosen": best.name, "version": best.version, "facts": facts})
    progress.say(choice.reason)
    return best.name, facts


async def _measure(
    candidate: Candidate,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    *,
    folder: RunFolder,
    config: TrainConfig,
    progress: Progress,
) -> list[Rollout]:
    """Rollouts with the weights that the engine has now, sampled as the held-out tasks are."""
    return await measure(
        engine,
        tasks,
        stage=candidate.stage,
        folder=folder,
        progress=progress,
        title=f"kept-aside tasks, {candidate.name}",
        seed=config.seed,
        threshold=config.success_threshold,
        tool_prompt=shown_by_default(config.tool_prompt),
    )


@dataclass(frozen=True)
class Choice:
    """One of the measured weights. `success`: of each, on the `tasks` that are scored with all of them."""

    name: str
    reason: str
    tasks: int
    families: int
    success: dict[str, float]


def choose(measured: Mapping[str, Sequence[Rollout]], *, threshold: float) -> Choice:
    """The best of several weights, by their rollouts on the same tasks. The most success counts; of equals the higher
    mean score; of equals the later weights, so that a tie costs no training.

    `measured`: by name, the last weights last. They are compared on the tasks that are scored with all of them; where
    there is none, the last weights are taken.
    """
    last = list(measured)[-1]
    scored = [{rollout.task.id for rollout in rollouts if rollout.scored} for rollouts in measured.values()]
    common = set.intersection(*scored)
    if not common:
        reason = f"no task kept aside could be scored with all weights: {_weights(last)} are handed over unchosen"
        return Choice(last, reason, 0, 0, {})
    summaries = {
        name: summarise_condition([r for r in rollouts if r.task.id in common], threshold=threshold)
        for name, rollouts in reversed(list(measured.items()))
    }
    best = best_condition(summaries)
    families = len({rollout.task.family for rollout in measured[last] if rollout.task.id in common})
    unscored = len({rollout.task.id for rollout in measured[last]} - common)
    left_out = f" ({unscored} left out, which could not be scored with all weights)" if unscored else ""
    return Choice(
        name=best,
        reason=f"{_compared(best, last, summaries)} on {_tasks(len(common), families)}{left_out}: "
        f"{_weights(best)} are handed over",
        tasks=len(common),
        families=families,
        success={name: _success(summaries[name]) for name in measured},
    )


def _compared(best: str, last: str, summaries: Mapping[str, ConditionSummary]) -> str:
    if best == last:
        return f"no earlier weights do better than {last} ({figures.percent(_success(summaries[last]))})"
    lost = _success(summaries[best]) - _success(summaries[last])
    if lost > 0:
        return f"{last} is {100 * lost:.3g} points below {best}"
    return f"{last} has the success of {best} and a lower mean score"


def _success(summary: ConditionSummary) -> float:
    assert summary.success is not None
    return summary.success.interval.estimate


def _tasks(tasks: int, families: int) -> str:
    return f"{tasks} kept-aside task{'' if tasks == 1 else 's'} of {families} famil{'y' if families == 1 else 'ies'}"


def _weights(name: str) -> str:
    if name.startswith("step "):
        return f"the weights after {name}"
    known = {"untrained": "the untrained weights", "after warm start": "the weights after the warm start"}
    return known.get(name, f"the last weights, {name},")
