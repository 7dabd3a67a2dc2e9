"""The split of tasks into training, validation and held-out ones, by a stable key."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mcp_bridge.safe_text import plural

from ..errors import ConfigError
from ..records import Task


class Split(NamedTuple):
    """Two lists that share no family, in the order in which the tasks came."""

    train: list[Task]
    heldout: list[Task]


class ThreeWaySplit(NamedTuple):
    """Three lists that share no family, in the order in which the tasks came."""

    train: list[Task]
    validation: list[Task]
    """To choose among checkpoints: what chose something cannot also say how good it is."""
    heldout: list[Task]


SIDES = "'train', 'validation' or 'heldout'"

_SHARE_ASIDE, _LEAST_ASIDE, _MOST_ASIDE = 0.15, 8, 64
_FAMILIES_TO_SPARE = 20
"""With fewer, each is more than a twentieth of what there is to learn."""


def split_tasks(tasks: Sequence[Task], *, heldout: float | int = 0.2, seed: int = 0) -> Split:
    """Divide tasks by their `family`, so that tasks of one family are never on both sides.

    `heldout` as a float is the share of families to hold out: a family's side depends on its name and `seed`
    alone, so adding tasks never moves others (the share is therefore met on average, not exactly; but of two or
    more families at least one is held out, and at least one is not). As an int it is a number of tasks: families
    are held out in the order of their hash until there are at least so many; adding tasks can then move others.

    When every task carries `tags["split"]` ("train", "validation" or "heldout"), that is obeyed instead; tasks for
    validation are on neither side then (see `split_three_ways`).

    Raises `ConfigError` when a side would be empty, when only some tasks carry `tags["split"]`, and when the
    same prompt with the same setup would be on both sides.

    Example: `train, heldout = split_tasks(load_tasks("tasks.jsonl"), heldout=0.25)`
    """
    if len(tasks) < 2:
        raise ConfigError(f"tasks: {len(tasks)} cannot be divided into training and held-out ones; give at least two")
    if any("split" in task.tags for task in tasks):
        sides = _sides_by_tag(tasks)
        split = Split(*([task for task in tasks if sides[task.family] == side] for side in Split._fields))
    else:
        _check_share(heldout, len(tasks), "heldout")
        split = Split(*_divided(tasks, heldout, seed))
    _check_sides(split._asdict(), tasks, f"{counted(tasks)}, heldout={heldout}, seed={seed}")
    return split


def split_three_ways(
    tasks: Sequence[Task], *, heldout: float | int = 0.2, validation: float | int = 0.1, seed: int = 0
) -> ThreeWaySplit:
    """Divide tasks as `split_tasks` does, and its training side once more: `validation` is a share of the families
    there, or a number of tasks. The held-out side is the same, whatever `validation` is.

    When every task carries `tags["split"]`, that is obeyed instead. Raises `ConfigError` as `split_tasks` does, and
    where no task is left for training or validation.
    """
    rest, held = split_tasks(tasks, heldout=heldout, seed=seed)
    if "split" in tasks[0].tags:
        chosen = [task for task in tasks if task.tags["split"] == "validation"]
        split = ThreeWaySplit(rest, chosen, held)
    else:
        _check_share(validation, len(rest), "validation")
        train, chosen = _divided(rest, validation, f"{seed} validation")
        split = ThreeWaySplit(train, chosen, held)
    told = f"{counted(rest)} beside the held-out ones, validation={validation}, seed={seed}"
    _check_sides(split._asdict(), tasks, told)
    return split


def keep_aside(
    tasks: Sequence[Task], *, seed: int = 0, enough: Callable[[Sequence[Task]], bool] = bool
) -> tuple[list[Task], list[Task]]:
    """Those of the training tasks to learn from, and some to choose weights on: 15 % of them, but at least 8 and at
    most 64, and never more than a quarter; none of fewer than four.

    Whole families are kept aside, so that their wordings are new to the model, but none without which a value of a tag
    has no tasks left: that kind of tasks would not be learned. Where these do not suffice, or there are fewer than 20
    families, some tasks of each are kept aside. Tasks with the same prompt and setup stay together.

    `enough`: whether such tasks are still enough to learn from; what would leave too few stays.
    """
    most = len(tasks) // 4
    wanted = min(max(math.ceil(_SHARE_ASIDE * len(tasks)), _LEAST_ASIDE), _MOST_ASIDE, most)
    rest, kinds_of = list(tasks), _kinds(tasks)
    kinds_left = Counter(kind for task in tasks for kind in kinds_of(task))
    for unit in _units(tasks, f"{seed} aside"):
        if len(tasks) - len(rest) >= wanted:
            break
        without = [task for task in rest if task.id not in unit]
        taken = Counter(kind for task in rest if task.id in unit for kind in kinds_of(task))
        lost = any(kinds_left[kind] == count for kind, count in taken.items())
        if len(tasks) - len(without) <= most and not lost and enough(without):
            rest = without
            kinds_left -= taken
    left = {task.id for task in rest}
    return rest, [task for task in tasks if task.id not in left]


def _kinds(tasks: Sequence[Task]) -> Callable[[Task], set[tuple[str, str]]]:
    """The values of a task's tags that several tasks share, of tags that do not name the families themselves."""
    shared = Counter(pair for task in tasks for pair in task.tags.items())
    values = Counter(tag for tag, _ in shared)
    families = len({task.family for task in tasks})
    kinds = {(tag, value) for (tag, value), count in shared.items() if count > 1 and values[tag] < families}
    return lambda task: kinds & set(task.tags.items())


def _units(tasks: Sequence[Task], seed: str) -> Iterator[set[str]]:
    """Ids of tasks that stay together, in the order in which they are kept aside: families, then parts of families."""
    families: dict[str, set[str]] = defaultdict(set)
    contents: dict[str, set[str]] = defaultdict(set)
    families_of: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        families[task.family].add(task.id)
        contents[_content(task)].add(task.id)
        families_of[_content(task)].add(task.family)
    if len(families) >= _FAMILIES_TO_SPARE:
        shared = {family for several in families_of.values() if len(several) > 1 for family in several}
        for name in sorted(families, key=lambda name: _position(name, seed)):
            if name not in shared:
                yield families[name]
    taken: dict[str, int] = defaultdict(int)
    turns = []
    for content in sorted(contents, key=lambda text: _position(text, seed)):
        family = min(families_of[content])
        turns.append((taken[family], content))  # one of each family, then the second of each
        taken[family] += 1
    for _, content in sorted(turns, key=lambda turn: turn[0]):
        yield contents[content]


def _divided(tasks: Sequence[Task], share: float | int, seed: int | str) -> tuple[list[Task], list[Task]]:
    """The tasks of the other families, and those of the share's."""
    if isinstance(share, float):
        ordered = sorted({task.family for task in tasks}, key=lambda family: _position(family, seed))
        below = sum(_position(family, seed) < share for family in ordered)
        families = set(ordered[: min(max(below, 1), max(len(ordered) - 1, 1))])
    else:
        families = _first_families(tasks, share, seed)
    return [task for task in tasks if task.family not in families], [task for task in tasks if task.family in families]


def _check_share(share: float | int, count: int, name: str) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise ConfigError(f"{name} is {share!r}; give a share such as 0.2 or a number of tasks such as 50")
    if isinstance(share, float) and not 0 < share < 1:
        raise ConfigError(f"{name} is {share}; a share lies between 0 and 1 (a number of tasks is an int)")
    if isinstance(share, int) and not 0 < share < count:
        raise ConfigError(f"{name} is {share} of {count} tasks; give a number from 1 to {count - 1}")


def _position(family: str, seed: int | str) -> float:
    """Where a family stands in [0, 1): the same on every machine, whatever the other families are."""
    digest = hashlib.sha256(json.dumps([seed, family]).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _first_families(tasks: Sequence[Task], count: int, seed: int | str) -> set[str]:
    sizes = Counter(task.family for task in tasks)
    chosen: set[str] = set()
    for family in sorted(sizes, key=lambda name: (_position(name, seed), name)):
        if sum(sizes[name] for name in chosen) >= count:
            break
        chosen.add(family)
    return chosen


def _sides_by_tag(tasks: Sequence[Task]) -> dict[str, str]:
    """Family -> its side."""
    sides: dict[str, str] = {}
    for task in tasks:
        side = task.tags.get("split")
        if side is None:
            untagged = sum("split" not in other.tags for other in tasks)
            raise ConfigError(
                f"{untagged} of {len(tasks)} tasks lack tags['split'], the first is {task.id!r}; "
                f"tag every task with {SIDES}, or none"
            )
        if side not in ThreeWaySplit._fields:
            raise ConfigError(f"task {task.id!r}: tags['split'] is {side!r}; use {SIDES}")
        if sides.setdefault(task.family, side) != side:
            raise ConfigError(
                f"family {task.family!r} is tagged {sides[task.family]!r} and {side!r} (task {task.id!r}); "
                "tasks of one family belong on one side"
            )
    return sides


def spread(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """At most `count` of the tasks, spread evenly over their order; all where None."""
    if count is None or count >= len(tasks):
        return list(tasks)
    return [tasks[place * len(tasks) // count] for place in range(count)]


def counted(tasks: Sequence[Task], what: str = "task") -> str:
    """`20 tasks of 5 families`: what is known of success depends on the families, not on the tasks."""
    return tasks_of_families(len(tasks), len({task.family for task in tasks}), what)


def tasks_of_families(tasks: int, families: int | None, what: str = "task") -> str:
    """The same of numbers; without the families where a report of an earlier version did not count them."""
    shown = f"{tasks:,} {plural(tasks, what)}"
    return shown if families is None else f"{shown} of {families:,} famil{'y' if families == 1 else 'ies'}"


def _check_sides(sides: Mapping[str, Sequence[Task]], tasks: Sequence[Task], told: str) -> None:
    """Raises `ConfigError` for an empty side, and for one prompt under two families, which would be trained on, or
    choose, and be measured on. `told`: what was divided how."""
    for side, of_side in sides.items():
        if not of_side:
            fix = "give more families, another share or another seed"
            if len({task.family for task in tasks}) < 2:
                fix = "give tasks of at least two families"
            elif "split" in tasks[0].tags:
                fix = f"tag some tasks with it: tags['split'] = {side!r}"
            raise ConfigError(f"no task is left for {side}: {told}; {fix}")
    seen: dict[str, tuple[str, Task]] = {}
    for side, of_side in sides.items():
        for task in of_side:
            where, twin = seen.setdefault(_content(task), (side, task))
            if where != side:
                raise ConfigError(
                    f"tasks {twin.id!r} ({where}) and {task.id!r} ({side}) have the same prompt and setup; "
                    "give them the same family"
                )


def _content(task: Task) -> str:
    """What is asked. Spaces make no other request of it: a spreadsheet leaves some at the end."""
    opening = [{**message.model_dump(), "content": " ".join(message.content.split())} for message in task.opening()]
    user = [] if task.user is None else [task.user.model_dump(exclude_defaults=True)]
    return json.dumps([opening, task.later_turns, task.setup, *user], sort_keys=True, default=str)
