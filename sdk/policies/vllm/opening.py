"""From options to a policy: servers started or found, looked at, looked after, and ended."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx

from ...errors import ConfigError, PolicyFailure
from ...progress import Progress, Silent
from .fleet import Fleet
from .looking import look_at
from .options import VllmOptions
from .pieces import warn_of_pieces
from .planes import DataPlane, open_plane
from .policy import VllmPolicy
from .process import SERVED_MODEL, VllmProcess
from .replica import Replica, needs_certificates
from .starting import Starter, wait_until_ready
from .watching import StartAgain, Watcher


@asynccontextmanager
async def open_vllm(
    model: str,
    options: VllmOptions | None = None,
    *,
    lora_rank: int = 0,
    context_tokens: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    publishes: bool = True,
) -> AsyncIterator[VllmPolicy]:
    """vLLM with `model` (a folder or a hub name), ready to sample; what we started is ended at the end.

    `lora_rank`: the rank of the adapters that will be published, 0 for none. `context_tokens`: less than the model
    takes. `folder`: for the servers' logs and for weights on their way, a temporary one where None; running servers
    must be able to read it. `publishes`: whether weights will be published at all.

    Raises `ConfigError` where there is no vLLM, where weights cannot be sent as the options say, or where a server is
    set up so that its log-probabilities are of no use; `PolicyFailure` where a server does not start or does not
    answer.
    """
    options = options or VllmOptions()
    transfers = publishes and options.way(lora_rank) == "transfer"
    plane = await anyio.to_thread.run_sync(open_plane, options) if transfers else None
    with _folder_or_temporary(folder) as place, _closed(plane):
        replicas = [Replica(url, base="") for url in options.urls]
        start_again: StartAgain = _never
        try:
            if not options.urls:
                make = partial(Starter, lora_rank=lora_rank, context_tokens=context_tokens, folder=place, plane=plane)
                starter = await anyio.to_thread.run_sync(make, model, options)
                start_again = starter.start_again
                await _start(replicas, starter, options, progress or Silent())
            context = await anyio.to_thread.run_sync(_look_at_all, replicas, options.served_model, publishes)
            fleet = Fleet(
                replicas,
                recover_timeout_s=options.recover_timeout_s,
                drain_timeout_s=options.request_timeout_s + 30,
            )
            watchers = [
                Watcher(fleet, replica, start_again=start_again, start_timeout_s=options.start_timeout_s)
                for replica in replicas
            ]
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
            async with httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=10.0), limits=limits, verify=needs_certificates(replicas)
            ) as client:
                async with _looked_after(fleet, watchers):
                    yield VllmPolicy(
                        fleet,
                        client,
                        options=options,
                        context_tokens=min(context, context_tokens or context),
                        weights_folder=place / "weights",
                        takes_adapters=options.takes_adapters(lora_rank),
                        plane=plane,
                    )
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_end, replicas)


async def _start(replicas: list[Replica], starter: Starter, options: VllmOptions, progress: Progress) -> None:
    """Adds servers of ours to `replicas`, each as soon as it was started, and waits for all."""
    for _ in range(options.replicas):
        process = starter.start()
        replicas.append(Replica(process.url, base=SERVED_MODEL, process=process))
    processes = [replica.process for replica in replicas if replica.process is not None]
    await wait_until_ready(processes, timeout_s=options.start_timeout_s, progress=progress)


@contextmanager
def _closed(plane: DataPlane | None) -> Iterator[None]:
    """Its memory is given back at the end."""
    try:
        yield
    finally:
        if plane is not None:
            plane.close()


@asynccontextmanager
async def _looked_after(fleet: Fleet, watchers: list[Watcher]) -> AsyncIterator[None]:
    for watcher in watchers:
        watcher.start()

    def stop() -> None:
        for watcher in watchers:
            watcher.stop()
        fleet.close()

    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(stop)


def _end(replicas: list[Replica]) -> None:
    for replica in replicas:
        if replica.process is not None:
            replica.process.stop()


def _look_at_all(replicas: list[Replica], named: str | None, publishes: bool) -> int:
    """Fills in what each serves; the context that all of them have. Raises as `look_at`, and `ConfigError` where they
    serve different models."""
    contexts = []
    with httpx.Client(verify=needs_certificates(replicas)) as client:
        for replica in replicas:
            facts = look_at(replica.url, client, named=replica.base or named, publishes=publishes)
            replica.base = replica.model = facts.name
            if replica.process is None:
                warn_of_pieces(replica.url, client)
            contexts.append(facts.context_tokens)
    if len({replica.base for replica in replicas}) > 1:
        found = ", ".join(f"{replica.base!r} at {replica.url}" for replica in replicas)
        raise ConfigError(
            f"the replicas serve different models ({found}); name the one that all have as served_model, or start "
            "them with the same --model and --served-model-name"
        )
    return min(contexts)


def _never(replica: Replica) -> VllmProcess:
    raise PolicyFailure(f"{replica.url} is not ours to start")


@contextmanager
def _folder_or_temporary(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()  # servers that run already have another working directory
        return
    made = Path(tempfile.mkdtemp(prefix="toolbake-vllm-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
