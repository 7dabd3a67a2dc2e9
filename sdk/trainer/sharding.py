"""Weights, gradients and moments sharded over the training processes by FSDP2 (torch's `fully_shard`).

Between the stages of a run the first process holds the whole model, in the memory of its host. A trainer shards a copy
of it over all processes, as accelerate is configured to. Where weights are published, digested or kept, they are
gathered into the first process's model, one weight after the other, so that no GPU ever holds them all; whoever reads
that model need not know of shards. What the other processes hold before sharding is not read: the first one sends its
weights.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, save_fsdp_optimizer
from accelerate.utils.constants import OPTIMIZER_NAME
from accelerate.utils.fsdp_utils import fsdp2_canonicalize_names, fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers.trainer import SCHEDULER_NAME

from ..errors import ConfigError
from .lora import load_kept
from .processes import sharded


class ShardsWeights:
    """Of a trainer of transformers. Where weights are sharded it trains a copy of its model, and in the first process
    the model itself has the copy's weights whenever `whole_model` was called, and at the end of training.

    Elsewhere nothing is changed.
    """

    def __init__(self, *, model: Any, **kwargs: Any) -> None:
        self._whole = model
        self._gathered_at: int | None = None
        own = copy.deepcopy(model) if sharded() else model
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
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if sharded():
            prepare_accelerator(trainer.accelerator)
            trainer.is_fsdp_enabled = True

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        trainer: Any = self
        if resume_from_checkpoint:
            check_checkpoint(Path(resume_from_checkpoint))
            if sharded() and trainer.accelerator.is_main_process:
                load_kept(trainer.model, Path(resume_from_checkpoint))  # before it is sharded
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
        if not sharded():
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
    in_shards = (folder / f"{OPTIMIZER_NAME}_0").is_dir() or (folder / f"{OPTIMIZER_NAME}.bin").is_file()
    if in_shards != sharded() and (in_shards or (folder / "optimizer.pt").is_file()):
        was, now = ("with", "without") if in_shards else ("without", "with")
        raise ConfigError(
            f"the checkpoint {str(folder)!r} was written {was} sharded weights, and this launch is {now} them, so its "
            "optimiser cannot be read; launch the run as it was launched before"
        )


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
    """Copy the trained weights of a sharded model into `whole`, one after the other. All processes call this together;
    `whole` is None in those that want none.
    """
    targets = {} if whole is None else dict(whole.named_parameters())
    for name, weight in trained_weights(model).items():
        tensor = full(weight)
        if whole is not None:
            targets[name].copy_(tensor)


def trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By the names that they have without shards; a tied weight once."""
    model.state_dict()  # its hooks put shards in place of what a forward pass has gathered
    named: dict[str, torch.Tensor] = fsdp2_canonicalize_names(dict(model.named_parameters()))
    return {name: weight for name, weight in named.items() if weight.requires_grad}


def full(weight: torch.Tensor) -> torch.Tensor:
    """A weight without shards, the same in all processes, which call this together."""
    if not isinstance(weight, DTensor):
        return weight
    # Weights that are offloaded to the host are gathered where the processes can exchange them.
    whole: torch.Tensor = weight.to(weight.device_mesh.device_type).full_tensor()
    return whole


def shard_frozen(model: Any, accelerator: Accelerator) -> None:
    """Shard a model that is not trained, with the weights of the first process."""
    fsdp2_prepare_model(accelerator, model)


def let_go(model: Any) -> None:
    """Free what the last forward pass has gathered, which a backward pass would have."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
