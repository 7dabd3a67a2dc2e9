"""Weights, gradients and moments sharded over the training processes, by FSDP2 (torch's `fully_shard`) or by DeepSpeed:
there gradients and moments (ZeRO-2), or weights, too (ZeRO-3).

Between the stages of a run the first process holds the whole model, in the memory of its host. A trainer shards a copy
of it over all processes, as accelerate is configured to. Where weights are published, digested or kept, they are
gathered into the first process's model, one weight after the other, so that no GPU ever holds them all. The other
processes hold shapes alone before sharding: the first one sends its weights.

The engine that DeepSpeed makes of a model does the backward passes, clips, and updates the weights. What is set here
for it is what accelerate leaves out on a CPU, and what a trainer of transformers knows and the launcher does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.constants import OPTIMIZER_NAME
from accelerate.utils.fsdp_utils import fsdp2_canonicalize_names, fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers.integrations.deepspeed import propagate_args_to_deepspeed, unset_hf_deepspeed_config

from ..errors import ConfigError
from .processes import by_deepspeed, sharded, world_size, zero_stage

SCHEDULER = "scheduler.pt"
"""Where transformers keeps how far the schedule of the learning rate is."""


def check_checkpoint(folder: Path) -> None:
    """Raises `ConfigError` for a checkpoint whose optimiser has another form than this launch can read, or is gone:
    transformers would begin anew with it in silence."""
    kinds = {
        "with weights sharded by FSDP2": [f"{OPTIMIZER_NAME}_0", f"{OPTIMIZER_NAME}.bin"],
        "by DeepSpeed": ["global_step*"],
        "without sharded weights": ["optimizer.pt"],
    }
    was = [kind for kind, patterns in kinds.items() if any(next(folder.glob(one), None) for one in patterns)]
    fsdp, deepspeed, plain = kinds
    now = (deepspeed if by_deepspeed() else fsdp) if sharded() else plain
    gone = [] if was else ["the state of its optimiser"]
    gone += [] if sharded() or (folder / SCHEDULER).is_file() else [SCHEDULER]
    if gone:
        raise ConfigError(
            f"the checkpoint {str(folder)!r} lacks {' and '.join(gone)}, without which the run cannot go on as it was; "
            "put it back from a copy, or begin another run from the run's model"
        )
    if now not in was:
        raise ConfigError(
            f"the checkpoint {str(folder)!r} was written {was[0]}, and this launch would go on {now}, so its optimiser "
            "cannot be read; launch the run as it was launched before"
        )
    if by_deepspeed():
        _check_shards(folder)


def _check_shards(checkpoint: Path) -> None:
    """Raises `ConfigError` for a checkpoint of another number of processes or another stage.

    DeepSpeed cannot read it either, and its error does not name the launch that can.
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


def prepare_fsdp(accelerator: Accelerator) -> None:
    """Have an accelerator shard by its environment, also on CPUs.

    accelerate 1.15 reads the plugin for accelerators alone (`AcceleratorState.__init__`) and forgets it on CPUs without
    a word, where `fully_shard` works as well. The weights always come from the first process, and gradients are summed
    in float32 also where bfloat16 is computed with.
    """
    state = accelerator.state
    if state.distributed_type != DistributedType.FSDP:
        state.fsdp_plugin = FullyShardedDataParallelPlugin()
        # A `PartialState` is the one state of the process, whoever makes it.
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    plugin = state.fsdp_plugin
    plugin.cpu_ram_efficient_loading = True
    if state.mixed_precision == "bf16":
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def prepare_arguments(args: Any) -> None:
    """Of a trainer that DeepSpeed shards, before its accelerator is made."""
    if not torch.cuda.is_available():
        _without_kernels()
    if zero_stage() == 3:
        # "auto" is transformers' choice by the width of the model; DeepSpeed's own number leaves all of a small one
        # in every process.
        args.deepspeed_plugin.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"] = "auto"


def prepare_deepspeed(trainer: Any) -> None:
    """Have a trainer's accelerator hand the model to DeepSpeed, also on CPUs.

    accelerate 1.15 starts DDP where `cpu` is set (`AcceleratorState.__init__`), and no processes at all where it is
    not; DeepSpeed works over gloo.
    """
    state = trainer.accelerator.state
    if state.distributed_type != DistributedType.DEEPSPEED:
        plugin = trainer.args.deepspeed_plugin
        # A `PartialState` is the one state of the process, whoever makes it.
        state.distributed_type = PartialState().distributed_type = DistributedType.DEEPSPEED
        state.deepspeed_plugins = {"default": plugin}
        state.select_deepspeed_plugin("default")
        trainer.is_deepspeed_enabled = True
        propagate_args_to_deepspeed(trainer.accelerator, trainer.args)
    # transformers would load every other model of this process in shards, with all processes, as long as it knows of
    # the configuration: also those that the first process alone loads.
    unset_hf_deepspeed_config()


def _without_kernels() -> None:
    """On CPUs: exchange by gloo alone. DeepSpeed would compile an exchange in shared memory of its own, for over a
    minute at the first start, and wait for ever where such a compilation was killed before."""
    import deepspeed

    known = getattr(deepspeed.ops, "__compatible_ops__", None)
    if isinstance(known, dict):  # else it starts slowly
        known["deepspeed_shm_comm"] = False


@contextlib.contextmanager
def accumulating(accelerator: Accelerator) -> Iterator[None]:
    """Backward passes that the update waits for: DeepSpeed makes it within the last one of a step."""
    gradients = accelerator.gradient_state
    before = gradients.sync_gradients
    gradients.sync_gradients = False
    try:
        yield
    finally:
        gradients.sync_gradients = before


@torch.no_grad()  # type: ignore[untyped-decorator]
def gather(model: torch.nn.Module, whole: torch.nn.Module | None) -> None:
    """Copy the trained weights of a sharded model into `whole`, one after the other, and its buffers. All processes
    call this together; `whole` is None in those that want none.
    """
    targets = {} if whole is None else dict(whole.named_parameters())
    for name, weight in trained_weights(model).items():
        tensor = full(weight)
        if whole is not None:
            targets[name].copy_(tensor)
    if whole is not None:
        kept = whole.state_dict()  # not the buffers that are computed
        for name, buffer in fsdp2_canonicalize_names(dict(model.named_buffers())).items():
            if name in kept:
                kept[name].copy_(buffer)


def trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By the names that they have without shards; a tied weight once."""
    model.state_dict()  # its hooks put shards in place of what a forward pass has gathered
    named: dict[str, torch.Tensor] = fsdp2_canonicalize_names(dict(model.named_parameters()))
    return {name: weight for name, weight in named.items() if weight.requires_grad}


def present_state(model: torch.nn.Module, names: Collection[str]) -> dict[str, torch.Tensor]:
    """The weights of these names as another model sharded in the same way can load them. All processes call this
    together."""
    if by_deepspeed():  # whose copies are whole
        named = model.named_parameters(remove_duplicate=False)
        return {name: _whole(weight) for name, weight in named if name in names}
    state = model.state_dict()
    return {name: state[name] for name in names}


def full(weight: torch.Tensor) -> torch.Tensor:
    """A weight without shards, the same in all processes, which call this together."""
    if not isinstance(weight, DTensor):
        return _whole(weight)
    # Weights that are offloaded to the host are gathered where the processes can exchange them.
    whole: torch.Tensor = weight.to(weight.device_mesh.device_type).full_tensor()
    return whole


def _whole(weight: torch.Tensor) -> torch.Tensor:
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


def shard_frozen(model: Any, accelerator: Accelerator) -> None:
    """Shard a model that is not trained, with the weights of the first process. DeepSpeed leaves it whole."""
    send_buffers(model, accelerator.device)
    if by_deepspeed():
        make_room(model)
        for weight in model.to(accelerator.device).parameters():
            dist.broadcast(weight.detach(), src=0)
    else:
        fsdp2_prepare_model(accelerator, model)


def send_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """The first process's buffers to all of them, which hold them whole.

    Those that are a part of checkpoints are none of the copy's that is trained: accelerate 1.15 takes everything in a
    `state_dict` for shards.
    """
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            sent = buffer.to(device)
            dist.broadcast(sent, src=0)
            buffer.copy_(sent)
            module.register_buffer(name, buffer, persistent=False)


def keeps_buffers(model: torch.nn.Module) -> bool:
    """Whether checkpoints of the model have buffers, and not weights alone."""
    return len(model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()) > 0


def let_go(model: Any) -> None:
    """Free what the last forward pass has gathered, which a backward pass would have."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def forget_weights(model: torch.nn.Module) -> None:
    """Leave of the weights their shapes: for the processes that get their shards from the first one."""
    _exchange_weights(model, lambda weight: weight.to("meta"))


def make_room(model: torch.nn.Module) -> None:
    """Give addresses on the host to weights that were forgotten: accelerate finds those of the optimiser by them, and
    DeepSpeed fills them. What is not written to takes no memory."""
    _exchange_weights(model, lambda weight: torch.empty_like(weight, device="cpu") if weight.is_meta else weight)


def _exchange_weights(model: torch.nn.Module, made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In place; tied weights stay tied. Buffers are left as they are: some are computed, and not sent."""
    done: dict[int, Any] = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(weight) not in done:
                new = made(weight)
                known = new is weight
                done[id(weight)] = weight if known else torch.nn.Parameter(new.detach(), weight.requires_grad)
            module.register_parameter(name, done[id(weight)])
