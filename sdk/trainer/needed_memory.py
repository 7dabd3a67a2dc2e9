"""How much memory a training takes, known before anything starts: weights and what belongs to each of them is counted,
activations are as they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from ..policies.vllm.server_placement import TrainingMemory
from .config import TrainConfig
from .processes import sharded
from .run_identity import weight_bytes

_PROCESS_BYTES = 800_000_000
"""Python with torch, transformers and TRL, and a small tool server."""
_ACTIVATIONS = 12
"""Times the weights: of four tasks with six rollouts each of the embedded model, 6 GB."""
_CHECKPOINTED = 2
"""The same with `batching.gradient_checkpointing`."""

LESS_MEMORY = (
    ("batching.gradient_checkpointing", True, "activations of one layer at a time, for a longer update"),
    ("batching.offload_optimizer", True, "Adam's moments in a file, on a CPU"),
    ("lora.r", 16, "gradients and moments of adapters alone, at ten times the learning rate"),
)
"""What lowers it: option, value, what it does; the cheapest first."""


@dataclass(frozen=True)
class NeededMemory:
    """In bytes; both are 0 where the model is not on this disk."""

    least: int
    """What no step gets by without."""
    usual: int
    """With the activations of steps like the quickstart's."""


def needed_memory(model: str | Path | None, config: TrainConfig) -> NeededMemory:
    """Of a training in this process on a CPU, whose updates and rollouts take turns."""
    weights = weight_bytes(model)
    if not weights:
        return NeededMemory(0, 0)
    gradients, moments = (0, 0) if config.lora.r else (weights, 2 * weights)
    base = _PROCESS_BYTES + weights
    at_hand = 0 if config.batching.offload_optimizer else moments
    sampling = base + at_hand + weights  # the engine's copy, which is not there in an update
    update, step = base + at_hand + gradients, base + gradients + moments
    times = _CHECKPOINTED if config.batching.gradient_checkpointing else _ACTIVATIONS
    return NeededMemory(max(sampling, update, step), max(sampling, update + times * weights, step))


def memory_on_gpus(model: str | Path | None, config: TrainConfig, *, processes: int) -> TrainingMemory:
    """Of a training whose processes have a GPU each, beside vLLM. Activations are as on a CPU."""
    weights = weight_bytes(model)
    trained = 0 if config.lora.r else weights
    own = weights + 2 * trained + (weights if config.grpo.beta and not config.lora.r else 0)
    times = _CHECKPOINTED if config.batching.gradient_checkpointing else _ACTIVATIONS
    shards = processes if sharded() else 1
    rest = own // shards
    return TrainingMemory(
        processes=processes,
        at_rest=rest,
        at_work=rest + trained // shards + times * weights // processes,
        takes_turns=config.off_policy.max_off_policy_steps == 0,
    )


def check_memory(model: str | Path | None, config: TrainConfig, free: int) -> list[str]:
    """A warning where a step like the quickstart's does not fit into `free` bytes; nothing where it does.

    Raises `ConfigError` where no step does.
    """
    needed = needed_memory(model, config)
    ways = "; ".join(f"{name}={str(value).lower()} ({what})" for name, value, what in ways_left(config))
    lower = f"What lowers it: {ways}." if ways else "A smaller model takes less."
    name = model or "the embedded model"
    if free < needed.least:
        raise ConfigError(
            f"{free / 1e9:.1f} GB of memory are free, and training {name} takes at least {needed.least / 1e9:.1f} GB. "
            f"{lower}"
        )
    if free < needed.usual:
        return [
            f"warning: {free / 1e9:.1f} GB of memory are free, and training {name} may take {needed.usual / 1e9:.1f} "
            f"GB. {lower}"
        ]
    return []


def ways_left(config: TrainConfig) -> list[tuple[str, object, str]]:
    """Those of `LESS_MEMORY` that are not set."""
    return [way for way in LESS_MEMORY if not _is_set(config, way[0])]


def _is_set(config: TrainConfig, name: str) -> bool:
    group, _, option = name.partition(".")
    values: Mapping[str, object] = getattr(config, group).model_dump()
    return bool(values[option])
