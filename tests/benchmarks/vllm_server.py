"""vLLM on a CPU beside the embedded engine: as `sdk.train` starts it, and with vLLM's own defaults."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from engine_throughput import Seconds, timed

sys.path.insert(0, str(Path(__file__).parents[1] / "policies" / "vllm_server"))

from vllm_environment import VLLM, installed_python

__all__ = [
    "DEFAULTS",
    "FAST",
    "FOR_TRAINING",
    "RANK",
    "Vllm",
    "by_default",
    "for_training",
    "installed_python",
    "running",
]

RANK = 16
CONTEXT_TOKENS = 1024
_NAME = VLLM.replace("==", " ")
FOR_TRAINING = f"{_NAME} as `sdk.train` starts it: float32, eager, LoRA, seeds, log-probabilities"
FAST = f"{_NAME} as `sdk.train` starts it with `sampler_dtype` bfloat16: compiled, seeds, log-probabilities"
DEFAULTS = f"{_NAME} as by default: bfloat16, compiled"
START_S = 420.0


Sample = Callable[[list[int], int, int], Awaitable[int]]
"""Of a prompt, so many tokens at most, with a seed: how many tokens came."""


class Vllm(NamedTuple):
    """A server with the model, for use outside of an event loop."""

    pid: int
    sample: Sample
    forget: Callable[[], None]
    """Makes it drop the keys and values it has stored."""
    portal: Any
    policy: Any = None

    def run(self, work: Callable[[Sample], Awaitable[None]]) -> Seconds:
        """What `work` takes, which samples by the function that it is given."""
        self.forget()
        taken: list[Seconds] = []
        with timed(taken, self.processor_s):
            self.portal.call(work, self.sample)
        return taken[0]

    def run_rows(self, rows: list[list[int]], new_tokens: int) -> Seconds:
        """All rows at once."""

        async def go(sample: Sample) -> None:
            made = await asyncio.gather(*(sample(row, new_tokens, i) for i, row in enumerate(rows)))
            if sum(made) != len(rows) * new_tokens:
                raise RuntimeError(f"vLLM made {sum(made)} tokens instead of {len(rows) * new_tokens}")

        return self.run(go)

    def processor_s(self) -> float:
        """What the processes of the server have used of the processors so far."""
        import psutil

        server = psutil.Process(self.pid)
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        return sum(used.user + used.system for used in times)


@contextmanager
def for_training(loaded: Any, python: Path, *, fast: bool = False) -> Iterator[Vllm]:
    """As a policy of `sdk.train` that samples for LoRA, or with `fast` all weights in bfloat16, compiled, which takes a
    minute or more the first time; it ends no text of its own accord."""
    from anyio.from_thread import start_blocking_portal

    from sdk.policies.protocol import Sampling
    from sdk.policies.vllm import VllmOptions, open_vllm
    from sdk.policies.vllm.published_weights import untied

    # vLLM takes the end token from the tokenizer, too.
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.eos_token = None
    with tempfile.TemporaryDirectory() as folder, start_blocking_portal() as portal:
        start = untied(loaded.model, tokenizer, Path(folder) / "start")
        opening = open_vllm(
            str(start),
            VllmOptions(python=str(python), publish="transfer"),
            lora_rank=0 if fast else RANK,
            dtype="bfloat16" if fast else "auto",
            context_tokens=CONTEXT_TOKENS,
            folder=Path(folder) / "vllm",
        )
        with portal.wrap_async_context_manager(opening) as policy:

            async def sample(tokens: list[int], most: int, seed: int) -> int:
                return len((await policy.sample(tokens, sampling=Sampling(max_tokens=most), seed=seed)).token_ids)

            def forget() -> None:
                policy.publish(loaded.model.state_dict(), version=1)

            yield Vllm(policy.pids[0], sample, forget, portal, policy)


@contextmanager
def by_default(loaded: Any, python: Path) -> Iterator[Vllm]:
    """Started with nothing that changes its speed; requests without seeds and log-probabilities. It compiles the model
    first, which takes a minute or more the first time."""
    import httpx
    from anyio.from_thread import start_blocking_portal

    from sdk.policies.models import save_model

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        save_model(loaded.model, loaded.tokenizer, folder / "model")
        server = stack.enter_context(running(python, folder / "model", folder / "log.txt"))
        portal = stack.enter_context(start_blocking_portal())
        client = stack.enter_context(
            portal.wrap_async_context_manager(httpx.AsyncClient(base_url=server.url, timeout=600))
        )

        async def sample(tokens: list[int], most: int, seed: int) -> int:
            body = {"model": "model", "prompt": tokens, "max_tokens": most, "temperature": 1.0, "ignore_eos": True}
            answer = (await client.post("/v1/completions", json=body)).raise_for_status()
            made: int = answer.json()["usage"]["completion_tokens"]
            return made

        def forget() -> None:
            httpx.post(f"{server.url}/reset_prefix_cache", timeout=60).raise_for_status()

        yield Vllm(server.pid, sample, forget, portal)


class _Running(NamedTuple):
    url: str
    pid: int


@contextmanager
def running(python: Path, model: Path, log: Path) -> Iterator[_Running]:
    """vLLM's own server, once it answers."""
    import httpx

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port)]
    # Its cache can be reset in development mode only.
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as file:
        # In our process group, so that what ends this program ends the server.
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **settings})
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"vLLM does not answer:\n{log.read_text()[-2000:]}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            time.sleep(0.5)
        yield _Running(url, process.pid)
    finally:
        process.terminate()
        process.wait()
