"""Gives memory that this process has freed back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_freed_memory_back() -> bool:
    """Give back the whole pages of what was freed, wherever they lie, and change nothing else.

    glibc keeps much of what is freed for what comes next, and in the `toolbake` command all of it. Where one stage of a
    step frees memory that the next one does not ask of malloc, both would be held at the same time.

    Returns whether it did; not elsewhere than on glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and bool(trim(0))
