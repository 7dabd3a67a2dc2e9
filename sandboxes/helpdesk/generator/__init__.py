"""The helpdesk's tasks. `python -m sandboxes.helpdesk.generator FILE` writes them as JSON lines."""

from __future__ import annotations

import copy
from collections.abc import Collection
from functools import cache
from typing import Any, Literal

from .build import build_tasks

__all__ = ["tasks"]

_TIERS = ("1", "2", "3", "4", "5")


def tasks(
    tiers: Collection[str] = ("1", "2"), split: Literal["train", "heldout"] | None = None
) -> list[dict[str, Any]]:
    """The tasks of these tiers, as dicts in the shape of `sdk.records.Task`; both sides of the split for `None`.

    The tier is the number of calls of the right solution. They are made when first asked for, within seconds,
    and are always the same.
    """
    if isinstance(tiers, str) or (unknown := sorted({*tiers} - {*_TIERS})):
        wrong = repr(tiers) if isinstance(tiers, str) else ", ".join(map(repr, unknown))
        raise ValueError(f"tiers has {wrong}; give a list of some of {', '.join(_TIERS)} as strings")
    if split not in (None, "train", "heldout"):
        raise ValueError(f"split is {split!r}; choose 'train', 'heldout' or None for both")
    found = [task for task in _all_tasks() if task["tags"]["tier"] in tiers and split in (None, task["tags"]["split"])]
    return copy.deepcopy(found)


@cache
def _all_tasks() -> list[dict[str, Any]]:
    return build_tasks()
