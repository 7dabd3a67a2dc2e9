"""Where keys and values are kept: a row for every conversation, and prefixes that rows share.

Axes: Y layers, 2 keys and values, R rows, K key heads, S stored tokens, D head size.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import torch

_UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0
"""`MAP_NORESERVE`, which Python names from 3.13 on. Without it Linux refuses more room than the machine has memory, and
one long conversation gives each row its room: of most of that nothing is ever written."""


class RowCache:
    """Preallocated keys and values, [Y, 2, R, K, S, D]. Room grows by doubling; nothing is copied for each token."""

    def __init__(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> None:
        heads = config.num_attention_heads
        self._layers: int = config.num_hidden_layers
        self._key_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self._head_size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._dtype = dtype
        self._device = device
        self.data, self._mapped = self._empty(0, 0)
        self.touched: list[int] = []
        """Of each row, as many tokens as were seen to be stored in it: where memory is taken only as it is written to,
        what a row takes until it is given back."""

    @property
    def token_bytes(self) -> int:
        """What the keys and values of one token take."""
        return self._layers * 2 * self._key_heads * self._head_size * int(self._dtype.itemsize)

    def ensure(self, *, rows: int, tokens: int, stored: Sequence[int] = ()) -> None:
        """Make room for so many rows and tokens of a row. Views grow stale.

        `stored`: how many tokens of each of the first rows stay; all else may be lost.
        """
        have_rows, have_tokens = self.data.shape[2], self.data.shape[4]
        self._note(stored)
        if rows <= have_rows and tokens <= have_tokens:
            return
        grown, mapped = self._empty(_room(have_rows, rows, least=8), _room(have_tokens, tokens, least=128))
        for row, length in enumerate(stored[:have_rows]):
            grown[:, :, row, :, :length] = self.data[:, :, row, :, :length]
        self.data, self._mapped, self.touched = grown, mapped, list(stored)

    def row(self, row: int) -> torch.Tensor:
        """A view of one row's keys and values, [Y, 2, K, S, D]."""
        return self.data[:, :, row]

    def swap(self, a: int, b: int, *, a_tokens: int, b_tokens: int) -> None:
        """Exchange two rows that hold so many tokens."""
        kept = self.data[:, :, a, :, :a_tokens].clone()
        self.data[:, :, a, :, :b_tokens] = self.data[:, :, b, :, :b_tokens]
        self.data[:, :, b, :, :a_tokens] = kept
        both = max(a_tokens, b_tokens)
        self._note([both if row in (a, b) else 0 for row in range(max(a, b) + 1)])

    def release(self, row: int, tokens: int) -> None:
        """Give back the memory of a row after its first `tokens`, which are all that it still needs. It stays the
        row's where the whole room was taken at once, and on systems that take no pages back."""
        if tokens >= self.touched[row]:
            return
        # There, too: for what would be counted for ever, every conversation that pauses would be forgotten, in vain.
        self.touched[row] = tokens
        if self._mapped is None or sys.platform != "linux":
            return
        step = self.data.stride(3) * self._dtype.itemsize  # of a key head
        for layer in range(self._layers):
            for kind in range(2):
                begin = self.data[layer, kind, row].storage_offset() * self._dtype.itemsize
                for head in range(self._key_heads):
                    self._discard(begin + head * step + tokens * step // self.data.shape[4], begin + (head + 1) * step)

    def _discard(self, begin: int, end: int) -> None:
        """The whole pages of these bytes go back; others may hold what stays beside them."""
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._mapped is not None and last > first:
            self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _note(self, stored: Sequence[int]) -> None:
        self.touched += [0] * (len(stored) - len(self.touched))
        self.touched[: len(stored)] = map(max, self.touched, stored)

    def separate(self, tokens: int) -> torch.Tensor:
        """Room for a prefix, [Y, 2, K, tokens, D], apart from the rows."""
        return self._empty(1, tokens)[0][:, :, 0]

    def _empty(self, rows: int, tokens: int) -> tuple[torch.Tensor, mmap.mmap | None]:
        """Zeros, and the pages they lie in where these are taken only as they are written to."""
        # Zeros, not `empty`: what lies behind a mask is multiplied by 0, and 0 times nan would be nan.
        shape = (self._layers, 2, rows, self._key_heads, tokens, self._head_size)
        if self._device.type != "cpu" or 0 in shape:
            return torch.zeros(shape, dtype=self._dtype, device=self._device), None
        # Zeroed pages from the system, which take no memory until a row writes to them. They are private where there is
        # a choice: of shared ones also reading takes memory.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNRESERVED} if sys.platform != "win32" else {}
        pages = mmap.mmap(-1, math.prod(shape) * self._dtype.itemsize, **private)
        if sys.platform == "linux":
            # Where the system makes all pages huge, one token of a row would take 2 MB for each key head of each layer,
            # and what was given back be taken again. A kernel without huge pages refuses to be told.
            with contextlib.suppress(OSError):
                pages.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(pages, dtype=self._dtype).view(shape), pages


def _room(have: int, need: int, *, least: int) -> int:
    if need <= have:
        return have
    return max(least, 1 << (need - 1).bit_length())
