"""Servers of ours: started together, waited for, started again a few times, ended."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import anyio.to_thread
import httpx

from ...errors import PolicyFailure
from ...progress import Progress
from .options import VllmOptions
from .planes import DataPlane, with_plugin
from .process import VllmProcess, on_cpu, server_arguments, vllm_python
from .replica import Replica

_LOOK_S = 0.5
_TELL_S = 15.0


class Starter:
    """Starts servers for one model. The processes belong to the caller."""

    def __init__(
        self,
        model: str,
        options: VllmOptions,
        *,
        lora_rank: int,
        context_tokens: int | None,
        folder: Path,
        plane: DataPlane | None,
    ) -> None:
        """`plane`: how weights will be sent, where they are. Raises `ConfigError` where there is no vLLM to start.
        Blocks for a second."""
        self._python = vllm_python(options.python)
        cpu = on_cpu(self._python)
        self._arguments = [
            *server_arguments(model, cpu=cpu, lora_rank=lora_rank, context_tokens=context_tokens),
            *(plane.server_arguments if plane is not None else ()),
            *options.arguments,
        ]
        self._environment = with_plugin(plane, options.environment)
        self._folder = folder
        self._restarts_left = options.max_restarts
        self._max_restarts = options.max_restarts
        self._started = 0

    def start(self) -> VllmProcess:
        """Start one, without waiting."""
        self._started += 1
        log = self._folder / f"vllm-{self._started}.log"
        return VllmProcess(self._python, self._arguments, log=log, environment=self._environment)

    def start_again(self, replica: Replica) -> VllmProcess:
        """One in the place of a server that ended. Raises `PolicyFailure` where that was done often enough."""
        if self._restarts_left == 0:
            raise PolicyFailure(f"{replica.problem}; it was started again {self._max_restarts} times (max_restarts)")
        self._restarts_left -= 1
        return self.start()


async def wait_until_ready(processes: list[VllmProcess], *, timeout_s: float, progress: Progress) -> None:
    """Wait until all answer, and say so meanwhile. Raises `PolicyFailure` where one does not."""
    started, told = time.monotonic(), time.monotonic()
    progress.say(f"starting vLLM ({len(processes)} on this machine), which takes a minute or more: {processes[0].log}")
    waiting = list(processes)
    with httpx.Client(verify=False) as client, progress.track("vLLM", len(processes)) as step:
        while waiting:
            for process in list(waiting):
                if await anyio.to_thread.run_sync(process.is_ready, client):
                    waiting.remove(process)
                    step.advance(note=f"after {time.monotonic() - started:.0f} s")
            spent = time.monotonic() - started
            if waiting and spent > timeout_s:
                raise PolicyFailure(
                    f"vLLM did not answer within {timeout_s:g} s of its start (start_timeout_s); "
                    f"{waiting[0].last_words()}"
                )
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                step.advance(0, note=f"waiting for {spent:.0f} s")
            await anyio.sleep(_LOOK_S)
