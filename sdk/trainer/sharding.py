"""Weights, gradients and moments sharded over the training processes: by FSDP2 (torch's `fully_shard`), or by DeepSpeed
(`zero`).

Between the stages of a run the first process holds the whole model, in the memory of its host. A trainer shards a copy
of it over all processes, as accelerate is configured to. Where weights are published, digested or kept, they are
gathered into the first process's model, one weight after the other, so that no GPU ever holds them all; whoever reads
that model need not know of shards. The other processes hold shapes alone before sharding: the first one sends its
weights.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, save_fsdp_optimizer
from accelerate.utils.constants import OPTIMIZER_NAME
from accelerate.utils.fsdp_utils import fsdp2_canonicalize_names, fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers.trainer import SCHEDULER_NAME

from ..errors import ConfigError
from . import zero
from .lora import load_kept
from .processes import by_deepspeed, sharded


class ShardsWeights:
    """Of a trainer of transformers. Where weights are sharded it trains a copy of its model, and in the first process
    the model itself has the copy's weights whenever `whole_model` was called, and at the end of training.

    Elsewhere nothing is changed.
    """

    def __init__(self, *, model: Any, **kwargs: Any) -> None:
        self._whole = model
        self._gathered_at: int | None = None
        own = model
        if sharded():
            make_room(own := copy.deepcopy(model))
        super().__init__(model=own, **kwargs)  # type: ignore[call-arg]

    def whole_model(self) -> Any:
        """The model with its present weights. All processes call this together; the first one gets the weights."""
        trainer: Any = self
        if not sharded():
            return trainer.accelerator.unwrap_model(trainer.model)
        if self._gathered_at != trainer.state.global_step:
            gather(trainer.model, self._whole if trainer.accelerator.is_main_process else None)
            self._gathered_at = trainer.state.global_step
        return self._whole

    def create_accelerator_and_postprocess(self) -> None:
        trainer: Any = self
        if by_deepspeed():
            zero.make_ready(trainer.args)
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if by_deepspeed():
            zero.prepare_accelerator(trainer)
        elif sharded():
            prepare_accelerator(trainer.accelerator)
            trainer.is_fsdp_enabled = True

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        trainer: Any = self
        if resume_from_checkpoint:
            check_checkpoint(Path(resume_from_checkpoint))
            if by_deepspeed():  # its engine loads the weights; `trainer` may have more to load, and is not asked to
                trainer._load_from_checkpoint(resume_from_checkpoint)
            loads = not by_deepspeed() or keeps_buffers(trainer.model)  # which are no part of what the engine loads
            if sharded() and trainer.accelerator.is_main_process and loads:
                load_kept(trainer.model, Path(resume_from_checkpoint))  # before it is sharded
        if sharded():
            send_buffers(trainer.model, trainer.accelerator.device)
        if by_deepspeed():
            zero.shard(trainer.model)
        result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]
        if trainer.state.global_step >= trainer.args.max_steps:  # else the other processes may be elsewhere
            self.whole_model()
        return result

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not sharded():  # else `train` has done it
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        trainer: Any = self
        if not sharded():
            super().save_model(output_dir, _internal_call)  # type: ignore[misc]
            return
        whole = self.whole_model()
        if trainer.args.should_save:
            shards, trainer.model = trainer.model, whole
            try:
                trainer._save(output_dir)
            finally:
                trainer.model = shards

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

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[misc]
        return norm.full_tensor() if isinstance(norm, DTensor) else norm  # else the norm of this process's shards


def check_checkpoint(folder: Path) -> None:
    """Raises `ConfigError` for a checkpoint whose optimiser has another form than this launch can read."""
    kinds = {
        "with weights sharded by FSDP2": [f"{OPTIMIZER_NAME}_0", f"{OPTIMIZER_NAME}.bin"],
        "by DeepSpeed": ["global_step*"],
        "without sharded weights": ["optimizer.pt"],
    }
    was = [kind for kind, patterns in kinds.items() if any(next(folder.glob(one), None) for one in patterns)]
    fsdp, deepspeed, plain = kinds
    now = (deepspeed if by_deepspeed() else fsdp) if sharded() else plain
    if was and now not in was:
        raise ConfigError(
            f"the checkpoint {str(folder)!r} was written {was[0]}, and this launch would go on {now}, so its optimiser "
            "cannot be read; launch the run as it was launched before"
        )
    if by_deepspeed():
        zero.check_shards(folder)


def prepare_accelerator(accelerator: Accelerator) -> None:
    """Have an accelerator shard as its environment says, also on CPUs.

    accelerate 1.15 reads the plugin for accelerators alone (`AcceleratorState.__init__`) and forgets it on CPUs without
    a word, where `fully_shard` works as well. The weights always come from the first process, and gradients are summed
    in float32 also where bfloat16 is computed with.
    """
    state = accelerator.state
    if state.distributed_type != DistributedType.FSDP:
        state.fsdp_plugin = FullyShardedDataParallelPlugin()
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    plugin = state.fsdp_plugin
    plugin.cpu_ram_efficient_loading = True
    if state.mixed_precision == "bf16":
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


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
        return {name: zero.whole(weight) for name, weight in named if name in names}
    state = model.state_dict()
    return {name: state[name] for name in names}


def full(weight: torch.Tensor) -> torch.Tensor:
    """A weight without shards, the same in all processes, which call this together."""
    if not isinstance(weight, DTensor):
        return zero.whole(weight)
    # Weights that are offloaded to the host are gathered where the processes can exchange them.
    whole: torch.Tensor = weight.to(weight.device_mesh.device_type).full_tensor()
    return whole


def shard_frozen(model: Any, accelerator: Accelerator) -> None:
    """Shard a model that is not trained, with the weights of the first process. DeepSpeed leaves it whole."""
    send_buffers(model, accelerator.device)
    if by_deepspeed():
        make_room(model)
        zero.send(model.to(accelerator.device))
    else:
        fsdp2_prepare_model(accelerator, model)


def send_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """The first process's buffers to all of them, which hold them whole.

    Those that are a part of checkpoints are none of the copy's that is trained: accelerate 1.15 takes everything in a
    `state_dict` for shards.
    """
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                sent = buffer.to(device)
                dist.broadcast(sent, src=0)
                buffer.copy_(sent)
                module._non_persistent_buffers_set.add(name)


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
        for name, weight in module._parameters.items():
            if weight is None:
                continue
            if id(weight) not in done:
                new = made(weight)
                known = new is weight
                done[id(weight)] = weight if known else torch.nn.Parameter(new.detach(), weight.requires_grad)
            module._parameters[name] = done[id(weight)]
