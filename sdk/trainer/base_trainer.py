"""The base of both stages' trainers adds to TRL's what they lack. It trains sharded weights, stops at a gradient that
is not finite, and sends no telemetry. Its callbacks write metrics into the run folder, show progress, stop the training
and delete checkpoints."""

from __future__ import annotations

import copy
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import save_fsdp_optimizer
from huggingface_hub import constants
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import ConfigError, ToolbakeError
from ..progress import Step
from ..traces.run_folder import RunFolder
from . import sharding
from .config import TrainConfig
from .curriculum import Curriculum
from .groups import STAGE
from .lora import load_kept
from .processes import by_deepspeed, sharded, world_size
from .rollout_worker import Collector, TrainingStopped
from .run_identity import LATEST_KEPT, candidate_steps

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Inside, `HF_HUB_DISABLE_TELEMETRY` is as if it were set: TRL reports each trainer that is made to its hub."""
    with _ONE_AT_A_TIME:
        before = constants.HF_HUB_DISABLE_TELEMETRY
        constants.HF_HUB_DISABLE_TELEMETRY = True
        try:
            yield
        finally:
            constants.HF_HUB_DISABLE_TELEMETRY = before


class OneGpu:
    """Mixed into a trainer's arguments: a process trains on one GPU, the one of its rank. With several in sight
    transformers would spread rows over all of them (DataParallel), which tears shared prefixes apart and takes the GPUs
    that sample."""

    @property
    def n_gpu(self) -> int:
        seen: int = super().n_gpu  # type: ignore[misc]
        return min(1, seen)


class BaseTrainer:
    """Mixed into a trainer of TRL. Each update asks the accelerator for the norm of the gradients of all processes
    (under DeepSpeed after it, but before anything is published or kept). A norm that is not finite ends the run.

    Where weights are sharded, a copy of the model is trained. In the first process the model itself gets the copy's
    weights whenever `whole_model` is called, and at the end of training.

    Overridden are, of the documented methods, `train`, `save_model` and `create_accelerator_and_postprocess`, and where
    FSDP2 shards, two that are not documented, as there is no other way: transformers would look for its own form of
    sharded weights in a checkpoint (`_load_from_checkpoint`), and write it there beside the whole weights
    (`_save_optimizer_and_scheduler`).
    """

    def __init__(self, *, model: Any, **kwargs: Any) -> None:
        self._whole = model
        self._gathered_at: int | None = None
        own = model
        if sharded():
            check_seams()
            sharding.make_room(own := copy.deepcopy(model))
        with without_telemetry():
            super().__init__(model=own, **kwargs)  # type: ignore[call-arg]

    def whole_model(self) -> Any:
        """The model with its present weights. All processes call this together; the first one gets the weights."""
        trainer: Any = self
        if not sharded():
            return trainer.accelerator.unwrap_model(trainer.model)
        if self._gathered_at != trainer.state.global_step:
            sharding.gather(trainer.model, self._whole if trainer.accelerator.is_main_process else None)
            self._gathered_at = trainer.state.global_step
        return self._whole

    def create_accelerator_and_postprocess(self) -> None:
        trainer: Any = self
        if by_deepspeed():
            sharding.prepare_arguments(trainer.args)
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if by_deepspeed():
            sharding.prepare_deepspeed(trainer)
        elif sharded():
            sharding.prepare_fsdp(trainer.accelerator)
            trainer.is_fsdp_enabled = True
        clip = trainer.accelerator.clip_grad_norm_

        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            """As accelerate's. Raises `ToolbakeError` where the norm is not finite."""
            norm = clip(*args, **kwargs)
            if isinstance(norm, DTensor):
                norm = norm.full_tensor()  # not of this process's shards alone
            if norm is not None and not math.isfinite(float(norm)):
                raise ToolbakeError(_not_finite(float(norm), trainer.state.global_step))
            return norm

        trainer.accelerator.clip_grad_norm_ = clip_grad_norm_

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        trainer: Any = self
        if resume_from_checkpoint:
            sharding.check_checkpoint(Path(resume_from_checkpoint))
            loads = not by_deepspeed() or sharding.keeps_buffers(trainer.model)  # which the engine does not load
            if sharded() and trainer.accelerator.is_main_process and loads:
                load_kept(trainer.model, Path(resume_from_checkpoint))  # before it is sharded
        if sharded():
            sharding.send_buffers(trainer.model, trainer.accelerator.device)
        if by_deepspeed():
            sharding.shard(trainer.model)
        result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]
        if trainer.state.global_step >= trainer.args.max_steps:  # else the other processes may not get here
            self.whole_model()
        return result

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not sharded():  # else `train` has done it
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def save_model(self, output_dir: str | None = None, **kwargs: Any) -> None:
        trainer: Any = self
        if not sharded():
            super().save_model(output_dir, **kwargs)  # type: ignore[misc]
            return
        whole = self.whole_model()
        if trainer.args.should_save:
            folder = output_dir or trainer.args.output_dir
            whole.save_pretrained(folder)
            trainer.processing_class.save_pretrained(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        trainer: Any = self
        if not sharded() or by_deepspeed():
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
            return
        # As transformers does, but without the weights a second time: `save_model` has written them whole.
        plugin = trainer.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, trainer.accelerator, trainer.optimizer, trainer.model, output_dir)
        if trainer.args.should_save:
            torch.save(trainer.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))


def _not_finite(norm: float, step: int) -> str:
    return (
        f"the norm of the gradient is {norm} in step {step}: no update was made of it, and the run's checkpoints are "
        "as they were. Set a lower grpo.learning_rate (in the warm start warm_start.learning_rate), leave "
        "batching.bf16 out, or set off_policy.importance_sampling_mode where sampler_gap in the metrics is large, and "
        "begin a new run: this one would come to the same"
    )


NOT_BY_TRANSFORMERS: dict[str, bool] = dict.fromkeys(
    {"activation_checkpointing", "gradient_checkpointing"} & {one.name for one in fields(TrainingArguments)}, False
)
"""Arguments that leave the checkpointing of layers to `checkpoint_layers`, which does it for attention by tree, too.
transformers 5.24 has both names, and warns of the older one alone."""


def check_seams() -> None:
    """Raises `ConfigError` where transformers has not the methods that are overridden for shards."""
    missing = [
        name for name in ("_load_from_checkpoint", "_save_optimizer_and_scheduler") if not hasattr(Trainer, name)
    ]
    if missing and not by_deepspeed():
        raise ConfigError(
            f"transformers {transformers.__version__} has no Trainer.{missing[0]}, without which a run whose weights "
            "FSDP2 shards cannot go on from a checkpoint; install transformers 5.19, or launch without FSDP"
        )


# ---------------------------------------------------------------------------------------------------------------------

_CHECKPOINT = f"{PREFIX_CHECKPOINT_DIR}-"
PUBLISHING = "seconds/publish"
"""The figure of how long the sampler took to get the weights of a step."""


class StopOnRequest(TrainerCallback):  # type: ignore[misc]
    """Ends training after the current micro-batch once `stop` is set: how cancellation reaches the thread.

    Among several processes it raises `TrainingStopped`: transformers ends a training together with the others, which do
    not know of it.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._stop.is_set() and world_size() > 1:
            raise TrainingStopped("stopped")
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
                # First what makes it a whole one: of a half that a kill leaves, no weights can be chosen.
                (folders[step] / TRAINER_STATE_NAME).unlink(missing_ok=True)
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
