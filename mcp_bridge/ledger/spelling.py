"""Values as text that Python does not write itself."""

from __future__ import annotations

from typing import Literal

_Step = tuple[Literal["value", "item", "end"], object, int]
"""What is to be done next: write a value; join what was written of an item of a set; close a container. With the place
among what is written at which the set's items begin, or the item."""


def spelled(value: object) -> str:
    """Whole numbers of more than 4 300 digits, as hexadecimal ones, which take no time squared, and what is nested a
    thousand times or more. A set is written in the order of its items' texts; what cannot be written at all, by the
    name of its type. Never raises."""
    written: list[str] = []
    within: set[int] = set()  # the containers around what is next
    rest: list[_Step] = [("value", value, 0)]
    while rest:
        step, one, begin = rest.pop()
        if step == "item":
            written[begin:] = [",".join(written[begin:])]
        elif step == "end":
            within.discard(id(one))
            if isinstance(one, set | frozenset):
                written[begin:] = sorted(written[begin:])
            written.append("]")
        elif id(one) in within:
            written.append("itself")
        elif isinstance(one, dict | list | tuple | set | frozenset):
            within.add(id(one))
            written.append(f"{type(one).__name__}[")
            rest += _steps(one, len(written))
        else:
            written.append(_leaf(one))
    return ",".join(written)


def _steps(container: object, begin: int) -> list[_Step]:
    """What is to be done of a container, last first."""
    steps: list[_Step] = [("end", container, begin)]
    if isinstance(container, set | frozenset):
        # Each item becomes one text, so that the texts can be sorted when all are there.
        for place, item in reversed(list(enumerate(container))):
            steps += (("item", None, begin + place), ("value", item, 0))
        return steps
    items: list[object] = []
    if isinstance(container, dict):
        for key in sorted(container, key=_key):
            items += (key, container[key])
    elif isinstance(container, list | tuple):
        items += container
    return steps + [("value", item, 0) for item in reversed(items)]


def _key(key: object) -> str:
    if type(key) is int:
        return hex(key)
    try:
        return repr(key)
    except Exception:
        return spelled(key) if isinstance(key, tuple | frozenset) else _leaf(key)


def _leaf(value: object) -> str:
    if type(value) is int:
        return hex(value)
    try:
        return repr(value)
    except Exception:  # also of what somebody else wrote
        return hex(value) if isinstance(value, int) else f"a {type(value).__name__}"
