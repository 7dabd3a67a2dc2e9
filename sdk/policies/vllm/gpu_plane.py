"""Weights from the trainer's GPU to a server's, by the trainer's side of vLLM's own transfer: NCCL or CUDA IPC.

Written against vLLM 0.32. What is told to the servers, and what happens when one fails, is tested with vLLM for CPUs
and a backend for CPUs; the bytes of NCCL and of CUDA IPC have not been sent anywhere yet.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import httpx

from ...errors import ConfigError, PolicyFailure
from .control import call, held_version, unwell
from .shared_memory import SharedWeights

GpuBackend = Literal["nccl", "ipc"]
T = TypeVar("T")

_LOOK_S = 0.2
_HEALTH_S = 2.0
_UNTRIED = "nobody has run it on a GPU yet"


def check_trainer(backend: str) -> None:
    """Raises `ConfigError` where this process cannot send weights this way. Takes seconds: it imports vLLM."""
    asked = f'vllm.transfer_backend is "{backend}"'
    other = 'or use transfer_backend "shared_memory" or publish "checkpoint"'
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"{asked} ({_UNTRIED}), for which the trainer's own environment needs the servers' release of vLLM, too; "
            f"install it there, {other}"
        )
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"{asked} ({_UNTRIED}), and torch finds no GPU here; train on one, {other}")
    if backend == "ipc" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"{asked}, and several processes train; vLLM would wait for all of them: use nccl, {other}")
    try:
        from . import vllm_trainer  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{asked}, and the vLLM here has no such transfer ({error}); install 0.32, {other}") from None


class GpuPlane:
    """vLLM's trainer engine, one for each server: each gets all the weights, one server after the other."""

    def __init__(self, backend: str, *, device: str) -> None:
        """`backend`: a name in vLLM's factories. `device`: where the weights are sent from. See `check_trainer`."""
        self.server_arguments: tuple[str, ...] = ("--weight-transfer-config", json.dumps({"backend": backend}))
        # Handles of CUDA IPC come as pickles: only from us, since the servers that we start listen on this machine.
        self.server_environment: Mapping[str, str] = (
            {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if backend == "ipc" else {}
        )
        self._backend = backend
        self._device = device
        self._kept = SharedWeights()
        self._state: Mapping[str, Any] = {}
        self._lines: dict[str, tuple[str, Any]] = {}
        """For each URL: what the server there said that it has when it was last used, and vLLM's engine."""
        self._one_at_a_time = threading.Lock()

    def take(self, state: Mapping[str, Any], mark: str) -> None:
        """Keeps a copy in main memory, for servers that come back while the trainer goes on."""
        self._kept.write(state, mark)
        self._state = state

    def let_go(self) -> None:
        """From now on the copy is sent."""
        self._state = self._kept.read()

    def connect(self, url: str, client: httpx.Client, mark: str) -> None:
        """Make a group with the server's workers, unless there is one."""
        self._kept.require(mark)
        with self._one_at_a_time:
            if self._lines.get(url, ("", None))[0] == held_version(url, client):
                return
            self._drop(url)  # the server there is another one by now
            self._open(url, client)

    def send(self, url: str, client: httpx.Client, mark: str) -> None:
        """To this server; then, the first time, see whether they were all of its weights."""
        with self._one_at_a_time:
            known, engine = self._lines[url]
            self._watched(url, client, engine, engine.send_weights)
            if not known:
                self._compare(url, client, engine)
            self._lines[url] = (mark, engine)

    def close(self) -> None:
        """Leave the groups."""
        for url in list(self._lines):
            self._drop(url)
        self._state = {}
        self._kept.close()

    def _open(self, url: str, client: httpx.Client) -> None:
        from . import vllm_trainer

        workers = int(client.get(f"{url}/get_world_size").json()["world_size"])
        if self._backend == "ipc" and workers > 1:
            raise PolicyFailure(
                f"{url} has {workers} workers, and by CUDA IPC weights get to those on the trainer's own GPU only; use "
                'transfer_backend "nccl"'
            )
        info = vllm_trainer.INIT_INFO[self._backend](url, workers)
        sync = vllm_trainer.SyncClient(url, client)
        source = vllm_trainer.Source(lambda: self._state, self._device)
        made = self._watched(url, client, sync, lambda: vllm_trainer.trainer_engine(info, sync, source))
        self._lines[url] = ("", made)

    def _compare(self, url: str, client: httpx.Client, engine: Any) -> None:
        """What is not sent, a server silently keeps as it was. So set all its weights to zero, send once more, and see
        whether it has the same weights as after the first time."""
        first = call(client, f"{url}/weight_checker", {"action": "checksum"}).json()["checksums"]
        call(client, f"{url}/weight_checker", {"action": "reset"})
        self._watched(url, client, engine, engine.send_weights)
        answer = call(client, f"{url}/weight_checker", {"action": "compare", "baseline": first}).json()
        if not answer["match"]:
            names = answer["mismatches"]
            raise PolicyFailure(
                f"{len(names)} weights of {url} do not come from the trainer's: {', '.join(names[:3])}; set publish to "
                '"checkpoint"'
            )

    def _watched(self, url: str, client: httpx.Client, engine: Any, work: Callable[[], T]) -> T:
        """`work`, as long as the server answers. A group whose other side has gone waits for ever, so it is left alone
        then: the trainer cannot be healed, but its run ends with an error and goes on from its folder."""
        sync = getattr(engine, "client", engine)
        sync.refused = None
        result = _InThread(work, self._device)
        looked = time.monotonic()
        while not result.done.wait(_LOOK_S):
            problem = sync.refused
            if problem is None and time.monotonic() - looked > _HEALTH_S:
                with contextlib.suppress(httpx.TimeoutException):  # it is busy
                    problem = unwell(url, client)
                looked = time.monotonic()
            if problem is not None and not result.done.wait(_LOOK_S):
                self._lines.pop(url, None)
                raise PolicyFailure(f"the transfer of weights to {url} broke off: {problem}")
        try:
            value: T = result.get()
        except Exception as error:
            self._drop(url)
            raise PolicyFailure(f"the transfer of weights to {url} broke off: {sync.refused or error}") from error
        return value

    def _drop(self, url: str) -> None:
        _, engine = self._lines.pop(url, ("", None))
        if engine is not None:
            engine.shutdown()


class _InThread:
    """A call in a thread that nobody has to wait for."""

    def __init__(self, work: Callable[[], Any], device: str) -> None:
        self.done = threading.Event()
        self._value: Any = None
        self._error: Exception | None = None
        self._work, self._device = work, device
        threading.Thread(target=self._run, name="vllm-transfer", daemon=True).start()

    def get(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            if self._device.startswith("cuda"):
                import torch

                torch.cuda.set_device(self._device)  # each thread has its own
            self._value = self._work()
        except Exception as error:
            self._error = error
        finally:
            self.done.set()
