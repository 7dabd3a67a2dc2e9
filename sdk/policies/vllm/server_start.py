"""The start of vLLM servers: from options to a policy over servers that are started or found, watched, and stopped."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from pathlib import Path

import anyio
import anyio.to_thread
import httpx

from ...errors import ConfigError, PolicyFailure
from ...progress import Progress, Silent
from ..endpoint import error_text
from ..protocol import Sampling
from ..server_process import ServerProcess, free_port, wait_until_ready
from .control import INCOMPLETE, broken_off, held_version, is_published
from .fleet import Fleet, Replica, StartAgain, Watcher
from .policy import VllmPolicy, read_answer, request_body
from .published_weights import open_plane
from .server_command import SERVED_MODEL, Placement, ServerCommand, find_vllm, place_servers, visible_gpus
from .vllm_options import Dtype, VllmOptions

# Servers of ours: started together, started again a few times, ended.


class Starter:
    """Starts servers by one command. The processes belong to the caller."""

    def __init__(self, command: ServerCommand, *, folder: Path | None, max_restarts: int) -> None:
        """`folder`: for their logs; temporary ones where None."""
        self._command = command
        self._replicas: dict[ServerProcess, int] = {}
        self._folder = folder
        self._restarts_left = max_restarts
        self._max_restarts = max_restarts
        self._started = 0

    def start(self, replica: int) -> ServerProcess:
        """Start one, counted from 0, on its GPUs, without waiting."""
        self._started += 1
        log, port = self._folder and self._folder / f"vllm-{self._started}.log", free_port()
        command, environment = self._command.on_port(port), self._command.environment(replica)
        process = ServerProcess("vLLM", command, url=f"http://127.0.0.1:{port}", log=log, environment=environment)
        self._replicas[process] = replica
        return process

    def start_again(self, replica: Replica) -> ServerProcess:
        """One in the place of a server that ended. Raises `PolicyFailure` where that was done often enough."""
        if self._restarts_left == 0:
            raise PolicyFailure(f"{replica.problem}; it was started again {self._max_restarts} times (max_restarts)")
        self._restarts_left -= 1
        assert replica.process is not None
        return self.start(self._replicas.pop(replica.process))


_SMALL_NUCLEUS = 1e-6
"""With this top_p the most likely token is the only one, so that its log-probability is 0."""
_TOLERANCE = 1e-3
_ASKED_TOKENS = 4
_FIRST_ANSWER_S = 300.0


def look_at(url: str, client: httpx.Client, *, named: str | None, publishes: bool) -> tuple[str, int]:
    """Ask what it serves, and sample a few tokens (the first answer takes vLLM long). `named`: the model to take.
    `publishes`: weights will be published, so that it does not matter which ones it has.

    Returns the model's name there, and the most tokens of prompt and completion together.
    Raises `PolicyFailure` where it does not answer as vLLM does, `ConfigError` where it lacks the model, has another
    run's weights where none will be published, or gives log-probabilities of another distribution than it samples from.
    """
    name, context_tokens = _served(url, client, named)
    _require_usable_weights(url, client, publishes=publishes)
    sampling = Sampling(temperature=1.0, top_p=_SMALL_NUCLEUS, max_tokens=_ASKED_TOKENS)
    prompt = [1, 2, 3]
    body = request_body(name, prompt, sampling=sampling, max_tokens=_ASKED_TOKENS, seed=0, stop_token_ids=())
    try:
        answer = client.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}, timeout=_FIRST_ANSWER_S)
    except httpx.HTTPError as error:
        raise PolicyFailure(f"vLLM at {url} gave no first answer: {type(error).__name__}: {error}") from None
    if answer.status_code != 200:
        raise PolicyFailure(f"vLLM at {url} answered HTTP {answer.status_code}: {error_text(answer.text)}")
    try:
        logprobs = read_answer(answer.text, prompt=prompt, max_tokens=_ASKED_TOKENS).logprobs
    except ValueError as error:
        raise PolicyFailure(f"vLLM at {url} gave an answer that cannot be used: {error}") from None
    if min(logprobs) < -_TOLERANCE:
        raise ConfigError(
            f"vLLM at {url} gives log-probabilities of another distribution than the one it samples from (of the only "
            f"token in the nucleus {min(logprobs):.2f}, where 0 is right): start it with --logprobs-mode "
            "processed_logprobs"
        )
    return name, context_tokens


def _require_usable_weights(url: str, client: httpx.Client, *, publishes: bool) -> None:
    """Raises `PolicyFailure` where an earlier run left a part of its weights in the server, `ConfigError` where it left
    all of them and they would be taken for those that the server was started with."""
    try:
        has = held_version(url, client)
    except (httpx.HTTPError, PolicyFailure):
        return  # it need not say it while nobody gives it weights
    if has.startswith(INCOMPLETE):
        raise PolicyFailure(f"{url}: {broken_off(has)}")
    if is_published(has) and not publishes:
        raise ConfigError(
            f"vLLM at {url} has the weights that a training run published ({has}) in place of those that it was "
            "started with: start it again, with the model that is to be asked"
        )


def _served(url: str, client: httpx.Client, named: str | None) -> tuple[str, int]:
    try:
        answer = client.get(f"{url}/v1/models", timeout=30.0)
        answer.raise_for_status()
        lengths = {str(model["id"]): model["max_model_len"] for model in answer.json()["data"]}
        name = named or next(iter(lengths))
        if name in lengths and lengths[name] is not None:
            return name, int(lengths[name])
    except (httpx.HTTPError, ValueError, KeyError, StopIteration, TypeError) as error:
        raise PolicyFailure(f"{url} does not answer as vLLM does: {type(error).__name__}: {error}") from None
    raise ConfigError(f"vLLM at {url} has no base model {name!r}; it has {', '.join(sorted(lengths))}")


@asynccontextmanager
async def open_vllm(
    model: str,
    options: VllmOptions | None = None,
    *,
    lora_rank: int = 0,
    context_tokens: int | None = None,
    dtype: Dtype = "auto",
    placement: Placement | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    publishes: bool = True,
) -> AsyncIterator[VllmPolicy]:
    """vLLM with `model` (a folder or a hub name), ready to sample; what we started is ended at the end.

    `lora_rank`: the rank of the adapters that will be published, 0 for none. `context_tokens`: less than the model
    takes. `dtype`: what servers that we start compute in. `placement`: their GPUs; where None, each has GPUs of its own
    and nothing trains here. `folder`: for the servers' logs and for weights on their way, a temporary one where None;
    running servers must be able to read it. `publishes`: whether weights will be published at all.

    Raises `ConfigError` where there is no vLLM, where weights cannot be sent as the options say, or where a server is
    set up so that its log-probabilities are of no use; `PolicyFailure` where a server does not start or does not
    answer.
    """
    options = options or VllmOptions()
    transfers = publishes and options.way(lora_rank) == "transfer"
    plane = await anyio.to_thread.run_sync(open_plane, options) if transfers else None
    with _folder_or_temporary(folder) as place, closing(plane) if plane is not None else nullcontext():
        replicas = [Replica(url, base="") for url in options.urls]
        start_again: StartAgain = _never
        try:
            if not options.urls:
                if placement is None:
                    placement = Placement()
                    if options.replicas > 1 and not find_vllm(options.python).cpu:
                        placement = place_servers(options, visible_gpus())
                if placement.problems:
                    raise ConfigError(placement.problems[0])
                command = ServerCommand.of(
                    model,
                    options,
                    build=await anyio.to_thread.run_sync(find_vllm, options.python),
                    lora_rank=lora_rank,
                    context_tokens=context_tokens,
                    dtype=dtype,
                    placement=placement,
                    transfer=plane.settings if plane is not None else None,
                )
                starter = Starter(command, folder=folder and place, max_restarts=options.max_restarts)
                start_again = starter.start_again
                processes = []
                for number in range(options.replicas):  # each is in `replicas` as soon as it was started
                    processes.append(starter.start(number))
                    replicas.append(Replica(processes[-1].url, base=SERVED_MODEL, process=processes[-1]))
                await wait_until_ready(processes, options.start_timeout_s, progress or Silent(), "start_timeout_s")
            context = await anyio.to_thread.run_sync(_look_at_all, replicas, options.served_model, publishes)
            drain_s = options.request_timeout_s + 30
            fleet = Fleet(replicas, recover_timeout_s=options.recover_timeout_s, drain_timeout_s=drain_s)
            watchers = [
                Watcher(fleet, replica, start_again=start_again, start_timeout_s=options.start_timeout_s)
                for replica in replicas
            ]
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
            async with httpx.AsyncClient(timeout=httpx.Timeout(None, connect=10.0), limits=limits) as client:
                async with _looked_after(fleet, watchers):
                    yield VllmPolicy(
                        fleet,
                        client,
                        options=options,
                        context_tokens=min(context, context_tokens or context),
                        weights_folder=place / "weights",
                        takes_adapters=options.takes_adapters(lora_rank),
                        plane=plane,
                        sleeps=placement is not None and placement.sleeps,
                    )
        finally:
            with anyio.CancelScope(shield=True):
                for replica in replicas:
                    if replica.process is not None:
                        await anyio.to_thread.run_sync(replica.process.stop)


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


def _look_at_all(replicas: list[Replica], named: str | None, publishes: bool) -> int:
    """Fills in what each serves; the context that all of them have. Raises as `look_at`, and `ConfigError` where they
    serve different models."""
    contexts = []
    with httpx.Client() as client:
        for replica in replicas:
            name, context_tokens = look_at(replica.url, client, named=replica.base or named, publishes=publishes)
            replica.base = replica.model = name
            contexts.append(context_tokens)
    if len({replica.base for replica in replicas}) > 1:
        found = ", ".join(f"{replica.base!r} at {replica.url}" for replica in replicas)
        raise ConfigError(
            f"the replicas serve different models ({found}); name the one that all have as served_model, or start "
            "them with the same --model and --served-model-name"
        )
    return min(contexts)


def _never(replica: Replica) -> ServerProcess:
    raise PolicyFailure(f"{replica.url} is not ours to start")


@contextmanager
def _folder_or_temporary(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()  # servers that run already have another working directory
        return
    with tempfile.TemporaryDirectory(prefix="toolbake-vllm-", ignore_cleanup_errors=True) as made:
        yield Path(made)
