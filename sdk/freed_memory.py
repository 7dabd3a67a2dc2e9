"""What a model's tensors free is kept for the next ones."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""The parameters' numbers in glibc's `malloc.h`."""
_PAD_BYTES = 64 * 2**20


def keep_freed_memory() -> bool:
    """Have this process keep freed memory, whatever its size, rather than give it back to the system.

    glibc gets tensors of more than 32 MB from the system one by one and gives each back when it is freed, so every step
    has all of its activations filled with zeros by the kernel before they are written: a fifth of an update's time
    on two cores. The price: the process holds on to its memory until it ends.

    To be called before other threads begin: each would have a heap of its own otherwise, of 64 MB at most.
    Returns whether it does. Not elsewhere than on glibc, and not where the environment tunes malloc already.
    """
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if sys.platform != "linux" or tuned or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: _PAD_BYTES}
    return all(mallopt(parameter, value) == 1 for parameter, value in settings.items())
