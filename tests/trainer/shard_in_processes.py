"""The shared-prefix forward of a model whose weights FSDP2 shards, for `run_in_processes`."""

import os
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sdk.policies.models import load_model
from sdk.trainer import shared_prefix
from sdk.trainer.shared_prefix import checkpoint_layers, share_prefixes

ROWS = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 12, 13], [5, 6, 7, 20, 21, 22], [5, 6, 30, 31, 32, 33]])


def ready(folder: str) -> torch.nn.Module:
    model = load_model(folder, dtype="float32").model.train()
    share_prefixes(model)
    return model


def loss(model: torch.nn.Module, rows: torch.Tensor, *, scored: bool = True) -> torch.Tensor:
    labels = rows.clone()
    labels[:, : 2 if scored else None] = -100
    out = model(input_ids=rows, attention_mask=torch.ones_like(rows), labels=labels, fused_lm_head=True)
    total: torch.Tensor = out.log_probs.sum() + out.loss * 0.0
    return total


def relative_difference(folder: str) -> float:
    """The largest difference between the gradients and those of the whole model in one process, relative to the largest
    gradient. Each process forwards half of the rows, whose labels are scored in chunks; then one has nothing to score.
    """
    # With it, transformers would load the weights in the first process alone.
    whole_in_all = patch.dict(os.environ, {"FSDP_CPU_RAM_EFFICIENT_LOADING": "false"})
    with whole_in_all, patch.object(shared_prefix, "_HEAD_CHUNK", 2):
        whole, model = ready(folder), ready(folder)
        # FSDP2 averages over the processes.
        ((loss(whole, ROWS) + loss(whole, ROWS[:2])) / dist.get_world_size()).backward()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        checkpoint_layers(model)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        # As accelerate 1.15 groups them: the head is tied to the embedding.
        head = [model.model.norm, model.model.embed_tokens, model.lm_head]
        fully_shard(head, mesh=mesh, reshard_after_forward=False)
        fully_shard(model, mesh=mesh)
        loss(model, ROWS[dist.get_rank() :: dist.get_world_size()]).backward()
        loss(model, ROWS[:2], scored=dist.get_rank() == 0).backward()
    wanted = {name: weight.grad for name, weight in whole.named_parameters()}
    worst = max(
        float((weight.grad.full_tensor() - wanted[name]).abs().max()) for name, weight in model.named_parameters()
    )
    return worst / max(float(gradient.abs().max()) for gradient in wanted.values())
