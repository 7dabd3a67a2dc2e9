"""The helpdesk's tasks, which `examples/helpdesk/generator` makes."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).with_name("tasks.jsonl")
_TIERS = ("1", "2", "3", "4", "5")


def tasks(
    tiers: Collection[str] = ("1", "2"), split: Literal["train", "heldout"] | None = None
) -> list[dict[str, Any]]:
    """The tasks of these tiers, as dicts in the shape of `sdk.records.Task`; both sides of the split for `None`.

    The tier is the number of calls of the right solution.
    """
    if isinstance(tiers, str) or (unknown := sorted({*tiers} - {*_TIERS})):
        wrong = repr(tiers) if isinstance(tiers, str) else ", ".join(map(repr, unknown))
        raise ValueError(f"tiers has {wrong}; give a list of some of {', '.join(_TIERS)} as strings")
    if split not in (None, "train", "heldout"):
        raise ValueError(f"split is {split!r}; choose 'train', 'heldout' or None for both")
    with FILE.open(encoding="utf-8") as lines:
        every = map(json.loads, lines)
        return [task for task in every if task["tags"]["tier"] in tiers and split in (None, task["tags"]["split"])]
