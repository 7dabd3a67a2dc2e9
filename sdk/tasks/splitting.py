"""Training and held-out tasks, divided by a stable key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ConfigError
from ..records import Task


class Split(NamedTuple):
    """Two lists that share no family, in the order in which the tasks came."""

    train: list[Task]
    heldout: list[Task]


def split_tasks(tasks: Sequence[Task], *, heldout: float | int = 0.2, seed: int = 0) -> Split:
    """Divide tasks by their `family`, so that tasks of one family are never on both sides.

    `heldout` as a float is the share of families to hold out: a family's side depends on its name and `seed`
    alone, so adding tasks never moves others (the share is therefore met on average, not exactly). As an
    int it is a number of tasks: families are held out in the order of their hash until there are at least so
    many; adding tasks can then move others.

    When every task carries `tags["split"]` ("train" or "heldout"), that is obeyed instead.

    Raises `ConfigError` when a side would be empty, when only some tasks carry `tags["split"]`, and when the
    same prompt with the same setup would be on both sides.

    Example: `train, heldout = split_tasks(load_tasks("tasks.jsonl"), heldout=0.25)`
    """
    _check_heldout(heldout, len(tasks))
    if any("split" in task.tags for task in tasks):
        families = _families_by_tag(tasks)
    elif isinstance(heldout, float):
        families = {task.family for task in tasks if _position(task.family, seed) < heldout}
    else:
        families = _first_families(tasks, heldout, seed)
    split = Split(
        train=[task for task in tasks if task.family not in families],
        heldout=[task for task in tasks if task.family in families],
    )
    _refuse_empty_side(split, tasks, heldout, seed)
    _refuse_leaks(split)
    return split


def _check_heldout(heldout: float | int, count: int) -> None:
    if count < 2:
        raise ConfigError(f"{count} tasks cannot be divided into training and held-out ones; give at least two")
    if isinstance(heldout, bool) or not isinstance(heldout, int | float):
        raise ConfigError(f"heldout is {heldout!r}; give a share such as 0.2 or a number of tasks such as 50")
    if isinstance(heldout, float) and not 0 < heldout < 1:
        raise ConfigError(f"heldout is {heldout}; a share lies between 0 and 1 (a number of tasks is an int)")
    if isinstance(heldout, int) and not 0 < heldout < count:
        raise ConfigError(f"heldout is {heldout} of {count} tasks; give a number from 1 to {count - 1}")


def _position(family: str, seed: int) -> float:
    """Where a family stands in [0, 1): the same on every machine, whatever the other families are."""
    digest = hashlib.sha256(json.dumps([seed, family]).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _first_families(tasks: Sequence[Task], count: int, seed: int) -> set[str]:
    sizes: dict[str, int] = {}
    for task in tasks:
        sizes[task.family] = sizes.get(task.family, 0) + 1
    chosen: set[str] = set()
    held = 0
    for family in sorted(sizes, key=lambda name: (_position(name, seed), name)):
        if held >= count:
            break
        chosen.add(family)
        held += sizes[family]
    return chosen


def _families_by_tag(tasks: Sequence[Task]) -> set[str]:
    sides: dict[str, str] = {}
    for task in tasks:
        side = task.tags.get("split")
        if side is None:
            untagged = sum("split" not in other.tags for other in tasks)
            raise ConfigError(
                f"{untagged} of {len(tasks)} tasks lack tags['split'], the first is {task.id!r}; "
                "tag every task with 'train' or 'heldout', or none"
            )
        if side not in Split._fields:
            raise ConfigError(f"task {task.id!r}: tags['split'] is {side!r}; use 'train' or 'heldout'")
        if sides.setdefault(task.family, side) != side:
            raise ConfigError(
                f"family {task.family!r} is tagged 'train' and 'heldout' (task {task.id!r} is {side!r}); "
                "tasks of one family belong on one side"
            )
    return {family for family, side in sides.items() if side == "heldout"}


def spread(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """At most `count` of the tasks, spread evenly over their order; all where None."""
    if count is None or count >= len(tasks):
        return list(tasks)
    return [tasks[place * len(tasks) // count] for place in range(count)]


def _refuse_empty_side(split: Split, tasks: Sequence[Task], heldout: float | int, seed: int) -> None:
    if split.train and split.heldout:
        return
    empty = "train" if not split.train else "heldout"
    families = len({task.family for task in tasks})
    fix = "tag some tasks with it" if "split" in tasks[0].tags else "give more families, another share or another seed"
    if families < 2:
        fix = "give tasks of at least two families"
    raise ConfigError(
        f"no task is left for {empty}: {len(tasks)} tasks of {families} families, heldout={heldout}, seed={seed}; {fix}"
    )


def _refuse_leaks(split: Split) -> None:
    """One prompt under two families would be trained on and measured on."""
    trained = {_content(task): task for task in split.train}
    for task in split.heldout:
        twin = trained.get(_content(task))
        if twin is not None:
            raise ConfigError(
                f"tasks {twin.id!r} (train) and {task.id!r} (heldout) have the same prompt and setup; "
                "give them the same family"
            )


def _content(task: Task) -> str:
    opening = [message.model_dump() for message in task.opening()]
    return json.dumps([opening, task.later_turns, task.setup], sort_keys=True, default=str)
