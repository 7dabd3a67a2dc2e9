"""Python's cycle collector, asked for less often while rollouts are in flight.

By default it runs after every 700 new containers, and walks through all that a thousand open conversations hold again
and again: a third of a rollout's processor time, for hardly any garbage. Reference counts free what has no cycles.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_NEW_CONTAINERS = 50_000
_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds to go back to, one entry for each block that is open."""


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """In this block the youngest generation is collected after 50 000 new containers. Blocks may overlap.

    Nothing changes where collections are off, or rarer already; a threshold set within the block stays.
    """
    with _lock:
        first, second, third = gc.get_threshold()
        _before.append(_before[0] if _before else (first, second, third))
        if 0 < first < _NEW_CONTAINERS:
            gc.set_threshold(_NEW_CONTAINERS, second, third)
    try:
        yield
    finally:
        with _lock:
            then = _before.pop()
            if not _before and gc.get_threshold()[0] == _NEW_CONTAINERS:
                gc.set_threshold(*then)
