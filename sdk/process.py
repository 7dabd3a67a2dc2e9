"""The process itself: threads, memory, and the silence of libraries.

What is for a whole process is set by the `toolbake` command for its own; the library changes nothing there. It gives
back what native libraries hold for nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
import warnings
from typing import TextIO

_NEW_CONTAINERS = 50_000
"""By default the youngest generation is collected after 700 new containers, and each collection walks through all that
a thousand open conversations hold: a third of a rollout's processor time, for hardly any garbage."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""The parameters' numbers in glibc's `malloc.h`."""
_PAD_BYTES = 64 * 2**20


def _keep_freed_memory() -> bool:
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


def tune_process() -> None:
    """Set threads, memory and garbage collection for rollouts and training. Call it before torch is imported.

    What the environment sets already is kept.
    """
    # Threads that spin at barriers slow a shared machine down by a factor of ten and more; asleep they cost little.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # But to put them to sleep at each of hundreds of barriers a token costs a sixth: they spin some microseconds.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # Large pages for large tensors: a training step otherwise spends a tenth of its time on page faults.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # oneDNN and torch's layer above it each keep what they prepare for a product of matrices of one size, of the last
    # 1,024 sizes: with other numbers of tokens in each step that is half a gigabyte after some hundred steps. A step
    # has a handful of sizes, in each layer the same.
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")
    _keep_freed_memory()
    gc.set_threshold(_NEW_CONTAINERS, *gc.get_threshold()[1:])


def keep_loaded_objects() -> None:
    """Leave all that is loaded by now out of later garbage collections, until `gc.unfreeze()`.

    A full collection walks through the 400,000 objects of torch and transformers, and stops all threads for 0.2 s of
    processor time meanwhile: nothing is answered, not even `/health`.
    """
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------------------------------------------------------------

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


def give_gpu_memory_back() -> None:
    """Give back what PyTorch keeps of a GPU's memory for what comes next: no other process could have it otherwise."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


# ---------------------------------------------------------------------------------------------------------------------


def printing_to_stderr() -> contextlib.redirect_stdout[TextIO]:
    """Inside, what tools and verifiers in Python print goes to stderr: stdout has the command's result alone."""
    return contextlib.redirect_stdout(sys.stderr)


# ---------------------------------------------------------------------------------------------------------------------

_LIBRARIES = ("accelerate", "datasets", "huggingface_hub", "peft", "safetensors", "torch", "transformers", "trl")


def quiet_libraries() -> None:
    """Silence bars and warnings of libraries that a user can do nothing about.

    Set before they are imported, and only where the user has not chosen otherwise; downloads keep their bars.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})(\.|$)")
    # A login that fails is an error of ours; the SDK logs it too, with its traceback.
    logging.getLogger("mcp.client.auth.oauth2").setLevel(logging.CRITICAL)


def quiet_bars() -> None:
    """Take away transformers' own bars ("Writing model shards"); those of downloads stay. Imports transformers."""
    from transformers.utils import logging

    logging.set_tqdm_hook(lambda _, args, options: logging.EmptyTqdm(*args, **options))
