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
_FOR_EACH_IN_FLIGHT = 2_000
"""Some rollouts' worth of what is held and left behind: with a thousand of them 50 000 new containers are those of
their next turn, and nothing that could be thrown away. A walk takes half a microsecond a container, in which all of
them wait: a third of a second with 500 for each, after every seven thousand rollouts."""
_MOST_NEW = 5_000_000
"""So many with 2,500 rollouts and more; a limit that stands for "as many as there are" must not keep all garbage, nor
be more than Python takes."""
_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds to go back to, one entry for each block that is open."""
_raised_to = 0
"""The threshold that the blocks which are open have set."""


@contextlib.contextmanager
def fewer_collections(in_flight: int = 0) -> Iterator[None]:
    """In this block the youngest generation is collected after 50 000 new containers, or 2 000 for each of the
    `in_flight` rollouts where that is more, 5 000 000 at most. Blocks may overlap: the rarest holds until the
    last has ended.

    Nothing changes where collections are off, or rarer already; a threshold set within the block stays.
    """
    global _raised_to
    wanted = min(max(_NEW_CONTAINERS, _FOR_EACH_IN_FLIGHT * in_flight), _MOST_NEW)
    with _lock:
        first, second, third = gc.get_threshold()
        _before.append(_before[0] if _before else (first, second, third))
        if 0 < first < wanted:
            gc.set_threshold(wanted, second, third)
            _raised_to = wanted
    try:
        yield
    finally:
        with _lock:
            then = _before.pop()
            if not _before and gc.get_threshold()[0] == _raised_to:
                gc.set_threshold(*then)
