"""From the trainer's thread to the event loop and back: one step's rollouts on request.

The trainer is synchronous and runs in a worker thread; rollouts run in the event loop that opened the
tools. `Collector` is the one place where the two meet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import anyio.from_thread

from ..evaluation.measuring import require_scores
from ..policies.protocol import Sampling
from ..progress import Step
from ..records import Rollout, Task
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.seeds import derive_seed
from ..traces.run_folder import RunFolder
from .batch import Batch, BatchStats, build_batch
from .config import TrainConfig
from .curriculum import Curriculum

STAGE = "grpo"


class TrainingStopped(Exception):
    """Training was cancelled; what the last checkpoint does not have is done again by the next run."""


class Collector:
    """Answers the trainer's `CollectBatch`: runs a group for each task, keeps every rollout in the folder."""

    def __init__(
        self, engine: RolloutEngine, curriculum: Curriculum, *, config: TrainConfig, folder: RunFolder, step: Step
    ) -> None:
        self._engine = engine
        self._curriculum = curriculum
        self._config = config
        self._folder = folder
        self._progress = step
        self.stats = BatchStats()
        """Of the latest step."""
        self.rollout_seconds = 0.0
        self._scope: anyio.CancelScope | None = None

    def __call__(self, step: int) -> Batch:
        self.rollout_seconds = 0.0
        groups = self._groups(step, self._curriculum.choose(step))
        batch = self._batch(groups)
        for round_number in range(1, self._config.resample_rounds + 1):
            missing = self._config.prompts_per_step - batch.stats.groups_with_signal
            taken = [group[0].task.id for group in groups]
            tasks = self._curriculum.choose_more(step, round_number, missing, taken)
            if not tasks:
                break
            groups += self._groups(step, tasks)
            batch = self._batch(groups)
        self.stats = batch.stats
        return batch

    def _groups(self, step: int, tasks: Sequence[Task]) -> list[list[Rollout]]:
        started = time.monotonic()
        rollouts = anyio.from_thread.run(self._run, step, tasks)
        if rollouts is None:
            raise TrainingStopped(f"stopped while the rollouts of step {step} were being sampled")
        self._curriculum.observe(rollouts)
        self.rollout_seconds += time.monotonic() - started
        size = self._config.group_size
        return [rollouts[start : start + size] for start in range(0, len(rollouts), size)]

    def _batch(self, groups: Sequence[Sequence[Rollout]]) -> Batch:
        config = self._config
        return build_batch(
            groups,
            scale=config.scale_advantages,
            baseline=config.baseline,
            negative_weight=config.negative_weight,
            mask_cut_off=config.mask_cut_off,
            average_over_signal=config.resample_rounds > 0,
        )

    def stop(self) -> None:
        """Give up the rollouts in flight; the waiting trainer then raises `TrainingStopped`."""
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self, step: int, tasks: Sequence[Task]) -> list[Rollout] | None:
        jobs = [
            Job(
                id=f"{STAGE}/{step}/{task.id}/{member}",
                task=task,
                seed=derive_seed(self._config.seed, STAGE, step, task.id, member),
                group=f"{step}/{task.id}",
                step=step,
            )
            for task in tasks
            for member in range(self._config.group_size)
        ]
        sampling = Sampling(temperature=self._config.temperature, max_tokens=self._engine.limits.max_turn_tokens)
        with anyio.CancelScope() as self._scope:
            rollouts = await self._engine.run(jobs, sampling=sampling)
        if self._scope.cancelled_caught:
            return None
        for rollout in rollouts:
            self._folder.append_rollout(STAGE, rollout)
        require_scores(rollouts, what=f"GRPO step {step}")
        return rollouts

    def finished_step(self) -> None:
        """Called by the trainer after the optimiser's step."""
        score = self.stats.mean_score
        note = f"reward {score:.2f}" if score is not None else "nothing scored"
        self._progress.advance(note=f"{note}, {self.stats.groups_with_signal}/{self.stats.groups} groups with signal")
