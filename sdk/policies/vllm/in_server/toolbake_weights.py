"""A weight transfer engine inside vLLM's workers, for weights in memory that the trainer shares on the same machine.

vLLM loads it as a worker extension (`--worker-extension-cls toolbake_weights.Extension`, with this folder on
`PYTHONPATH`); loaded, it is one more backend of vLLM's own weight transfer:
`--weight-transfer-config '{"backend": "toolbake"}'`. It imports nothing of ours: vLLM has an environment of its own.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.logger import init_logger

logger = init_logger(f"vllm.{__name__}")

BACKEND = "toolbake"


@dataclass
class SharedInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the weights will be, and what the memory there begins with now."""

    path: str
    mark: str


@dataclass
class SharedUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where all weights are. `offsets`: in bytes from the start of the memory, which begins with `mark`."""

    path: str
    mark: str
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    offsets: list[int]


class SharedMemoryEngine(WeightTransferEngine[SharedInit, SharedUpdate]):  # type: ignore[misc]
    """All weights in one update, in the names and shapes of a checkpoint, by vLLM's own layerwise reload.

    Weights that the model has and the trainer did not send are an error, for vLLM would go on with the old ones; and so
    are those that it has no place for, of which vLLM leaves out some (a bias, rows too many).
    """

    init_info_cls = SharedInit
    update_info_cls = SharedUpdate

    def init_transfer_engine(self, init_info: SharedInit) -> None:
        """Raises `ValueError` where the trainer's memory cannot be read from here."""
        _mapped(init_info.path, init_info.mark).close()

    def start_weight_update(self) -> None:
        """Layers are taken apart, to be filled again."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._loaded: set[str] | None = set()
        self._sent = 0
        initialize_layerwise_reload(self.model)
        self._sizes = [(layer, _info(layer).load_numel_total or 0) for layer in self.model.modules()]

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class does; that one also waits for an accelerator, which a CPU has not."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedUpdate) -> None:
        """Raises `ValueError` where the memory holds other weights than those announced, and for a weight that the
        model does not take."""
        memory = _mapped(update_info.path, update_info.mark)
        under_way = ""

        def announced() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal under_way
            for name, tensor in _tensors(memory, update_info):
                under_way = f"{name} of shape {list(tensor.shape)}"
                yield name, tensor
            under_way = ""

        try:
            loaded = self.model.load_weights(announced())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"the model does not take {under_way or 'the weights'} ({said})") from error
        tied = getattr(self.model_config.hf_text_config, "tie_word_embeddings", False)
        for name, shape in zip(update_info.names, update_info.shapes, strict=True):
            self._sent += 0 if tied and name.startswith("lm_head.") else math.prod(shape)
        self._loaded = None if loaded is None or self._loaded is None else self._loaded | loaded

    def finish_weight_update(self) -> None:
        """Raises `ValueError` where weights of the model are missing in what was sent, or something is left over."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        said = ""
        if missing := self._missing():
            said = f"{len(missing)} weights of the model were not sent, or not whole: {', '.join(missing[:3])}"
        elif (over := self._left_over()) > 0:
            said = f"{over} numbers of what was sent have no place in the model, such as a bias or rows that it lacks"
        if said:
            if self.model_config.quantization is None:
                raise ValueError(said)
            logger.warning(said)  # what quantization adds is in no checkpoint
        finalize_layerwise_reload(self.model, self.model_config)

    def _missing(self) -> list[str]:
        """Weights that nothing was loaded into, and linear layers that lack a part, such as an attention's queries.
        Embeddings may: they have rows that pad them."""
        from vllm.model_executor.layers.linear import LinearBase

        names = {name.replace(".base_layer.", ".") for name, _ in self.model.named_parameters()}
        missing = sorted(names - self._loaded) if self._loaded is not None else []
        for name, layer in self.model.named_modules():
            info = _info(layer)
            if isinstance(layer, LinearBase) and info.can_load() and 0 < info.load_numel < info.load_numel_total:
                missing.append(name)
        return missing

    def _left_over(self) -> int:
        """How many numbers were sent and not loaded. Not known, and so 0, where each worker loads its part only."""
        if self.parallel_config.world_size > 1:
            return 0
        infos = [(_info(layer), size) for layer, size in self._sizes]
        return self._sent - sum(info.load_numel if info.can_load() else size for info, size in infos)

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def _info(layer: torch.nn.Module) -> Any:
    """What vLLM notes of a layer while it is loaded again."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    return get_layerwise_info(layer)


def _mapped(path: str, mark: str) -> mmap.mmap:
    """The memory at `path`. Private pages, so that nothing here could change the trainer's."""
    try:
        # It must not wait for whatever else may have this number where the trainer closed it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise ValueError(f"the trainer's memory cannot be read at {path}: {error}; is it on this machine?") from None
    begins = memory[: len(mark)]
    if begins != mark.encode():
        raise ValueError(f"the memory at {path} holds {begins!r} in place of {mark!r}")
    return memory


def _tensors(memory: mmap.mmap, info: SharedUpdate) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of the memory, which live as long as somebody has them."""
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    for name, dtype_name, shape, offset in zip(info.names, info.dtype_names, info.shapes, info.offsets, strict=True):
        dtype = getattr(torch, dtype_name)
        yield name, whole[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


class Extension:
    """An empty worker extension. vLLM imports this module because of it, which registers the transfer engine."""


with contextlib.suppress(ValueError):  # it is registered already
    WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)
