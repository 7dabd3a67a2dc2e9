"""The sampler answers while a model is trained, and gets the trainer's weights."""

from __future__ import annotations

import copy
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

from ..errors import ConfigError
from ..evidence.saved_weights import Tensor, tensors_digest
from ..policies.embedded import EmbeddedEngine
from ..policies.models import LoadedModel
from ..policies.protocol import Policy, WeightPublisher
from ..policies.vllm import VllmOptions, VllmPolicy, open_vllm
from ..policies.vllm.published_weights import untied
from ..policies.vllm.server_command import find_vllm
from ..process import give_gpu_memory_back
from ..progress import Progress
from .compute_plan import START, plan_compute, starts_from_a_copy
from .config import TrainConfig
from .lora import merged_state

_RESTARTS = 2
"""How often the embedded engine restarts after a failure, in all. The rollouts in flight are played again, or
unscored."""


class Sampler(Policy, WeightPublisher, Protocol):
    """Samples from the weights last published."""


@asynccontextmanager
async def open_sampler(
    loaded: LoadedModel,
    *,
    source: str,
    config: TrainConfig,
    folder: Path,
    progress: Progress,
    context_tokens: int | None = None,
) -> AsyncIterator[Sampler]:
    """The engine that the config names, with the weights of `loaded`; `source` is the folder or name they came from.

    `folder`: for weights on their way to servers, and for the logs of those. `context_tokens`: what vLLM's servers are
    to hold of the model's context, None for all. Raises what `open_vllm` raises.
    """
    if config.engine == "embedded":
        wanted = getattr(torch, config.sampled_in(on_cpu=True))
        model = loaded.model if loaded.model.dtype == wanted else _copy_in(loaded.model, wanted)
        with EmbeddedEngine(model, max_rows=config.rollouts.concurrency, max_restarts=_RESTARTS) as engine:
            del model
            yield engine
        return
    plan = await anyio.to_thread.run_sync(plan_compute, loaded.source, config)
    if plan.problems:  # of a model whose size was not known before it was downloaded
        raise ConfigError(plan.problems[0])
    adapters = config.vllm.takes_adapters(config.lora.r)
    if not adapters and not config.vllm.urls:
        source = await anyio.to_thread.run_sync(_for_new_weights, loaded, source, config.vllm, folder)
    try:
        async with open_vllm(
            source,
            config.vllm,
            lora_rank=config.lora.r if adapters else 0,
            context_tokens=context_tokens,
            dtype=plan.dtype,
            placement=plan.placement,
            folder=folder,
            progress=progress,
        ) as policy:
            if config.vllm.urls:
                # Servers that run already may have the weights of another run.
                await anyio.to_thread.run_sync(partial(policy.publish, loaded.model.state_dict(), version=0))
            yield policy
    finally:
        shutil.rmtree(folder / START, ignore_errors=True)


def _copy_in(model: Any, dtype: torch.dtype) -> Any:
    """A copy as it would be if it were loaded in `dtype`: transformers leaves buffers as they are, such as the
    frequencies of rotary positions, which in bfloat16 would be those of another model."""
    copied = copy.deepcopy(model)
    for weight in copied.parameters():
        weight.data = weight.data.to(dtype)
    return copied


def _for_new_weights(loaded: LoadedModel, source: str, options: VllmOptions, folder: Path) -> str:
    """The folder or name to start vLLM with, so that it can take all weights later."""
    if starts_from_a_copy(find_vllm(options.python), tied=loaded.model.config.tie_word_embeddings):
        return str(untied(loaded.model, loaded.tokenizer, folder / START))
    return source


NoteWeights = Callable[[int, dict[str, Any]], None]
"""Called with the version and the digest of weights that are published."""


def publish(publisher: WeightPublisher, model: Any, *, version: int, note: NoteWeights | None = None) -> None:
    """Hand over the weights of a model in training: its adapter where the publisher takes adapters, else all of them.

    Blocks. `note` is called with their digest before anything is sampled from them; vLLM, which has the weights of that
    digest already, gets their new number alone. Raises what the publisher raises.
    """
    digest = None
    if note is not None:
        found = weights_digest(model)
        note(version, found)
        digest = str(found["sha256"])
    if not isinstance(publisher, VllmPolicy):
        publisher.publish(merged_state(model), version=version)
        return
    if publisher.sleeps:  # and is about to wake, beside what the update needed
        give_gpu_memory_back()
    if digest is not None and digest == publisher.held:
        publisher.renumber(version)
        return
    publisher.held = None
    if publisher.takes_adapters:
        publisher.publish_adapter(model, version=version)
    else:
        publisher.publish(merged_state(model), version=version)
    publisher.held = digest


def rest(sampler: WeightPublisher) -> None:
    """Nothing is sampled until weights are published: the embedded engine, and vLLM on the trainer's GPU, give
    their memory to the trainer beside them."""
    if isinstance(sampler, EmbeddedEngine | VllmPolicy):
        sampler.rest()


def forget(sampler: WeightPublisher) -> None:
    """Have the embedded engine sample as if nothing had been sampled with its weights yet."""
    if isinstance(sampler, EmbeddedEngine):
        sampler.forget()


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
