"""Published weights. They are a folder with all of them, a LoRA adapter under a new name, or a transfer through vLLM's
own interface (shared memory, NCCL or CUDA IPC)."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import math
import mmap
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import httpx

from ...errors import ConfigError, PolicyFailure
from ..models.saving import fresh_folder
from .control import call, exchanged, held_version, new_name, unwell
from .in_server import IN_SERVER
from .vllm_options import VllmOptions

_WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A version of the weights; as it is, those that the server began with."""

    version: int = 0

    def at_hand(self) -> AbstractContextManager[None]:
        """In the block they are published for the first time; later they are put only to servers that come back."""
        return nullcontext()

    def put(self, url: str, client: httpx.Client, base: str) -> str:  # noqa: ARG002
        """Give them to a server. Returns the model name to ask for. Raises `PolicyFailure` where the server refuses
        them, `httpx.HTTPError` where it cannot be reached."""
        return base

    def remove(self) -> None:
        """No server needs the files any more."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Weights):
    """All weights, in a folder that the servers can read."""

    folder: Path
    mark: str = field(default_factory=new_name)
    """What the server says that it has, until it is started again."""
    compared: set[str] = field(default_factory=set)
    """The servers of which it is known that such a folder has all of their weights."""

    def put(self, url: str, client: httpx.Client, base: str) -> str:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        with exchanged(url, client, mark=self.mark, version=self.version):
            call(client, f"{url}/collective_rpc", reload)
            if url not in self.compared:
                require_all(url, client, lambda: call(client, f"{url}/collective_rpc", reload))
        self.compared.add(url)
        return base

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Adapter(Weights):
    """A LoRA adapter in PEFT's format, under a name that no other version has: the prefix cache is keyed on it."""

    folder: Path
    name: str = field(default_factory=new_name)

    def put(self, url: str, client: httpx.Client, base: str) -> str:  # noqa: ARG002
        try:
            call(client, f"{url}/v1/load_lora_adapter", {"lora_name": self.name, "lora_path": str(self.folder)})
        except PolicyFailure as error:
            # A server that was cut off while it answered has it; no other adapter has this name.
            if "has already been loaded" not in str(error):
                raise
        return self.name

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def require_all(url: str, client: httpx.Client, send_again: Callable[[], object]) -> None:
    """Raises `PolicyFailure` where a server that was just given weights has others, too: those that are not sent it
    silently keeps as they were. So all its weights are set to zero, sent once more, and compared with the first
    time."""
    first = call(client, f"{url}/weight_checker", {"action": "checksum"}).json()["checksums"]
    call(client, f"{url}/weight_checker", {"action": "reset"})
    send_again()
    answer = call(client, f"{url}/weight_checker", {"action": "compare", "baseline": first}).json()
    if not answer["match"]:
        names = answer["mismatches"]
        raise PolicyFailure(
            f"{len(names)} weights of {url} do not come from the trainer's: {', '.join(names[:3])}; start it with the "
            "model that is trained (on a CPU with an untied head, see docs/vllm.md)"
        )


def unload(url: str, client: httpx.Client, name: str) -> None:
    """Take an adapter away from a server. Raises as `Weights.put` does."""
    call(client, f"{url}/v1/unload_lora_adapter", {"lora_name": name})


def write_checkpoint(state: Mapping[str, Any], folder: Path) -> None:
    """All tensors of `state` as `model.safetensors`. A head that is tied to the embedding is written beside it: a
    server may have untied them (see `untied`).

    Raises `ModelError` where the folder cannot be written.
    """
    with fresh_folder(folder) as made:
        _save(state, made)


def untied(model: Any, tokenizer: Any, folder: Path) -> Path:
    """A copy of a transformers model whose head has a weight of its own, equal to the embedding's.

    vLLM for CPUs packs the head's weight when it starts, and does not when it takes new weights for a head that is
    tied to the embedding: it would go on with the old head.
    """
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    with fresh_folder(folder) as made:
        config.save_pretrained(made)
        model.generation_config.save_pretrained(made)
        tokenizer.save_pretrained(made)
        _save(model.state_dict(), made)
    return folder


def _save(state: Mapping[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    seen: set[int] = set()
    kept: dict[str, Any] = {}
    for name, tensor in state.items():
        shared = tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        kept[name] = tensor.detach().clone().cpu() if shared else tensor.detach().cpu().contiguous()
    save_file(kept, folder / _WEIGHTS_FILE, metadata={"format": "pt"})


T = TypeVar("T")

# All weights of one version, in memory that other processes of this machine can read.

_ALIGNED = 64
_HEADER = 64
"""Bytes at the start that name what follows."""


@dataclass(frozen=True)
class Layout:
    """Where each weight is: dtypes by torch's names, shapes, offsets in bytes from the start."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    offsets: list[int]
    size: int


def layout_of(state: Mapping[str, Any]) -> Layout:
    """One after the other in the order of `state`, each aligned to 64 bytes; weights that are tied are there twice."""
    layout, end = Layout([], [], [], [], _HEADER), _HEADER
    for name, tensor in state.items():
        layout.names.append(name)
        layout.dtype_names.append(str(tensor.dtype).removeprefix("torch."))
        layout.shapes.append(list(tensor.shape))
        layout.offsets.append(end)
        end += -(-math.prod(tensor.shape) * tensor.element_size() // _ALIGNED) * _ALIGNED
    return replace(layout, size=end)


class SharedWeights:
    """A `DataPlane`: memory of this process that servers on the same machine read, for CPUs and GPUs.

    It is anonymous (`memfd_create`), and gone with this process, however that ends. Others open it at `path`, as long
    as they run under the same user (or as root) and see this process in `/proc`. The servers need no vLLM in the
    trainer's environment, but the module in `in_server` in theirs.
    """

    def __init__(self) -> None:
        """Raises `ConfigError` where the system has no such memory."""
        if sys.platform != "linux":
            raise ConfigError(f"weights in shared memory need Linux, and this is {sys.platform}; publish as checkpoint")
        self.settings = TransferSettings.of("shared_memory")
        self._fd = os.memfd_create("toolbake-weights")
        self._memory: mmap.mmap | None = None
        self.layout = Layout([], [], [], [], 0)
        self.mark = ""
        self._reserve(_HEADER)
        self._name(f"toolbake-{uuid.uuid4().hex[:12]}-empty")

    @property
    def path(self) -> str:
        """Where other processes find it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def take(self, state: Mapping[str, Any], mark: str) -> None:
        """Copy all of `state` here, from whatever device; `mark` (at most 64 characters) names it from now on.

        Nobody may be reading meanwhile. Raises `PolicyFailure` where there is not enough memory.
        """
        import torch

        self._name("incomplete")
        layout = layout_of(state)
        self._reserve(layout.size)
        assert self._memory is not None
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        for tensor, offset, shape in zip(state.values(), layout.offsets, layout.shapes, strict=True):
            size = math.prod(shape) * tensor.element_size()
            whole[offset : offset + size].view(tensor.dtype).view(shape).copy_(tensor.detach())
        self.layout = layout
        self._name(mark)

    def let_go(self) -> None:
        """`state` was copied."""

    def connect(self, url: str, client: httpx.Client) -> None:
        """The server looks whether it can read the memory."""
        info = {"path": self.path, "mark": self.mark}
        call(client, f"{url}/init_weight_transfer_engine", {"init_info": info})

    def send(self, url: str, client: httpx.Client) -> None:
        """The server takes what has this mark, or nothing."""
        update = {**asdict(self.layout), "path": self.path, "mark": self.mark}
        del update["size"]
        call(client, f"{url}/start_weight_update")
        call(client, f"{url}/update_weights", {"update_info": update})
        call(client, f"{url}/finish_weight_update")

    def close(self) -> None:
        """Give the memory back, as soon as nobody reads it any more. Twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(BufferError):  # a view is still held; it goes with that
                memory.close()

    def _reserve(self, size: int) -> None:
        if self._memory is None or size > len(self._memory):
            try:
                os.posix_fallocate(self._fd, 0, size)  # a page that cannot be had later would end the process
            except OSError as error:
                raise PolicyFailure(
                    f"no {size / 1e9:.1f} GB of memory for a copy of the weights ({error.strerror}); set publish to "
                    '"checkpoint"'
                ) from None
            self._memory = mmap.mmap(self._fd, size)

    def _name(self, mark: str) -> None:
        assert self._memory is not None
        name = mark.encode()
        assert len(name) <= _HEADER, mark
        self._memory[:_HEADER] = name.ljust(_HEADER, b"\0")
        self.mark = mark


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
    except (ImportError, TypeError) as error:  # a class of another release cannot be made
        raise ConfigError(
            f"{asked}, and the vLLM here has no such transfer ({error}); install 0.32 or 0.33, {other}"
        ) from None


class TransferSettings(NamedTuple):
    """What a server that is sent weights must be started with."""

    server_arguments: tuple[str, ...]
    server_environment: Mapping[str, str]

    @classmethod
    def of(cls, backend: str) -> TransferSettings:
        """Of a `vllm.transfer_backend`, or of another name in vLLM's factories."""
        if backend == "shared_memory":
            extension = ("--worker-extension-cls", "toolbake_weights.Extension")
            sent = ("--weight-transfer-config", json.dumps({"backend": "toolbake"}))
            return cls((*extension, *sent), {"PYTHONPATH": str(IN_SERVER)})
        # Handles of CUDA IPC come as pickles: only from us, since the servers that we start listen on this machine.
        environment = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if backend == "ipc" else {}
        return cls(("--weight-transfer-config", json.dumps({"backend": backend})), environment)


class DataPlane(Protocol):
    """One way for the bytes of a transfer. Its calls block; `take` is never called while `send` is under way."""

    settings: TransferSettings

    def take(self, state: Mapping[str, Any], mark: str) -> None:
        """Send these weights from now on, also after `state` has changed. Do not change `state` until `let_go`."""

    def let_go(self) -> None:
        """From now on `state` may change."""

    def connect(self, url: str, client: httpx.Client) -> None:
        """Get ready to send the weights to a server, which may be another one than before at this URL. Raises
        `PolicyFailure` and `httpx.HTTPError`."""

    def send(self, url: str, client: httpx.Client) -> None:
        """All weights to a server that is at rest. Raises `PolicyFailure` and `httpx.HTTPError`; the server has a part
        of them then."""

    def close(self) -> None:
        """Nothing is sent any more, and the memory is given back."""


class GpuPlane:
    """vLLM's trainer engine, one for each server: each gets all the weights, one server after the other."""

    def __init__(self, backend: str, *, device: str) -> None:
        """`backend`: a name in vLLM's factories. `device`: where the weights are sent from. See `check_trainer`."""
        self.settings = TransferSettings.of(backend)
        self._backend = backend
        self._device = device
        self._state: Mapping[str, Any] = {}
        self._mark = ""
        self._lines: dict[str, tuple[str, Any]] = {}
        """For each URL: what the server there said that it has when it was last used, and vLLM's engine."""
        self._one_at_a_time = threading.Lock()

    def take(self, state: Mapping[str, Any], mark: str) -> None:
        """See `DataPlane.take`."""
        self._state, self._mark = state, mark

    def let_go(self) -> None:
        """From now on `state` may change: a copy in main memory is for servers that come back meanwhile."""
        self._state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._state.items()}

    def connect(self, url: str, client: httpx.Client) -> None:
        """Make a group with the server's workers, unless there is one."""
        with self._one_at_a_time:
            if self._lines.get(url, ("", None))[0] == held_version(url, client):
                return
            self._drop(url)  # the server there is another one by now
            self._open(url, client)

    def send(self, url: str, client: httpx.Client) -> None:
        """To this server; then, the first time, see whether they were all of its weights."""
        with self._one_at_a_time:
            known, engine = self._lines[url]
            self._watched(url, client, engine, engine.send_weights)
            if not known:
                require_all(url, client, lambda: self._watched(url, client, engine, engine.send_weights))
            self._lines[url] = (self._mark, engine)

    def close(self) -> None:
        """Leave the groups."""
        for url in list(self._lines):
            self._drop(url)
        self._state = {}

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

    def _watched(self, url: str, client: httpx.Client, engine: Any, work: Callable[[], T]) -> T:
        """`work`, as long as the server answers. A group whose other side has gone waits for ever, so it is left alone
        then: the trainer cannot be healed, but its run ends with an error and goes on from its folder."""
        sync = getattr(engine, "client", engine)
        sync.refused = None
        result = _in_thread(work, self._device)
        looked = time.monotonic()
        while not wait([result], _LOOK_S).done:
            problem = sync.refused
            if problem is None and time.monotonic() - looked > _HEALTH_S:
                with contextlib.suppress(httpx.TimeoutException):  # it is busy
                    problem = unwell(url, client)
                looked = time.monotonic()
            if problem is not None and not wait([result], _LOOK_S).done:
                self._lines.pop(url, None)
                raise PolicyFailure(f"the transfer of weights to {url} broke off: {problem}")
        try:
            return result.result()
        except Exception as error:
            self._drop(url)
            raise PolicyFailure(f"the transfer of weights to {url} broke off: {sync.refused or error}") from error

    def _drop(self, url: str) -> None:
        _, engine = self._lines.pop(url, ("", None))
        if engine is not None:
            engine.shutdown()


def _in_thread(work: Callable[[], T], device: str) -> Future[T]:
    """A call in a daemon thread, which nobody has to wait for."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            if device.startswith("cuda"):
                import torch

                torch.cuda.set_device(device)  # each thread has its own
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="vllm-transfer", daemon=True).start()
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer(Weights):
    """All weights, sent through vLLM's own transfer."""

    plane: DataPlane
    state: Mapping[str, Any] = field(repr=False)
    mark: str = field(default_factory=new_name)
    """What the server says that it has, until it is started again."""

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """See `Weights.at_hand`."""
        self.plane.take(self.state, self.mark)
        try:
            yield
        finally:
            self.plane.let_go()

    def put(self, url: str, client: httpx.Client, base: str) -> str:
        """See `Weights.put`."""
        self.plane.connect(url, client)  # what fails here has changed nothing
        with exchanged(url, client, mark=self.mark, version=self.version):
            self.plane.send(url, client)
        return base


def open_plane(options: VllmOptions) -> DataPlane:
    """What the options ask for. Raises `ConfigError` where this process cannot send weights that way. Blocks."""
    if options.transfer_backend == "shared_memory":
        return SharedWeights()
    check_trainer(options.transfer_backend)
    return GpuPlane(options.transfer_backend, device=f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
