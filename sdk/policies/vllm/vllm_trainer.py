"""The classes of vLLM that a trainer uses. Import it only where vLLM is installed beside the trainer."""

from __future__ import annotations

import base64
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import TrainerInitInfo

from ..server_process import free_port
from .control import call


class SyncClient:
    """vLLM's `VLLMWeightSyncClient` over our own connection. `refused`: what went wrong in a call, for whoever cannot
    see it because the other side of a transfer is still waited for."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self._url = url
        self._client = client
        self.refused: Exception | None = None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update_weights", {"update_info": for_json(update_info)})

    def finish_weight_update(self, weight_version: str | None = None) -> None:  # noqa: ARG002
        """The version is told to the server later, when its cache is empty, too."""
        self._call("finish_weight_update")

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        try:
            call(self._client, f"{self._url}/{path}", body)
        except Exception as error:
            self.refused = error
            raise


def for_json(update_info: dict[str, Any]) -> dict[str, Any]:
    """Handles of CUDA IPC as the server wants them over HTTP: pickled, in base64."""
    handles = update_info.get("ipc_handles")
    if handles is None:
        return update_info
    rest = {name: value for name, value in update_info.items() if name != "ipc_handles"}
    return {**rest, "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode()}


class Source(WeightSource):  # type: ignore[misc]
    """The state that is to be sent, in its own dtypes: a server rounds them as it does those of a checkpoint.

    A head that is tied to the embedding is sent, too: a server may have untied them.
    """

    def __init__(self, state: Callable[[], Mapping[str, torch.Tensor]], device: str) -> None:
        """`state` has the same names, dtypes and shapes each time."""
        self._state = state
        self._device = device

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._state().items():
            yield name, tensor.detach().to(self._device)

    def _metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._state().items()]

    if hasattr(WeightSource, "iter_full"):
        metadata: Any = cached_property(_metadata)
    else:  # vLLM 0.32: metadata is a method, and the source itself is iterated
        metadata, __iter__ = _metadata, iter_full


def _nccl(url: str, workers: int) -> TrainerInitInfo:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    address = _address_towards(url)
    return NCCLTrainerInitInfo(master_address=address, master_port=free_port(address), world_size=1 + workers, rank=0)


def _ipc(url: str, workers: int) -> TrainerInitInfo:  # noqa: ARG001
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=0)


INIT_INFO: dict[str, Callable[[str, int], TrainerInitInfo]] = {"nccl": _nccl, "ipc": _ipc}
"""What vLLM's trainer engine of each backend needs to know of a server: its URL and the number of its workers. One
trainer sends, whatever the number of training processes."""


def trainer_engine(info: TrainerInitInfo, sync: SyncClient, source: Source) -> Any:
    """vLLM's engine, its group with the server's workers made."""
    return WeightTransferTrainerFactory.trainer_init(info, client=sync, source=source)


def _address_towards(url: str) -> str:
    """Where this machine is reached from that of `url`."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))  # sends nothing
        address: str = probe.getsockname()[0]
        return address
