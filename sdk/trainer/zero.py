"""Gradients and moments (ZeRO-2), or weights too (ZeRO-3), sharded over the training processes by DeepSpeed.

The engine that DeepSpeed makes of a model does the backward passes, clips, and updates the weights. What is set here is
what accelerate leaves out on a CPU, and what a trainer of transformers has to say and the launcher does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType
from transformers.integrations.deepspeed import propagate_args_to_deepspeed, unset_hf_deepspeed_config

from ..errors import ConfigError
from .processes import world_size, zero_stage


def make_ready(args: Any) -> None:
    """Of a trainer's arguments, before its accelerator is made."""
    if not torch.cuda.is_available():
        _without_kernels()
    if zero_stage() == 3:
        # "auto" is transformers' choice by the width of the model; DeepSpeed's own number leaves all of a small one
        # in every process.
        args.deepspeed_plugin.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"] = "auto"


def prepare_accelerator(trainer: Any) -> None:
    """Have a trainer's accelerator hand the model to DeepSpeed, also on CPUs.

    accelerate 1.15 starts DDP where it is told that there are CPUs alone (`AcceleratorState.__init__`), and no
    processes at all where it is not told (`PartialState._prepare_backend`); DeepSpeed works over gloo.
    """
    state = trainer.accelerator.state
    if state.distributed_type != DistributedType.DEEPSPEED:
        plugin = trainer.args.deepspeed_plugin
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.DEEPSPEED
        state.deepspeed_plugins = plugin
        plugin.select(_from_accelerator_state=True)
        trainer.is_deepspeed_enabled = True
        propagate_args_to_deepspeed(trainer.accelerator, trainer.args)
    # transformers would load every other model of this process in shards, with all processes, as long as it knows of
    # the configuration: also those that the first process alone loads.
    unset_hf_deepspeed_config()


def _without_kernels() -> None:
    """On CPUs: exchange by gloo alone. DeepSpeed would compile an exchange in shared memory of its own, for over a
    minute at the first start, and wait for ever where such a compilation was killed before."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def check_shards(checkpoint: Path) -> None:
    """Raises `ConfigError` for a checkpoint of another number of processes or another stage.

    DeepSpeed cannot read it either, and does not say what to launch instead.
    """
    files = [file.name for file in checkpoint.glob("global_step*/*zero_pp_rank_*_states.pt")]
    processes = sum(name.endswith("_optim_states.pt") for name in files)
    stage = 3 if any(name.endswith("_model_states.pt") for name in files) else 2
    if processes and (processes, stage) != (world_size(), zero_stage()):
        raise ConfigError(
            f"the checkpoint {str(checkpoint)!r} was written by {processes} processes with zero_stage {stage}, and "
            f"this launch has {world_size()} with zero_stage {zero_stage()}, which cannot read it; launch the run with "
            f"num_processes: {processes} and zero_stage: {stage}"
        )


@contextlib.contextmanager
def accumulating(accelerator: Accelerator) -> Iterator[None]:
    """Backward passes that the update waits for: DeepSpeed makes it within the last one of a step."""
    gradients = accelerator.gradient_state
    before = gradients.sync_gradients
    gradients._set_sync_gradients(False)
    try:
        yield
    finally:
        gradients._set_sync_gradients(before)


def whole(weight: torch.Tensor) -> torch.Tensor:
    """A weight that ZeRO-3 may have sharded, the same in all processes, which call this together."""
    if not hasattr(weight, "ds_id"):
        return weight
    import deepspeed

    with deepspeed.zero.GatheredParameters([weight]):
        return weight.detach().clone()


def shard(model: torch.nn.Module) -> None:
    """Of a model on the host, before DeepSpeed's engine is made of it: for ZeRO-3 the first process's weights go into
    shards, one after the other. The engine would take the whole model to each GPU first.
    """
    if zero_stage() == 3:
        import deepspeed

        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
        deepspeed.zero.Init(module=model, config_dict_or_path=config)


def send(model: torch.nn.Module) -> None:
    """The first process's weights to all processes, one after the other."""
    for weight in model.parameters():
        dist.broadcast(weight.detach(), src=0)
