"""The compute plan of a training: which GPUs train, which sample, how much memory each takes, and which servers start.

Made before anything is loaded: a run that cannot work is refused, `toolbake train --dry-run` prints the plan, and
`toolbake doctor --config` names what is wrong with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_bridge import Toolset
from mcp_bridge.safe_text import plural

from ..errors import ConfigError
from ..policies.models.loading import folder_here, has_bfloat16
from ..policies.models.smollm2 import embedded_place
from ..policies.vllm.published_weights import TransferSettings, check_trainer
from ..policies.vllm.server_command import (
    INSTALL,
    ON_GPUS,
    Placement,
    ServerCommand,
    TrainingMemory,
    VllmBuild,
    find_vllm,
    gpus_of_a_server,
    place_servers,
    visible_gpus,
)
from ..policies.vllm.vllm_options import Dtype
from ..records import Task
from ..rollouts.limits import Limits
from .config import TrainConfig
from .processes import by_deepspeed, mixed_precision, sharded, world_size, zero_stage
from .run_identity import EMBEDDED_BYTES, weight_bytes

_PROCESS_BYTES = 800_000_000
"""Python with torch, transformers and TRL, and a small tool server."""
_ACTIVATIONS = 12
"""Times the weights: of four tasks with six rollouts each of the embedded model, 6 GB. Activations grow with the width
of the layers, and weights with its square, so that a model with 30 times the weights has a third of that."""
_CHECKPOINTED = 2
"""The same with `batching.gradient_checkpointing`."""

ADAM_PARTS = 8
"""With `batching.offload_optimizer` Adam takes so small a part of the weights at a time, or one weight alone."""

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
    of_a_part = moments // ADAM_PARTS if config.batching.offload_optimizer else moments
    update, step = base + at_hand + gradients, base + gradients + of_a_part
    return NeededMemory(max(sampling, update, step), max(sampling, update + _activations(config, weights), step))


def _activations(config: TrainConfig, weights: int) -> int:
    times = _CHECKPOINTED if config.batching.gradient_checkpointing else _ACTIVATIONS
    return int(times * weights * min(1.0, (EMBEDDED_BYTES / weights) ** (1 / 3))) if weights else 0


_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![a-zA-Z])")


def _named_bytes(model: str | Path | None) -> int:
    """The weights in float32 of a model whose name has its billions of parameters, as Qwen/Qwen3-4B; else 0."""
    named = _BILLIONS.search(str(model))
    return int(float(named[1]) * 4e9) if named else 0


def memory_on_gpus(
    model: str | Path | None, config: TrainConfig, *, processes: int, weights: int | None = None
) -> TrainingMemory:
    """Of a training whose processes have a GPU each, beside vLLM. `docs/distributed.md` has what is sharded, and what
    each process holds whole. `weights`: their bytes in float32, where the model is not on this disk."""
    weights = weight_bytes(model) if weights is None else weights
    trained = 0 if config.lora.r else weights
    reference = weights if config.grpo.beta and (sharded() or not config.lora.r) else 0
    own, whole = weights + 2 * trained + reference, 0
    if by_deepspeed():
        own += trained  # its second copy
        whole = reference + (weights if zero_stage() == 2 else 0)
    shards = processes if sharded() else 1
    rest = whole + (own - whole) // shards
    return TrainingMemory(
        processes=processes,
        at_rest=rest,
        at_work=rest + trained // shards + _activations(config, weights) // processes,
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


_WIDTHS = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class ComputePlan:
    """Who is where."""

    lines: tuple[str, ...]
    """The plan in words."""
    commands: tuple[str, ...]
    """The servers that are started, as one would type them. `PORT` is a free one, and `TOKENS` what the limits of the
    rollouts allow with their tools and tasks, or what stands in its place where that is more than the model takes."""
    problems: tuple[str, ...]
    """What cannot work, each with the fix."""
    warnings: tuple[str, ...]
    placement: Placement
    dtype: Dtype
    """What the sampler computes in."""
    on_cpu: bool
    """Whether vLLM computes on the CPU."""

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "plan": list(self.lines),
            "commands": list(self.commands),
            "warnings": list(self.warnings),
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        marked = [*(f"warning: {one}" for one in self.warnings), *(f"problem: {one}" for one in self.problems)]
        return "\n".join([*self.lines, *(f"$ {one}" for one in self.commands), *marked])


def plan_compute(
    model: str | Path | None,
    config: TrainConfig,
    *,
    gpus: Sequence[int] | None = None,
    processes: int | None = None,
    build: VllmBuild | None = None,
    folder: str | Path | None = None,
) -> ComputePlan:
    """`gpus`: the memory of each in bytes, and with them a machine with vLLM for GPUs, or this one where None;
    `processes`: how many train there, `build`: the vLLM; as they are where None.
    `folder`: of the run."""
    seen = visible_gpus() if gpus is None else list(gpus)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size()))) if processes is None else processes
    problems, warnings = list[str](), list[str]()
    if gpus is not None:
        build = build or ON_GPUS  # another machine's
    elif config.engine == "vllm" and not config.vllm.urls and build is None:
        try:
            build = find_vllm(config.vllm.python)
        except ConfigError as error:
            problems.append(str(error))
    on_cpu = build.cpu if build is not None else not seen
    dtype = config.sampled_in(on_cpu=on_cpu)
    shown = f"{len(seen)} {plural(len(seen), 'GPU')} ({', '.join(map(_gb, seen))})" if seen else "no GPU"
    lines, placement = [f"machine: {shown}"], Placement()
    weights = weight_bytes(model)
    guessed = 0 if weights or gpus is None else _named_bytes(model)  # what starts here is not refused by a name
    memory = memory_on_gpus(model, config, processes=here, weights=weights or guessed)
    if config.engine == "vllm":
        served = (weights or guessed) * _WIDTHS.get(dtype, 4) // 4
        training = memory if seen else None
        placement = place_servers(config.vllm, [] if on_cpu else seen, weight_bytes=served, training=training)
        problems += placement.problems
        by_gpu = config.vllm.way(config.lora.r) == "transfer" and config.vllm.transfer_backend != "shared_memory"
        if gpus is None and by_gpu:
            try:
                check_trainer(config.vllm.transfer_backend)
            except ConfigError as error:
                problems.append(str(error))
        warnings += _releases(build, on_cpu, len(seen))
    here_on_cpu = gpus is None and on_cpu and not config.vllm.urls
    if here_on_cpu and dtype == "bfloat16" and has_bfloat16() is False:
        warnings.append(
            "sampler_dtype is bfloat16, for which this machine's processor has no instructions: rollouts may take "
            "twice as long as in float32; leave sampler_dtype out"
        )
    basis = f"{_gb(guessed)} of weights, by its name; " if guessed else ""
    lines += [
        _training(model, config, seen, here, memory if weights or guessed else None, basis),
        *_sampling(config, placement, build, on_cpu, dtype),
    ]
    if here_on_cpu and dtype == "float32" and has_bfloat16():
        lines.append("sampler_dtype: bfloat16 takes less time for rollouts on this processor (docs/benchmarks.md)")
    if seen and here > len(seen):
        problems.append(
            f"{here} processes train here, and there {'is 1 GPU' if len(seen) == 1 else f'are {len(seen)} GPUs'}; "
            f"launch {len(seen)} on this host"
        )
    if seen and (taken := memory.at_work + _OF_CUDA) > (smallest := min(seen[:here] or seen)):
        ways = [f"{name}={str(value).lower()}" for name, value, _ in ways_left(config) if "offload" not in name]
        ways += ["more processes with FSDP2 (docs/distributed.md)", "a smaller model"]
        problems.append(
            f"an update may take {_gb(taken)} of a GPU, which has {_gb(smallest)}; what lowers it: {', '.join(ways)}"
        )
    commands = _commands(model, config, placement, build, dtype, folder) if config.engine == "vllm" else ()
    return ComputePlan(tuple(lines), commands, tuple(problems), tuple(warnings), placement, dtype, on_cpu)


def settle_sampler(model: str | Path | None, options: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """With the correction of the sampler's gap, and lines about which servers compute where. Raises `ConfigError` where
    that cannot work."""
    plan = plan_compute(model, options)
    mode = _correction(options, plan.on_cpu)
    options = options.changed({"off_policy.importance_sampling_mode": mode})
    warnings = [f"warning: {one}" for one in plan.warnings]
    if options.engine != "vllm":
        return options, warnings
    if plan.problems:
        raise ConfigError(plan.problems[0])
    return options, [*plan.lines, *warnings]


def _correction(config: TrainConfig, on_cpu: bool) -> str:
    """`TrainConfig.correction`, where the launcher may have asked for passes in bfloat16, too."""
    return config.changed({"batching.bf16": mixed_precision(config) == "bf16"}).correction(on_cpu=on_cpu)


_OF_CUDA = 1_000_000_000
_OF_THE_TEMPLATE = 512
"""Tokens of a template's own words, and for each message."""
_OF_A_MESSAGE = 32


def context_of_rollouts(limits: Limits, tools: Toolset, tasks: Sequence[Task]) -> int:
    """The most tokens of a rollout, prompt included, where a character takes a token at most; a few times what rollouts
    have. `tasks`: all that will be played."""
    shown = sum(len(tool.model_dump_json()) for tool in tools.tools)
    asked = max((len(task.model_dump_json(include={"prompt", "later_turns"})) for task in tasks), default=0)
    results = limits.max_calls * (tools.max_result_chars + _OF_A_MESSAGE)
    return _OF_THE_TEMPLATE + shown + asked + limits.max_tokens + limits.max_turns * _OF_A_MESSAGE + results


def _training(
    model: str | Path | None,
    config: TrainConfig,
    gpus: Sequence[int],
    processes: int,
    memory: TrainingMemory | None,
    basis: str,
) -> str:
    name = str(model or "the embedded model")
    what = f"adapters of rank {config.lora.r} of {name}" if config.lora.r else f"all weights of {name}"
    passes = ", passes in bfloat16" if mixed_precision(config) == "bf16" else ""
    where = f"GPU{'s' * (processes > 1)} {', '.join(map(str, range(processes)))}" if gpus else "the CPU"
    if memory is None:
        return f"training: {what}, float32{passes}, on {where}; what it takes is not known until the model is here"
    if not gpus:
        needed = needed_memory(model, config)
        return f"training: {what}, float32{passes}, on {where}; {_gb(needed.least)} to {_gb(needed.usual)} of memory"
    return (
        f"training: {what}, float32{passes}, on {where}; {basis}about {_gb(memory.at_work)} of each in an update, "
        f"{_gb(memory.at_rest)} while rollouts are sampled"
    )


def _sampling(
    config: TrainConfig, placement: Placement, build: VllmBuild | None, on_cpu: bool, dtype: Dtype
) -> list[str]:
    mode = _correction(config, on_cpu)
    settled = "" if config.off_policy.importance_sampling_mode is None else ", as asked for"
    correction = f"sampler's gap: off_policy.importance_sampling_mode {mode}{settled}"
    if config.engine == "embedded":
        return [f"sampling: the embedded engine in this process, in {dtype}, where the training is", correction]
    vllm = config.vllm
    way = vllm.way(config.lora.r)
    sent = f"weights: by {way}{f' ({vllm.transfer_backend})' * (way == 'transfer')}, where they have changed"
    if vllm.urls:
        return [f"sampling: {len(vllm.urls)} running vLLM servers, in what they were started with", sent, correction]
    release = f"vLLM {build.version}".strip() if build is not None else "vLLM"
    servers = f"{vllm.replicas} server{'s' * (vllm.replicas > 1)}"
    if on_cpu:
        where = f"on the CPU{', compiled' * (dtype == 'bfloat16')}"
    elif not placement.servers:
        where = "where vllm.environment and vllm.arguments place them"
    elif placement.sleeps or placement.share is not None:
        share = f"{placement.share:.0%} of its memory" if placement.share is not None else "as vllm.arguments has it"
        where = f"on GPU 0 beside the training: {share}{', given up in updates' * placement.sleeps}"
    else:
        each = [" and ".join(map(str, gpus)) for gpus in placement.servers]
        where = (
            f"on GPU{'s' * (len(each) > 1 or gpus_of_a_server(vllm) > 1)} {'; '.join(each)}, which nothing else uses"
        )
    return [f"sampling: {release}, {servers} in {dtype}, {where}", sent, correction]


START = "start"
"""The folder of the copy, below that of the servers."""


def starts_from_a_copy(build: VllmBuild, *, tied: bool) -> bool:
    """Whether vLLM is started with a copy of the model whose embeddings are apart, so that it can take all weights."""
    return tied and build.cpu


def _commands(
    model: str | Path | None,
    config: TrainConfig,
    placement: Placement,
    build: VllmBuild | None,
    dtype: Dtype,
    folder: str | Path | None,
) -> tuple[str, ...]:
    if config.vllm.urls:
        return ()
    adapters = config.vllm.takes_adapters(config.lora.r)
    build = build or ON_GPUS
    place = str(model if model is not None else embedded_place())
    if not adapters and starts_from_a_copy(build, tied=_is_tied(model)):
        place = str(Path(folder or "RUN") / "vllm" / START)
    transfers = config.vllm.way(config.lora.r) == "transfer"
    command = ServerCommand.of(
        place,
        config.vllm,
        build=build,
        lora_rank=config.lora.r if adapters else 0,
        context_tokens="TOKENS",
        dtype=dtype,
        placement=placement,
        transfer=TransferSettings.of(config.vllm.transfer_backend) if transfers else None,
    )
    return tuple(command.typed(replica, "PORT") for replica in range(config.vllm.replicas if placement.servers else 1))


def _is_tied(model: str | Path | None) -> bool:
    """Whether the model's head is its embedding; False where the model is not on this disk."""
    found = None if model is None else folder_here(model)
    if found is None:
        return model is None
    from transformers import AutoConfig

    try:
        return bool(AutoConfig.from_pretrained(found, trust_remote_code=False).tie_word_embeddings)
    except (OSError, ValueError, AttributeError):  # loading it raises an error
        return False


def _releases(build: VllmBuild | None, on_cpu: bool, gpus: int) -> list[str]:
    found = []
    if build is not None and build.cpu and gpus:
        found.append(
            f"the vLLM in {build.python} is a build for CPUs and does not use the {gpus} {plural(gpus, 'GPU')} here; "
            f"{INSTALL} in an environment of its own, and name its Python as vllm.python"
        )
    if build is not None and build.untested is not None:
        found.append(build.untested)
    if build is not None and not on_cpu and "VLLM_USE_V2_MODEL_RUNNER" not in os.environ:
        found.append(
            "on GPUs vLLM takes its model runner V2, with which toolbake has not been run; where log-probabilities "
            'differ (sampler_gap in the metrics), set vllm.environment to {"VLLM_USE_V2_MODEL_RUNNER": "0"}'
        )
    return found


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
