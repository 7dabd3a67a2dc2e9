"""Success in the midst of training: greedy, on validation tasks, with the weights that a step's rollouts come from.

What is measured here is kept under the names by which `choosing` looks for it, so that a checkpoint of the same step is
not measured again when one is chosen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import anyio

from ..evaluation.conditions import summarise_condition
from ..evaluation.measuring import measure
from ..policies.tool_prompt import shown_by_default
from ..records import Rollout, Task
from ..rollouts.engine import RolloutEngine
from ..rollouts.stream import StreamClosed
from ..traces.run_folder import RunFolder
from ..verifiers import VerifierLike
from .config import TrainConfig

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


def successes(folder: RunFolder) -> dict[int, float]:
    """What was measured so far, by step."""
    lines = [line for line in folder.read_metrics() if line.get("stage") == VALIDATION and "success" in line]
    return {int(line["step"]): float(line["success"]) for line in lines}


def forget_after(folder: RunFolder, done: int) -> None:
    """Before a run goes on after step `done`: what was measured of later weights, which are trained again."""
    folder.drop_metrics_after(done - 1, VALIDATION)  # those of `done` are read from the folder again
    for stage in folder.rollout_stages():
        found = _STEP_STAGE.fullmatch(stage)
        if found is not None and int(found[1]) > done:
            folder.drop_after(stage, -2)


class Validating:
    """Measures every `evaluate_every` steps, the first time before the first step."""

    def __init__(self, engine: RolloutEngine, tasks: Sequence[Task], *, config: TrainConfig, folder: RunFolder) -> None:
        self._engine = engine_beside(engine, engine.verifier)
        self._tasks = tasks
        self._config = config
        self._folder = folder
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self.seconds = 0.0
        """That measuring took in the latest step."""
        self.success: dict[int, float] = successes(folder)
        """By step."""

    async def measure(self, step: int) -> None:
        """Measure the present weights, which have done `step` steps, where it is time to.

        Raises `StreamClosed` where training was stopped meanwhile, and `ToolbakeError` where nothing could be scored.
        """
        self.seconds = 0.0
        every = self._config.evaluate_every
        if every is None or step % every or self._stopped:
            return
        started = time.monotonic()
        first = WARM_STAGE if self._config.warm_start_steps else UNTRAINED_STAGE
        rollouts: list[Rollout] = []
        with anyio.CancelScope() as self._scope:
            rollouts = await measure(
                self._engine,
                self._tasks,
                stage=stage_of_step(step) if step else first,
                folder=self._folder,
                seed=self._config.seed,
                threshold=self._config.success_threshold,
                tool_prompt=shown_by_default(self._config.tool_prompt),
            )
        if self._scope.cancelled_caught:
            raise StreamClosed("training was stopped while validation tasks were measured")
        line = figures_of(step, rollouts, self._config.success_threshold)
        self._folder.append_metrics(line)
        if "success" in line:
            self.success[step] = line["success"]
        self.seconds = time.monotonic() - started

    def stop(self) -> None:
        """Give up what is being measured; whoever waits hears of it."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()


def engine_beside(engine: RolloutEngine, verifier: VerifierLike | None) -> RolloutEngine:
    """Another engine on the same agent and tools, so that what it plays does not mix with the first one's counts."""
    return RolloutEngine(
        agent=engine.agent,
        source=engine.source,
        verifier=verifier,
        limits=engine.limits,
        concurrency=engine.concurrency,
        verifier_timeout_s=engine.verifier_timeout_s,
        on_call=engine.on_call,
    )
