"""Who samples while a model is trained, and how the trainer's weights get there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread
import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from ..evidence.saved_weights import Tensor, tensors_digest
from ..policies.embedded import EmbeddedEngine
from ..policies.models import LoadedModel
from ..policies.protocol import Policy, WeightPublisher
from ..policies.vllm import VllmOptions, VllmPolicy, open_vllm
from ..policies.vllm.published_weights import untied
from ..policies.vllm.server_process import on_cpu, vllm_python
from ..progress import Progress
from .config import TrainConfig
from .lora import merged_state

_START = "start"
"""In the folder: the copy of the model that vLLM is started with, where it needs one."""


_RESTARTS = 2
"""How often the embedded engine restarts after a failure, in all. The rollouts in flight are played again, or
unscored."""


class Sampler(Policy, WeightPublisher, Protocol):
    """Samples from the weights last published."""


@asynccontextmanager
async def open_sampler(
    loaded: LoadedModel, *, source: str, config: TrainConfig, folder: Path, progress: Progress
) -> AsyncIterator[Sampler]:
    """The engine that the config names, with the weights of `loaded`; `source` is the folder or name they came from.

    `folder`: for weights on their way to servers, and for the logs of those. Raises what `open_vllm` raises.
    """
    if config.engine == "embedded":
        with EmbeddedEngine(loaded.model, max_rows=config.rollouts.concurrency, max_restarts=_RESTARTS) as engine:
            yield engine
        return
    adapters = config.vllm.takes_adapters(config.lora.r)
    if not adapters and not config.vllm.urls:
        source = await anyio.to_thread.run_sync(_for_new_weights, loaded, source, config.vllm, folder)
    try:
        async with open_vllm(
            source, config.vllm, lora_rank=config.lora.r if adapters else 0, folder=folder, progress=progress
        ) as policy:
            if config.vllm.urls:
                # Servers that run already may have the weights of another run.
                await anyio.to_thread.run_sync(partial(policy.publish, loaded.model.state_dict(), version=0))
            yield policy
    finally:
        shutil.rmtree(folder / _START, ignore_errors=True)


def _for_new_weights(loaded: LoadedModel, source: str, options: VllmOptions, folder: Path) -> str:
    """The folder or name to start vLLM with, so that it can take all weights later."""
    if loaded.model.config.tie_word_embeddings and on_cpu(vllm_python(options.python)):
        return str(untied(loaded.model, loaded.tokenizer, folder / _START))
    return source


NoteWeights = Callable[[int, dict[str, Any]], None]
"""Called with the version and the digest of weights that are published."""


def publish(publisher: WeightPublisher, model: Any, *, version: int, note: NoteWeights | None = None) -> None:
    """Hand over the weights of a model in training: its adapter where the publisher takes adapters, else all of them.

    Blocks. `note` is called with their digest before anything is sampled from them. Raises what the publisher raises.
    """
    if note is not None:
        note(version, weights_digest(model))
    if isinstance(publisher, VllmPolicy) and publisher.takes_adapters:
        publisher.publish_adapter(model, version=version)
    else:
        publisher.publish(merged_state(model), version=version)


def rest(sampler: WeightPublisher) -> None:
    """Nothing is sampled until weights are published: the embedded engine gives its memory to the trainer beside it."""
    if isinstance(sampler, EmbeddedEngine):
        sampler.rest()


def sampler_facts(sampler: Sampler) -> dict[str, Any]:
    """Facts of the sampler, for the report: failures and restarts."""
    if isinstance(sampler, VllmPolicy):
        return {"engine": "vLLM", **{f"vllm_{name}": count for name, count in sampler.counts().items()}}
    if isinstance(sampler, EmbeddedEngine) and sampler.restarts:
        return {"engine_restarts": sampler.restarts}
    return {}


# ---------------------------------------------------------------------------------------------------------------------
# The digest of the weights in training: that which `sdk.evidence.saved_weights` computes of their files.

_THREADS = min(4, os.cpu_count() or 1)
_DTYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"},
    **{torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"},
}


def weights_digest(model: Any) -> dict[str, Any]:
    """`of` ("weights", or "adapter" where only an adapter is trained), `sha256`, and how many `tensors` and `bytes`.

    Every tensor is hashed, one beside the other, in threads. The model must not change meanwhile.
    """
    adapter = isinstance(model, PeftModel)
    state = get_peft_model_state_dict(model, save_embedding_layers=False) if adapter else _as_saved(model)
    with ThreadPoolExecutor(_THREADS) as threads:
        tensors = list(threads.map(_tensor, state.items()))
    return {
        "of": "adapter" if adapter else "weights",
        "sha256": tensors_digest(tensors),
        "tensors": len(tensors),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
    }


def _as_saved(model: Any) -> Mapping[str, torch.Tensor]:
    """By the names in a saved file: without heads that are tied to the embedding, as transformers writes them."""
    state = remove_tied_weights_from_state_dict(dict(model.state_dict()), model)
    saved: Mapping[str, torch.Tensor] = revert_weight_conversion(model, state)
    return saved


def _tensor(item: tuple[str, torch.Tensor]) -> Tensor:
    name, tensor = item
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return name, _DTYPES[tensor.dtype], tuple(tensor.shape), hashlib.sha256(memoryview(flat.numpy())).hexdigest()
