"""What the trainers of both stages do that TRL's do not: they train sharded weights, stop at a gradient that is not
finite, and send no telemetry."""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import save_fsdp_optimizer
from huggingface_hub import constants
from torch.distributed.tensor import DTensor
from transformers import Trainer
from transformers.trainer import SCHEDULER_NAME

from ..errors import ConfigError, ToolbakeError
from . import sharding
from .lora import load_kept
from .processes import by_deepspeed, sharded

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
