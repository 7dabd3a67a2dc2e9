"""Memory that a training step spares. The optimiser's moments wait in files while the model computes. Adam takes an
eighth of the weights at a time, with their moments alone in memory. What one part of a step frees goes back to the
system before the next part begins.

Moments are read and written once a step, gradients and activations are there before and after. So neither needs to
be in memory beside the other (ZeRO-Infinity, arXiv 2104.07857, section 5, does the same with the optimiser's state).
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ..errors import ToolbakeError
from ..process import give_freed_memory_back
from .compute_plan import ADAM_PARTS
from .config import TrainConfig


def sparing_memory(config: TrainConfig, folder: Path) -> list[TrainerCallback]:
    """The callbacks of a trainer that writes into `folder`."""
    offloads = [OffloadedMoments(folder)] if config.batching.offload_optimizer else []
    return [GiveFreedMemoryBack(), *offloads]


class GiveFreedMemoryBack(TrainerCallback):  # type: ignore[misc]
    """Before the optimiser's step and the next micro-batch, what the activations took; after a step, what the gradients
    did.

    Gradients lie between what the activations of a micro-batch took, and those of the next one are of other sizes: they
    would take new memory beside it.
    """

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        give_freed_memory_back()

    on_substep_end = on_step_end = on_pre_optimizer_step


class OffloadedMoments(TrainerCallback):  # type: ignore[misc]
    """Moves the moments of an optimiser on a CPU into files without names, mapped into memory.

    Their pages are in memory for the optimiser's step and for checkpoints: for Adam's those of a part of the weights at
    a time. In between the system may keep them, as of any file, as long as it has nothing better to do with the memory.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: on the disk that holds the moments."""
        self._folder = folder
        self._parts: list[Part] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002
        if optimizer is None:
            return
        own = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper calls the one inside
        self._parts = divide([group["params"] for group in own.param_groups], ADAM_PARTS if _in_parts(own) else 1)
        self._put_away(own)  # of a run that goes on from a checkpoint, whose moments are there already
        if len(self._parts) > 1:
            step_in_parts(own, self._parts, self._folder)

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002
        self._put_away(optimizer)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        for part in self._parts:
            part.let_go()

    def _put_away(self, optimizer: Any) -> None:
        for part in self._parts:
            part.put_away(optimizer, self._folder)


class Part:
    """Weights that the optimiser takes together, and the file that has their moments."""

    def __init__(self, weights: list[list[torch.Tensor]]) -> None:
        """`weights`: of each of the optimiser's groups."""
        self.weights = weights
        self._pages: mmap.mmap | None = None

    def put_away(self, optimizer: Any, folder: Path) -> None:
        """Take the moments out of memory: the first time they move into a file, which has them from then on."""
        if self._pages is not None:
            self.let_go()
            return
        moments = list(self._moments(optimizer.state))
        if not moments:
            return
        ends = _ends([tensor.nbytes for _, _, tensor in moments])
        self._pages = pages = _mapped(folder, ends[-1])
        for end in ends:
            of_weight, name, tensor = moments.pop(0)  # so that each is freed as soon as it is in the file
            begin = end - _whole_pages(tensor.nbytes)
            kept = torch.frombuffer(pages, dtype=tensor.dtype, count=tensor.numel(), offset=begin).view(tensor.shape)
            of_weight[name] = kept.copy_(tensor)
            self.let_go(begin, end - begin)
        del tensor
        give_freed_memory_back()

    def let_go(self, begin: int = 0, length: int | None = None) -> None:
        """Take pages out of this process's memory. What was written stays in the file."""
        if self._pages is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, begin, len(self._pages) - begin if length is None else length)

    def _moments(self, state: Mapping[Any, dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
        """(a weight's state, name, tensor) of all that is worth a page; nothing on a GPU or of shards."""
        for weight in (weight for weights in self.weights for weight in weights):
            for name, value in state.get(weight, {}).items():
                if type(value) is torch.Tensor and value.device.type == "cpu" and value.nbytes >= mmap.PAGESIZE:
                    yield state[weight], name, value


def divide(groups: Sequence[Sequence[torch.Tensor]], parts: int) -> list[Part]:
    """All weights of an optimiser's groups, in their order: so small a part of them together, or one weight alone."""
    most = sum(weight.nbytes for weights in groups for weight in weights) / parts
    found: list[list[list[torch.Tensor]]] = []
    taken = 0
    for number, weights in enumerate(groups):
        for weight in weights:
            if not found or taken + weight.nbytes > most:
                found.append([[] for _ in groups])
                taken = 0
            found[-1][number].append(weight)
            taken += weight.nbytes
    return [Part(weights) for weights in found]


def _in_parts(optimizer: Any) -> bool:
    """Whether each weight's step needs nothing but its own gradient and moments, so that it does not matter which ones
    take it together. True of Adam; others have figures of their groups that a step changes."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return isinstance(optimizer, torch.optim.Adam) and all(
        type(weight.data) is torch.Tensor and weight.device.type == "cpu" for weight in weights
    )


def step_in_parts(optimizer: Any, parts: Sequence[Part], folder: Path) -> None:
    """Have each step of `optimizer` take one part after the other, whose moments are put away before the next one's
    are read. The weights get the same bits."""
    step = optimizer.step

    @functools.wraps(step)  # a scheduler looks for its mark on it
    def in_parts(closure: None = None) -> None:
        groups = optimizer.param_groups
        whole = [group["params"] for group in groups]
        try:
            for part in parts:
                for group, weights in zip(groups, part.weights, strict=True):
                    group["params"] = weights
                step(closure)
                part.put_away(optimizer, folder)
        finally:
            for group, weights in zip(groups, whole, strict=True):
                group["params"] = weights

    optimizer.step = in_parts


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
