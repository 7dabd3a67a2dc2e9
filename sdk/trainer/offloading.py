"""What a step holds at the same time: the optimiser's moments wait in a file while the model computes, and what one
part of a step frees goes back to the system before the next one begins.

Moments are read and written once a step, gradients and activations are there before and after. So neither needs to
be in memory beside the other (ZeRO-Infinity, arXiv 2104.07857, section 5, does the same with the optimiser's state).
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ..errors import ToolbakeError
from ..freed_memory import give_freed_memory_back
from .config import TrainConfig


def sparing_memory(config: TrainConfig, folder: Path) -> list[TrainerCallback]:
    """The callbacks of a trainer that writes into `folder`."""
    offloads = [OffloadedMoments(folder)] if config.batching.offload_optimizer else []
    return [GiveFreedMemoryBack(), *offloads]


class GiveFreedMemoryBack(TrainerCallback):  # type: ignore[misc]
    """Before the optimiser's step, what the activations took; after it, what the gradients did."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        give_freed_memory_back()

    on_step_end = on_pre_optimizer_step


class OffloadedMoments(TrainerCallback):  # type: ignore[misc]
    """Moves the moments of an optimiser on a CPU into a file without a name, mapped into memory.

    Its pages are in memory for the optimiser's step and for checkpoints. In between the system may keep them, as of any
    file, as long as it has nothing better to do with the memory.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: on the disk that holds the moments."""
        self._folder = folder
        self._pages: mmap.mmap | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Of a run that goes on from a checkpoint, whose moments are there already."""
        self._put_away(optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002
        self._put_away(optimizer)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._let_go(0, None)

    def _put_away(self, optimizer: Any) -> None:
        if self._pages is not None:
            self._let_go(0, None)
            return
        moments = list(_moments(optimizer))
        if not moments:
            return
        ends = _ends([tensor.nbytes for _, _, tensor in moments])
        self._pages = pages = _mapped(self._folder, ends[-1])
        for end in ends:
            of_weight, name, tensor = moments.pop(0)  # so that each is freed as soon as it is in the file
            begin = end - _whole_pages(tensor.nbytes)
            kept = torch.frombuffer(pages, dtype=tensor.dtype, count=tensor.numel(), offset=begin).view(tensor.shape)
            of_weight[name] = kept.copy_(tensor)
            self._let_go(begin, end - begin)
        del tensor
        give_freed_memory_back()

    def _let_go(self, begin: int, length: int | None) -> None:
        """Take pages out of this process's memory. What was written stays in the file."""
        if self._pages is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, begin, len(self._pages) - begin if length is None else length)


def _moments(optimizer: Any) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """(a weight's state, name, tensor) of all that is worth a page; nothing on a GPU or of shards."""
    for of_weight in (optimizer.state if optimizer is not None else {}).values():
        for name, value in of_weight.items():
            if type(value) is torch.Tensor and value.device.type == "cpu" and value.nbytes >= mmap.PAGESIZE:
                yield of_weight, name, value


def _whole_pages(size: int) -> int:
    return math.ceil(size / mmap.PAGESIZE) * mmap.PAGESIZE


def _ends(sizes: list[int]) -> list[int]:
    """Where each of these ends that begin at a page one after the other."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + _whole_pages(size))
    return ends[1:]


def _mapped(folder: Path, size: int) -> mmap.mmap:
    """A file of this size that goes with the process, mapped. Raises `ToolbakeError` where the disk has no room."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # or the disk could be full when a page is written: SIGBUS
            else:
                file.truncate(size)
        except OSError as error:
            raise ToolbakeError(
                f"batching.offload_optimizer needs {size / 1e9:.1f} GB in {folder}, and there is no such room: "
                f"{error.strerror}. Free some space, or set batching.offload_optimizer to false"
            ) from error
        return mmap.mmap(file.fileno(), size)
