"""All weights of one version, in memory that other processes of this machine can read."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, PolicyFailure

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
    layout = Layout([], [], [], [], _HEADER)
    end = _HEADER
    for name, tensor in state.items():
        layout.names.append(name)
        layout.dtype_names.append(str(tensor.dtype).removeprefix("torch."))
        layout.shapes.append(list(tensor.shape))
        layout.offsets.append(end)
        end += -(-math.prod(tensor.shape) * tensor.element_size() // _ALIGNED) * _ALIGNED
    return Layout(layout.names, layout.dtype_names, layout.shapes, layout.offsets, end)


class SharedWeights:
    """The snapshot. Anonymous memory (`memfd_create`): it is gone with this process, however that ends.

    Others open it at `path`, as long as they run under the same user (or as root) and see this process in `/proc`.
    """

    def __init__(self) -> None:
        """Raises `ConfigError` where the system has no such memory."""
        if sys.platform != "linux":
            raise ConfigError(f"weights in shared memory need Linux, and this is {sys.platform}; publish as checkpoint")
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

    def write(self, state: Mapping[str, Any], mark: str) -> None:
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

    def require(self, mark: str) -> None:
        """Raises `PolicyFailure` where the weights here are not those with this mark."""
        if self.mark != mark:
            raise PolicyFailure(f"the weights {mark} are not here any more (there are {self.mark}); publish them again")

    def read(self) -> dict[str, Any]:
        """The weights by name: views, good until the next `write`."""
        import torch

        assert self._memory is not None
        whole, found = torch.frombuffer(self._memory, dtype=torch.uint8), {}
        one = self.layout
        for name, dtype_name, shape, offset in zip(one.names, one.dtype_names, one.shapes, one.offsets, strict=True):
            dtype = getattr(torch, dtype_name)
            found[name] = whole[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        return found

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
