"""Success on the tasks that are kept aside: it is measured during training, and it decides with which weights a run
ends. The weights that the run began with are among them, so that no run ends with a worse model as far as it can tell.

Success before the training, on the same tasks, also decides whether demonstrations are searched (`needs_none`). Nothing
else is done with these tasks. What was measured of a step's weights is not measured again when some are chosen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from ..evaluation.conditions import ConditionSummary, best_condition, is_success, summarise_condition
from ..evaluation.measurement import measure
from ..evaluation.report_text import percent
from ..policies.tool_prompt import shown_by_default
from ..progress import Silent
from ..records import Rollout, Task
from ..rollouts.engine import RolloutEngine, StreamClosed
from ..rollouts.run_context import RunContext
from ..synthesis.found_demonstrations import STAGE as SEARCH_STAGE
from ..tasks import spread, tasks_of_families
from ..traces.run_folder import RunFolder
from .config import TrainConfig
from .groups import STAGE
from .run_identity import candidate_steps

if TYPE_CHECKING:
    from .learner import Learner


VALIDATION = "validation"
"""The stage under which `metrics.jsonl` has what was measured, by step."""
UNTRAINED_STAGE, WARM_STAGE, LAST_STAGE = "validation_untrained", "validation_warm_start", "validation_grpo"
_STEP_STAGE = re.compile(r"validation_step_(\d+)")


def stage_of_step(step: int) -> str:
    """The stage of the rollouts that validation tasks got with the weights after `step` steps."""
    return f"validation_step_{step}"


def figures_of(step: int, rollouts: Sequence[Rollout], threshold: float) -> dict[str, Any]:
    """A line of metrics. `step`: how many steps are in the weights."""
    summary = summarise_condition(rollouts, threshold=threshold)
    line: dict[str, Any] = {"stage": VALIDATION, "step": step, "tasks": len(rollouts), "unscored": summary.unscored}
    if summary.success is not None:
        interval = summary.success.interval
        line |= {"success": interval.estimate, "low": interval.low, "high": interval.high}
    return line | ({"score": summary.score.estimate} if summary.score is not None else {})


def measured_so_far(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """The lines of metrics by step, where something was scored: they have success and the mean score."""
    lines = (line for line in folder.read_metrics() if line.get("stage") == VALIDATION)
    return {int(line["step"]): line for line in lines if "success" in line}


def forget_after(folder: RunFolder, done: int) -> None:
    """Before a run goes on after step `done`: what was measured of later weights, which are trained again."""
    folder.drop_metrics_after(done - 1, VALIDATION)  # those of `done` are read from the folder again
    for stage in folder.rollout_stages():
        found = _STEP_STAGE.fullmatch(stage)
        if found is not None and int(found[1]) > done:
            folder.drop_after(stage, -2)


class StoppedEarly(Exception):
    """GRPO ends with the present weights, since success on the kept-aside tasks fell. `step`: how many steps are in
    them."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"GRPO ended early, after {step} steps: {reason}")
        self.step = step


_A_FALL, _TASKS_OF_A_FALL = 0.1, 2


def fall(
    success: Mapping[int, float], scores: Mapping[int, float], patience: int, *, tasks: int, since: int = 0
) -> str | None:
    """Words where the latest `patience` measurements are all below the best one before them, by a tenth of the `tasks`
    and by two of them at least: one task more or less is chance. Else None. Nothing has fallen where fewer tasks are
    solved for a higher mean score, because a model learned to say that it does not know.

    `success` and mean `scores`: by step. `since`: a step; the latest ones are those after it.
    """
    steps = sorted(success)
    earlier, latest = steps[:-patience], steps[-patience:]
    if not patience or not earlier or latest[0] <= since:
        return None
    best = max(earlier, key=lambda step: success[step])
    least = max(_A_FALL, _TASKS_OF_A_FALL / tasks) - 1e-9
    if success[best] - max(success[step] for step in latest) < least:
        return None
    if max(scores[step] for step in latest) > scores[best]:
        return None
    rates = ", ".join(percent(success[step]) for step in latest)
    return (
        f"success on the kept-aside tasks was {percent(success[best])} after step {best}, and lower in the last "
        f"{patience} measurements ({rates})"
    )


class Validating:
    """Measures every `eval_steps` steps, or at every checkpoint that is kept to choose from; the first time before the
    first step. Ends the training where success falls."""

    def __init__(self, engine: RolloutEngine, tasks: Sequence[Task], config: TrainConfig, context: RunContext) -> None:
        self._engine = context.engine(engine.agent)  # of its own, so that its counts do not mix with those of training
        self._tasks = tasks
        self._config = config
        self._context = replace(context, progress=Silent())
        self._progress = context.progress
        self._folder = folder = context.run_folder
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self._patience = config.evaluation.early_stopping_patience if tasks else 0
        self._every = config.evaluation.eval_steps or (candidate_steps(config) if self._patience else None)
        self._since = (folder.stage(EARLIER_END) or {}).get("step", 0)
        self.seconds = 0.0
        """That measuring took in the latest step."""
        self._lines = measured_so_far(folder)

    @property
    def success(self) -> dict[int, float]:
        """By step."""
        return {step: line["success"] for step, line in self._lines.items()}

    async def measure(self, step: int) -> None:
        """Measure the present weights, which have done `step` steps, where it is time to.

        Raises `StreamClosed` where training was stopped meanwhile, `ToolbakeError` where nothing could be scored, and
        `StoppedEarly`.
        """
        self.seconds = 0.0
        if self._every is not None and step % self._every == 0 and not self._stopped:
            await self._measure(step)
        whole = {step: line["success"] for step, line in self._lines.items() if not line["unscored"]}
        scores = {step: line["score"] for step, line in self._lines.items()}
        reason = fall(whole, scores, self._patience, tasks=len(self._tasks), since=self._since)
        if reason is not None and step % self._config.grpo.save_steps == 0:  # a longer run begins from its checkpoint
            raise StoppedEarly(step, reason)

    async def _measure(self, step: int) -> None:
        started = time.monotonic()
        first = WARM_STAGE if self._config.warm_start.max_steps else UNTRAINED_STAGE
        rollouts: list[Rollout] = []
        with anyio.CancelScope() as self._scope:
            rollouts = await measure(
                self._engine,
                self._tasks,
                self._context,
                stage=stage_of_step(step) if step else first,
                tool_prompt=shown_by_default(self._config.tool_prompt),
                strict_tools=bool(self._config.evaluation.strict_tools),
            )
        if self._scope.cancelled_caught:
            raise StreamClosed("training was stopped while validation tasks were measured")
        line = figures_of(step, rollouts, self._config.evaluation.success_threshold)
        self._folder.append_metrics(line)
        if "success" in line:
            self._lines[step] = line
        if line["unscored"] and self._patience:
            self._progress.say(
                f"{line['unscored']} of {len(self._tasks)} kept-aside tasks have no score after step {step}: by this "
                "measurement GRPO does not end early"
            )
        self.seconds = time.monotonic() - started

    def stop(self) -> None:
        """Stop measuring. `measure` then raises `StreamClosed`."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()


# ---------------------------------------------------------------------------------------------------------------------
# Which weights a run ends with: those that do best on these tasks.

CHOICE = "choice"
"""The stage whose data is the choice."""


EARLIER_CHOICE = "earlier_choice"
"""The stage whose data is the version of the weights that a finished run had chosen, before it was trained longer."""

EARLIER_END = "earlier_end"
"""The stage whose data is the last step of a run before it was trained longer."""


@dataclass(frozen=True)
class Candidate:
    """Weights that a run has kept. `version`: the steps of GRPO in them, by which token rows name them."""

    name: str
    stage: str
    folder: Path
    version: int


def last_step(folder: RunFolder, config: TrainConfig) -> int:
    """How many steps of GRPO a finished run has made: fewer than `grpo.max_steps` where it ended early."""
    done = folder.stage(STAGE) or {}
    return int(done.get("last", config.grpo.max_steps))


def candidates(folder: RunFolder, config: TrainConfig) -> list[Candidate]:
    """Untrained, after the warm start, after each checkpoint of GRPO and after its last step, in this order. Of a run
    that is trained longer those that it had chosen, too."""
    checkpoints, last = folder.checkpoints, last_step(folder, config)
    found = [Candidate("untrained", UNTRAINED_STAGE, checkpoints / "untrained", 0)]
    if config.warm_start.max_steps:
        found.append(Candidate("after warm start", WARM_STAGE, checkpoints / "warm_start", 0))
    kept = {int(path.name.rpartition("-")[2]): path for path in (checkpoints / STAGE).glob("checkpoint-*")}
    if (earlier := folder.stage(EARLIER_CHOICE)) is not None and earlier["version"]:
        kept.setdefault(earlier["version"], checkpoints / "chosen")
    found += [
        Candidate(f"step {step}", stage_of_step(step), path, step) for step, path in sorted(kept.items()) if step < last
    ]
    if config.grpo.max_steps:
        stage = LAST_STAGE if last == config.grpo.max_steps else stage_of_step(last)  # measured before it ended early
        found.append(Candidate("after GRPO", stage, checkpoints / "trained", last))
    return found


async def keep_untrained(
    learner: Learner, engine: RolloutEngine, tasks: Sequence[Task], context: RunContext, config: TrainConfig
) -> None:
    """Before anything is trained: keep the weights that the run begins with, and measure them on `tasks`."""
    folder = context.run_folder
    if folder.stage(CHOICE) is not None:
        return
    untrained = candidates(folder, config)[0]
    learner.keep(untrained.folder)
    await _measure(untrained, engine, tasks, context, config)


async def choose_checkpoint(
    learner: Learner, engine: RolloutEngine, tasks: Sequence[Task], context: RunContext, config: TrainConfig
) -> tuple[str, dict[str, Any]]:
    """Measure every candidate on `tasks` and leave the learner with the best, see `choose`. Done once; a resumed run
    takes what was chosen.

    Returns its name, and facts of the choice for the report.
    """
    folder = context.run_folder
    kept = folder.checkpoints / "chosen"
    done = folder.stage(CHOICE)
    if done is not None:
        await learner.use(kept, version=done["version"])
        return done["chosen"], done["facts"]
    found, last = candidates(folder, config), last_step(folder, config)
    meanwhile = config.evaluation.eval_steps is not None or config.evaluation.early_stopping_patience
    measured: dict[str, list[Rollout]] = {}
    for candidate in found:
        await learner.use(candidate.folder, version=candidate.version)
        rollouts = await _measure(candidate, engine, tasks, context, config)
        measured[candidate.name] = rollouts
        if meanwhile and candidate.version == last > 0 and last not in measured_so_far(folder):
            folder.drop_metrics_after(candidate.version - 1, VALIDATION)
            folder.append_metrics(figures_of(candidate.version, rollouts, config.evaluation.success_threshold))
    choice = choose(measured, threshold=config.evaluation.success_threshold)
    best = next(candidate for candidate in found if candidate.name == choice.name)
    await learner.use(best.folder, version=best.version)
    if best.folder != kept:
        learner.keep(kept)
    folder.record_weights(kept, version=best.version)
    facts = {
        "handed_over": choice.reason,
        "chosen_weights": best.name,
        "validation": {"tasks": choice.tasks, "families": choice.families, "success": choice.success},
    }
    folder.finish_stage(CHOICE, {"chosen": best.name, "version": best.version, "facts": facts})
    context.progress.say(choice.reason)
    return best.name, facts


async def _measure(
    candidate: Candidate, engine: RolloutEngine, tasks: Sequence[Task], context: RunContext, config: TrainConfig
) -> list[Rollout]:
    """Rollouts with the weights that the engine has now, sampled as the held-out tasks are."""
    return await measure(
        engine,
        tasks,
        context,
        stage=candidate.stage,
        title=f"kept-aside tasks, {candidate.name}",
        tool_prompt=shown_by_default(config.tool_prompt),
        strict_tools=bool(config.evaluation.strict_tools),
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
    mean score; of equals the earliest weights: where these tasks show no gain, training may have done harm that they do
    not show. Where a score is below 0, the mean score counts before success: such a verifier makes a wrong answer cost
    more than none, which success does not tell apart.

    `measured`: by name, in the order of training. They are compared on the tasks that are scored with all of them;
    where there is none, the last weights are taken.
    """
    last = list(measured)[-1]
    scored = [{rollout.task.id for rollout in rollouts if rollout.scored} for rollouts in measured.values()]
    common = set.intersection(*scored)
    if not common:
        reason = f"no task kept aside could be scored with all weights: {_weights(last)} are handed over unchosen"
        return Choice(last, reason, 0, 0, {})
    summaries = {
        name: summarise_condition([r for r in rollouts if r.task.id in common], threshold=threshold)
        for name, rollouts in measured.items()
    }
    costly = any(r.verdict.score < 0 for made in measured.values() for r in made if r.verdict and r.scored)
    best = best_condition(summaries, by_score=costly)
    families = len({rollout.task.family for rollout in measured[last] if rollout.task.id in common})
    unscored = len({rollout.task.id for rollout in measured[last]} - common)
    left_out = f" ({unscored} left out, which could not be scored with all weights)" if unscored else ""
    compared_on = tasks_of_families(len(common), families, "kept-aside task")
    return Choice(
        name=best,
        reason=f"{_compared(best, last, summaries, by_score=costly)} on {compared_on}{left_out}: {_weights(best)} are "
        "handed over",
        tasks=len(common),
        families=families,
        success={name: _success(summaries[name]) for name in measured},
    )


def _compared(best: str, last: str, summaries: Mapping[str, ConditionSummary], *, by_score: bool) -> str:
    if by_score:
        if best == last:
            return f"{last} has the highest mean score ({_score(summaries[last]):.3g})"
        return f"{last} has a mean score of {_score(summaries[last]):.3g}, {best} {_score(summaries[best]):.3g}"
    if best == last:
        return f"{last} does best ({percent(_success(summaries[last]))})"
    lost = _success(summaries[best]) - _success(summaries[last])
    if lost > 0:
        return f"{last} is {100 * lost:.3g} points below {best}"
    score = "" if _score(summaries[best]) == _score(summaries[last]) else " and a lower mean score"
    return f"{last} has the success of {best} ({percent(_success(summaries[best]))}){score}"


def _success(summary: ConditionSummary) -> float:
    assert summary.success is not None
    return summary.success.interval.estimate


def _score(summary: ConditionSummary) -> float:
    assert summary.score is not None
    return summary.score.estimate


def _weights(name: str) -> str:
    if name.startswith("step "):
        return f"the weights after {name}"
    known = {"untrained": "the untrained weights", "after warm start": "the weights after the warm start"}
    return known.get(name, f"the last weights, {name},")


# ---------------------------------------------------------------------------------------------------------------------
# Before a training


FIRST_TRIES = "first_tries"
"""The stage of the rollouts where no task is kept aside, or those that are were measured otherwise."""
_TRIES = 16
ENOUGH = 0.1
"""Of the tasks. A model that solves fewer has no signal in most groups."""


async def needs_none(
    engine: RolloutEngine, train: Sequence[Task], validation: Sequence[Task], context: RunContext, config: TrainConfig
) -> bool:
    """Whether a model needs no demonstrations: untrained, it solves a tenth of the tasks kept aside, or of some
    training tasks where none are. Held-out tasks take no part. Decided once; a resumed run keeps to it."""
    done = context.run_folder.stage(SEARCH_STAGE)
    if done is not None:
        return bool(done.get("solved"))
    # As GRPO samples: calls that are valid by a grammar alone are not a signal for it.
    strict = config.rollouts.strict_tools
    measured = bool(validation) and strict == bool(config.evaluation.strict_tools)
    rollouts = await measure(
        engine,
        validation or spread(train, _TRIES),
        context,
        stage=UNTRAINED_STAGE if measured else FIRST_TRIES,
        title="first tries",
        tool_prompt=shown_by_default(config.tool_prompt),
        strict_tools=strict,
    )
    solved = sum(is_success(rollout, context.success_threshold) for rollout in rollouts)
    if solved < ENOUGH * sum(rollout.scored for rollout in rollouts):
        return False
    context.run_folder.finish_stage(SEARCH_STAGE, {"found": 0, "solved": solved, "tried": len(rollouts)})
    return True
