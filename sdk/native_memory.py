"""What the native libraries of this process hold for nothing: OpenMP's waiting threads, and memory that was freed."""

from __future__ import annotations

import ctypes
import sys

_SOFT = 1
"""`omp_pause_soft`, OpenMP 5.0, section 3.2.43: what is paused goes on as it was."""


def let_idle_threads_go() -> bool:
    """End the threads with which OpenMP has done the calling thread's parallel work; the next work begins new ones.

    Each thread that has multiplied matrices keeps a team of its own. Where there are more threads in teams than
    processors, at work or not, libgomp no longer has a team spin for a moment at its barriers (`GOMP_SPINCOUNT`) but
    puts it to sleep at each. A decode step of the embedded model has several hundred of them, and took a fifth longer
    beside the idle team of the thread that had loaded the model. To begin a team anew takes some 50 microseconds.

    Returns whether it did; not where torch has come with another OpenMP than libgomp, or none.
    """
    if sys.platform != "linux":
        return False
    # torch loads its OpenMP for all to see. The other one on Linux, LLVM's, pauses the teams of all threads.
    loaded = ctypes.CDLL(None)
    if hasattr(loaded, "__kmpc_fork_call") or not hasattr(loaded, "omp_pause_resource_all"):
        return False
    return bool(loaded.omp_pause_resource_all(_SOFT) == 0)


def give_freed_memory_back() -> bool:
    """Give back the whole pages of what was freed, wherever they lie, and change nothing else.

    glibc keeps much of what is freed for what comes next, and in the `toolbake` command all of it. Where one stage of a
    step frees memory that the next one does not ask of malloc, both would be held at the same time.

    Returns whether it did; not elsewhere than on glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and bool(trim(0))
