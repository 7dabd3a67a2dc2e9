"""Who samples while a model is trained, and how the trainer's weights get there."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread

from ..policies.embedded import EmbeddedEngine
from ..policies.models import LoadedModel
from ..policies.protocol import Policy, WeightPublisher
from ..policies.vllm import VllmOptions, VllmPolicy, open_vllm
from ..policies.vllm.published_weights import untied
from ..policies.vllm.server_process import on_cpu, vllm_python
from ..progress import Progress
from .config import TrainConfig
from .lora import merged_state
from .weights_digest import weights_digest

_START = "start"
"""In the folder: the copy of the model that vLLM is started with, where it needs one."""


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
        rows, restarts = config.concurrency, config.engine_restarts
        with EmbeddedEngine(loaded.model, max_rows=rows, max_restarts=restarts) as engine:
            yield engine
        return
    adapters = config.vllm.takes_adapters(config.lora_rank)
    if not adapters and not config.vllm.urls:
        source = await anyio.to_thread.run_sync(_for_new_weights, loaded, source, config.vllm, folder)
    try:
        async with open_vllm(
            source, config.vllm, lora_rank=config.lora_rank if adapters else 0, folder=folder, progress=progress
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
"""Hears of the version and the digest of weights that are published."""


def publish(publisher: WeightPublisher, model: Any, *, version: int, note: NoteWeights | None = None) -> None:
    """Hand over the weights of a model in training: its adapter where the publisher takes adapters, else all of them.

    Blocks. `note` hears of their digest, before anything is sampled from them. Raises what the publisher raises.
    """
    if note is not None:
        note(version, weights_digest(model))
    if isinstance(publisher, VllmPolicy) and publisher.takes_adapters:
        publisher.publish_adapter(model, version=version)
    else:
        publisher.publish(merged_state(model), version=version)


def sampler_facts(sampler: Sampler) -> dict[str, Any]:
    """What the report says of it: what went wrong and was repaired."""
    if isinstance(sampler, VllmPolicy):
        return {"engine": "vLLM", **{f"vllm_{name}": count for name, count in sampler.counts().items()}}
    if isinstance(sampler, EmbeddedEngine) and sampler.restarts:
        return {"engine_restarts": sampler.restarts}
    return {}
