"""Callbacks of TRL's trainers: they write metrics into the run folder, show progress, stop training and delete
checkpoints."""

from __future__ import annotations

import math
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..progress import Step
from ..traces.run_folder import RunFolder
from .config import TrainConfig
from .curriculum import Curriculum
from .groups import STAGE
from .rollout_worker import Collector
from .run_identity import LATEST_KEPT, candidate_steps

_CHECKPOINT = f"{PREFIX_CHECKPOINT_DIR}-"
PUBLISHING = "seconds/publish"
"""The figure of how long the sampler took to get the weights of a step."""


class StopOnRequest(TrainerCallback):  # type: ignore[misc]
    """Ends training after the current micro-batch once `stop` is set: how cancellation reaches the thread."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        control.should_training_stop = control.should_training_stop or self._stop.is_set()

    on_step_end = on_substep_end


class WarmStartProgress(TrainerCallback):  # type: ignore[misc]
    """The warm start's losses, as metrics and in the bar."""

    def __init__(self, folder: RunFolder, step: Step) -> None:
        self._folder = folder
        self._progress = step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ARG002
        if logs and "loss" in logs:
            line = {"stage": "warm_start", "step": state.global_step - 1, "loss": float(logs["loss"])}
            self._folder.append_metrics(line)
            self._progress.advance(note=f"loss {float(logs['loss']):.3f}")


class SaveWithin(TrainerCallback):  # type: ignore[misc]
    """A checkpoint after every `save_steps`, but for the last step: what comes of a warm start is kept anyway."""

    def __init__(self, save_steps: int) -> None:
        self._every = save_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._every == 0 and state.global_step < args.max_steps:
            control.should_save = True


class ThinCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Keeps the latest checkpoints and a few that lie evenly over the run, of which one may be chosen at its end. A
    checkpoint has the optimiser's moments, too: all of a long run's would fill the disk."""

    def __init__(self, config: TrainConfig) -> None:
        self._every = candidate_steps(config)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        folders = {int(path.name.rpartition("-")[2]): path for path in Path(args.output_dir).glob(f"{_CHECKPOINT}*")}
        for step in sorted(folders)[:-LATEST_KEPT]:
            if step % self._every:
                shutil.rmtree(folders[step])


class StepMetrics(TrainerCallback):  # type: ignore[misc]
    """One line of metrics for each GRPO step: what the rollouts were worth and what the update did."""

    def __init__(self, folder: RunFolder, collector: Collector, curriculum: Curriculum) -> None:
        self._folder = folder
        self._curriculum = curriculum
        self._collector = collector
        self._step_ended = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._step_ended = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ARG002
        if not logs or "loss" not in logs:
            return
        now = time.monotonic()
        stats, rollout_seconds = self._collector.stats, self._collector.rollout_seconds
        validation_seconds = self._collector.validating.seconds
        publish_seconds = float(logs.get(PUBLISHING, 0.0))
        update_seconds = now - self._step_ended - rollout_seconds - validation_seconds - publish_seconds
        self._step_ended = now
        line: dict[str, Any] = {
            "stage": STAGE,
            "step": state.global_step - 1,
            "reward": stats.mean_score,
            "rollouts": stats.rollouts,
            "skipped_rollouts": stats.unscored,
            "groups_with_signal": stats.groups_with_signal,
            "groups_without_signal": stats.groups - stats.groups_with_signal,
            "groups_all_right": stats.groups_all_right,
            "groups_all_wrong": stats.groups_all_wrong,
            "groups_unscored": stats.groups_unscored,
            "rollouts_cut_off": stats.cut_off,
            **self._curriculum.difficulty.counts(state.global_step),
            "sampled_tokens": stats.sampled_tokens,
            "trained_tokens": stats.trained_tokens,
            "trained_rows": stats.trained_rows,
            "seconds/rollout": rollout_seconds,
            "seconds/update": update_seconds,
            PUBLISHING: publish_seconds,
            **self._collector.audit_figures,
            **({"seconds/validation": validation_seconds} if validation_seconds else {}),
        }
        wanted = {"loss", "grad_norm", "learning_rate", "entropy", "kl", "aux_loss", "cispo_clip_ratio"}
        wanted |= {"rows_over_budget", "micro_batches"}
        for name, value in logs.items():
            if (name in wanted or name.startswith(("sampler_gap/", "clip_ratio/", "vespo/"))) and value is not None:
                number = float(value)
                if math.isfinite(number):
                    line[name] = number
                else:
                    line[f"{name}/not_finite"] = str(number)
        self._folder.append_metrics(line)
        self._collector.finished_step()
