"""Which of several places are out of order: the fewest whose removal leaves the rest ascending."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def out_of_order(places: Sequence[int]) -> list[int]:
    """Indexes of `places`, all different, that are not in one longest ascending subsequence. O(n log n).

    Example: `out_of_order([0, 3, 1, 2])` is `[1]`.
    """
    tails: list[int] = []  # tails[k]: the smallest last place of an ascending run of k + 1
    tail_index: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        k = bisect_left(tails, place)
        before.append(tail_index[k - 1] if k else -1)
        if k == len(tails):
            tails.append(place)
            tail_index.append(index)
        else:
            tails[k], tail_index[k] = place, index
    kept: set[int] = set()
    at = tail_index[-1] if tail_index else -1
    while at >= 0:
        kept.add(at)
        at = before[at]
    return [index for index in range(len(places)) if index not in kept]
