"""For all tests."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core of its own; with more threads than cores, threads wait for each other at every barrier.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
