"""How near two calls are to each other, from 0 to 1."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from .places import Entry, Index

_LONGEST_COMPARED = 2000
"""Characters; comparing two texts takes the product of their lengths."""
_WEIGHT_OF_PLACE = 0.25


def nearest(index: Index, place: str, tool: str, arguments: Mapping[str, Any]) -> tuple[float, Entry] | None:
    """The recorded call of the same tool that is nearest in arguments and place, with its nearness; the earlier one of
    two that are equally near. None where the tool was never called."""
    way = index.way(place)
    best: tuple[float, Entry] | None = None
    near_places: dict[str, float] = {}
    for entry in index.by_tool.get(tool, ()):
        if entry.place not in near_places:
            near_places[entry.place] = _place_nearness(way, index.way(entry.place))
        near = (1 - _WEIGHT_OF_PLACE) * similarity(arguments, entry.call.arguments)
        near += _WEIGHT_OF_PLACE * near_places[entry.place]
        if best is None or near > best[0]:
            best = (near, entry)
    return best


def similarity(left: Any, right: Any) -> float:
    """1 for equal JSON values, 0 for values that have nothing in common.

    Objects: the mean over all keys of both. Lists: the mean over all places. Texts: difflib's ratio. Numbers: how
    small the difference is beside the larger one.
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        keys = {*left, *right}
        return sum(similarity(left[k], right[k]) for k in keys if k in left and k in right) / len(keys) if keys else 1.0
    if isinstance(left, list) and isinstance(right, list):
        longest = max(len(left), len(right))
        return sum(map(similarity, left, right)) / longest if longest else 1.0
    if isinstance(left, bool) or isinstance(right, bool):
        return float(left is right)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return max(0.0, 1 - abs(left - right) / (max(abs(left), abs(right)) or 1))
    if isinstance(left, str) and isinstance(right, str):
        if left == right:
            return 1.0
        matcher = difflib.SequenceMatcher(None, left[:_LONGEST_COMPARED], right[:_LONGEST_COMPARED], autojunk=False)
        return matcher.ratio()
    return float(left == right)


def _place_nearness(left: Sequence[str], right: Sequence[str]) -> float:
    """How much of both ways is the same beginning."""
    shared = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        shared += 1
    return shared / max(len(left), len(right))
