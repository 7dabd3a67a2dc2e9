"""Several training processes, as `accelerate launch` or `torchrun` start them: one leads, the others compute with it.

The others run the same script; inside `sdk.train` they receive a command for each stage, make the same trainer, and get
each step's batch. Rank and number of processes come from the environment that the launcher sets; alone, nothing here
does anything. What is shared, and how, is in `docs/distributed.md`.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from ..errors import ConfigError
from .config import TrainConfig

_PATIENCE = timedelta(days=7)
"""How long a process waits for another: while the first one samples and measures, the others are idle."""


@dataclass(frozen=True)
class Command:
    """What the other processes are to do next."""

    do: Literal["warm_start", "load", "grpo", "end", "failed"]
    what: Any = None


def world_size() -> int:
    """The number of training processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def follows() -> bool:
    """Whether another process leads this one."""
    return world_size() > 1 and int(os.environ.get("RANK", "0")) > 0


def sharded() -> bool:
    """Whether weights or their moments are sharded over the processes: by FSDP2 or DeepSpeed, where the launcher's
    configuration says so."""
    return world_size() > 1 and (_asked("ACCELERATE_USE_FSDP") or by_deepspeed())


def by_deepspeed() -> bool:
    """Whether it is DeepSpeed that shards them."""
    return world_size() > 1 and _asked("ACCELERATE_USE_DEEPSPEED")


def _asked(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


def check_processes(config: TrainConfig) -> None:
    """Raises `ConfigError` for what several processes cannot do, before anything is loaded."""
    for name, check in (("ACCELERATE_USE_FSDP", _check_fsdp), ("ACCELERATE_USE_DEEPSPEED", _check_deepspeed)):
        if _asked(name):
            _check_sharding(config, name)
            check(config)
    if (precision := _launched_precision()) not in ("no", "bf16"):
        raise ConfigError(
            f"mixed_precision in the launcher's configuration (ACCELERATE_MIXED_PRECISION) is {precision!r}; set it to "
            '"no", which is float32, or to "bf16"'
        )
    if world_size() > 1 and config.warm_start.max_steps != 0 and config.warm_start.batch_size % world_size():
        raise ConfigError(
            f"warm_start.batch_size is {config.warm_start.batch_size}, which {world_size()} processes cannot share "
            f"evenly; use a multiple of {world_size()}"
        )
    if (
        world_size() > 1 and config.grpo.num_iterations > 1
    ):  # gradients are exchanged in the last update of a step alone
        raise ConfigError(
            f"grpo.num_iterations is {config.grpo.num_iterations}, and several processes make one update a step; set "
            "it to 1"
        )


def _check_sharding(config: TrainConfig, asked: str) -> None:
    if world_size() == 1:
        raise ConfigError(
            f"{asked} is set, but there is one process, which has nothing to share weights with; set num_processes to "
            "2 or more, or launch without it"
        )
    if "8bit" in (optimiser := config.trl.optim):
        raise ConfigError(
            f"the optimiser {optimiser!r} keeps its moments in a form of its own, not known to work on shards; "
            "leave trl.optim out, since the moments are sharded anyway"
        )


def _check_fsdp(config: TrainConfig) -> None:  # noqa: ARG001
    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise ConfigError(
            f"fsdp_version is {version}, but weights are sharded by FSDP2 only; set fsdp_version: 2 in the "
            "configuration of accelerate, as examples/distributed/fsdp2.yaml does"
        )
    if _asked("FSDP_ACTIVATION_CHECKPOINTING"):
        raise ConfigError(
            "fsdp_activation_checkpointing is true, but it would compute layers again without the attention of shared "
            "prefixes; leave it out, and pass config={'batching': {'gradient_checkpointing': True}}"
        )
    if not _asked("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise ConfigError(
            "fsdp_cpu_ram_efficient_loading is false, but the weights always come from the first process; set it to "
            "true, so that the others do not read them"
        )


def _check_deepspeed(config: TrainConfig) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            "ACCELERATE_USE_DEEPSPEED is set, but DeepSpeed is missing: pip install 'toolbake[deepspeed]'"
        )
    if (stage := zero_stage()) not in (2, 3):
        raise ConfigError(
            f"zero_stage is {stage}, but 2 (gradients and moments are sharded) or 3 (weights, too) can be trained with"
        )
    if (file := os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")) != "none":
        raise ConfigError(
            f"deepspeed_config_file is {file!r}, but the optimiser, its schedule and what is exchanged come from the "
            "options of sdk.train; leave the file out, and give zero_stage in deepspeed_config, as "
            "examples/distributed/deepspeed_zero2.yaml does"
        )
    for what in ("optimizer", "param"):
        if (device := os.environ.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{what.upper()}_DEVICE", "none")) != "none":
            raise ConfigError(
                f"offload_{what}_device is {device!r}, but nothing is offloaded by DeepSpeed here; set it to none, and "
                "use more processes, zero_stage: 3 or lora.r where memory is short"
            )
    _check_deepspeed_numbers()
    if config.batching.bf16:
        raise ConfigError(
            "batching.bf16 is true, but DeepSpeed would keep the weights themselves in bfloat16, and what is sampled "
            "from and kept would be rounded; leave it out, or shard by FSDP2 (examples/distributed/fsdp2.yaml), which "
            "keeps float32"
        )
    if (precision := _launched_precision()) != "no":
        raise ConfigError(
            f"mixed_precision is {precision!r}, but DeepSpeed would keep the weights themselves in it; set "
            'mixed_precision: "no" in the configuration of accelerate, as in examples/distributed/deepspeed_zero2.yaml'
        )


def _check_deepspeed_numbers() -> None:
    """Raises `ConfigError` for numbers in DeepSpeed's configuration that the stages set themselves.

    transformers would refuse most of them, but only when a stage begins; and accelerate leaves out a clipping of 0.
    """
    options = {"gradient_accumulation_steps": "batching.micro_batches", "gradient_clipping": "trl.max_grad_norm"}
    for name, option in options.items():
        if (given := os.environ.get(f"ACCELERATE_{name.upper()}", "auto")) != "auto":
            raise ConfigError(
                f'{name} is {given} in deepspeed_config; leave it out or write "auto" there: {option} is the option '
                "of sdk.train for it"
            )


def mixed_precision(config: TrainConfig) -> str:
    """What passes are computed in, in accelerate's word: by the option `batching.bf16`, else as the launcher's
    configuration says; "no" where neither does, which is float32."""
    return "bf16" if config.batching.bf16 else _launched_precision()


def _launched_precision() -> str:
    return (os.environ.get("ACCELERATE_MIXED_PRECISION") or "no").lower()


def zero_stage() -> int:
    """What DeepSpeed shards: 2 gradients and moments, 3 the weights, too."""
    return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))


def holding_device() -> str | None:
    """Where a process holds the whole model between the stages: the host where weights are sharded, which may not fit
    a GPU, else None for the device that trains."""
    return "cpu" if sharded() else None


class _Others:
    listening = True
    """Whether the other processes wait for a command, and not for this process's part of a step."""


def tell(do: Literal["warm_start", "load", "grpo", "end", "failed"], what: Any = None) -> None:
    """Called by the first process: send the others a command. Blocks until they receive it.

    A failure in the middle of a step is not sent: the others wait for this process's part of the step, and the launcher
    ends them when this process exits.
    """
    if world_size() == 1 or (do == "failed" and not _Others.listening):
        return
    share(Command(do, what))
    _Others.listening = do not in ("warm_start", "grpo")


def stage_ended() -> None:
    """Called by the first process when a stage has ended in all processes: the others wait for a command again."""
    _Others.listening = True


def share(thing: Any) -> Any:
    """`thing` of the first process in all of them; it is pickled."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    join()
    assert PartialState().num_processes == world_size()
    box = [thing]
    broadcast_object_list(box)
    return box[0]


def join() -> None:
    """Meet the other processes. A second call does nothing."""
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.cuda.is_available(), timeout=_PATIENCE)
