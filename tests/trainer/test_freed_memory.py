"""On a CPU the memory of freed tensors is used again, without a fault of a page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import threading
import sdk
from sdk.freed_memory import keep_freed_memory

keep_freed_memory()
import torch

def pages_of_a_large_tensor():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(32, 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def in_a_thread():
    print(min(pages_of_a_large_tensor() for _ in range(6)))

thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()
"""
LARGE_PAGES = 64
"""As many as the tensor has if all are large; small ones are more."""


def faults(**environment: str) -> int:
    env = {**os.environ, **environment}
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_a_large_tensor_takes_the_place_of_one_that_was_freed() -> None:
    assert faults() < LARGE_PAGES / 4


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_an_environment_that_tunes_malloc_is_left_as_it_is() -> None:
    assert faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") >= LARGE_PAGES
