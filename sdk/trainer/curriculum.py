"""The curriculum chooses the tasks of a step: every task at most once in each epoch of whole steps, or more of the
kinds that still teach something.

A group teaches where its rollouts differ in score; where all are right or all wrong, GRPO's advantage is zero. The
curriculum draws kinds of tasks in proportion to how much their latest groups differed, as the learnability p(1 - p) of
Foster and Foerster (arXiv 2502.12272) does for single questions. A kind is a value of one tag, because in a short run
most tasks are seen once at most.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from ..evaluation.conditions import is_success
from ..records import Rollout, Task
from .config import TrainConfig

# ---------------------------------------------------------------------------------------------------------------------
# Tasks that a step leaves out: those of a tier that is not reached yet, and those that are too easy or too hard now.
#
# A group in which all rollouts succeed or all fail has no signal, and costs as much as one that has (DAPO, arXiv
# 2503.14476, section 3.2, samples again; leaving such tasks out costs nothing).

GROUPS_OF_A_TIER = 8
"""The success of a tier is the mean over so many of its latest groups."""
TIER_SUCCESS = 0.7
"""The share of successes that opens the next tier."""
STEPS_OF_REST = 20
"""How long a task that is too easy or too hard is left out. The policy changes, so it comes back."""


class Difficulty:
    """How difficult the tasks are for the policy now, by the rollouts so far. A resumed run computes it again.

    Example: `observe(group)` after each group; `left_out(step, wanted=8)` -> the places of tasks not to take.
    """

    def __init__(self, tasks: Sequence[Task], config: TrainConfig) -> None:
        options = self._options = config.curriculum
        self._threshold = config.evaluation.success_threshold
        self._place = {task.id: place for place, task in enumerate(tasks)}
        self._rests: dict[int, tuple[int, float]] = {}
        """Of places that rest: the step in which they come back, and the success of their latest group."""
        self._tiers = tiers_in_order(tasks, options.tiers)
        self._tier = [self._tiers.index(task.tags[options.tiers]) if options.tiers is not None else 0 for task in tasks]
        self._open = 1
        self._latest: deque[tuple[int, float]] = deque(maxlen=GROUPS_OF_A_TIER)
        """Of the highest tier that is open: the latest groups' places and success."""

    def left_out(self, step: int, *, wanted: int = 0) -> frozenset[int]:
        """The places of tasks that the step does not take. Those that rest come back earlier, the longest rested first,
        where fewer than `wanted` were left."""
        closed = {place for place, tier in enumerate(self._tier) if tier >= self._open}
        resting = sorted((until, place) for place, (until, _) in self._rests.items() if until > step)
        resting = [(until, place) for until, place in resting if place not in closed]
        short = max(0, wanted - (len(self._tier) - len(closed) - len(resting)))
        return frozenset(closed | {place for _, place in resting[short:]})

    def observe(self, group: Sequence[Rollout]) -> None:
        """Learn from the rollouts of a group. A group with fewer than two scored rollouts is left out."""
        scored = [rollout for rollout in group if rollout.scored]
        if len(scored) < 2:
            return
        success = sum(is_success(rollout, self._threshold) for rollout in scored) / len(scored)
        place = self._place[group[0].task.id]
        if self._options.tiers is not None and self._tier[place] == self._open - 1:
            self._latest.append((place, success))
            full = len(self._latest) == GROUPS_OF_A_TIER
            if full and self._tier_success(group[0].step) >= TIER_SUCCESS and self._open < len(self._tiers):
                self._open += 1
                self._latest.clear()
        if self._options.difficulty_filter is not None:
            low, high = self._options.difficulty_filter
            self._rests.pop(place, None)
            if not low <= success <= high:
                self._rests[place] = (group[0].step + 1 + STEPS_OF_REST, success)

    def _tier_success(self, step: int) -> float:
        """Of the highest tier that is open: of its latest groups, and of its tasks that rest since they had theirs.
        Without these, a tier of which nearly all tasks are too hard would seem to be mastered."""
        found = [success for _, success in self._latest]
        seen = {place for place, _ in self._latest}
        found += [
            success
            for place, (until, success) in self._rests.items()
            if until > step and place not in seen and self._tier[place] == self._open - 1
        ]
        return sum(found) / len(found)

    def counts(self, step: int) -> dict[str, int]:
        """For the metrics, before `step`: tasks that rest, and tiers that are open."""
        counts: dict[str, int] = {}
        if self._options.difficulty_filter is not None:
            low, _ = self._options.difficulty_filter
            resting = [success for until, success in self._rests.values() if until > step]
            hard = sum(success < low for success in resting)
            counts |= {"tasks_too_easy": len(resting) - hard, "tasks_too_hard": hard}
        if self._options.tiers is not None:
            counts["open_tiers"] = self._open
        return counts


def tiers_in_order(tasks: Sequence[Task], tag: str | None) -> list[str]:
    """The values of a tag, numbers by their size and before words; a single one without a tag."""
    if tag is None:
        return [""]
    values = {task.tags[tag] for task in tasks}
    return sorted(values, key=lambda value: (0, int(value), "") if value.isdecimal() else (1, 0, value))


# ---------------------------------------------------------------------------------------------------------------------

_GROUPS_REMEMBERED = 4
"""Of each kind. The policy changes, so old groups are forgotten."""
_EVEN_SHARE = 0.5
"""This share of a step's tasks is drawn evenly over the kinds: the policy forgets what it no longer sees."""


class Curriculum:
    """The order of the tasks. What it remembers follows from its choices and the rollouts so far: a resumed run, which
    goes through both again, goes on alike.

    Example: `Curriculum(tasks, config).choose(step)` -> 8 tasks, all different; then `observe(rollouts)` of the step,
    before or after the next steps' tasks are chosen.
    """

    def __init__(self, tasks: Sequence[Task], config: TrainConfig) -> None:
        self._tasks = tasks
        self._config, self._options = config, config.curriculum
        self.difficulty = Difficulty(tasks, config)
        self._kinds: dict[str, list[int]] = {}
        self._spreads: dict[str, deque[float]] = {}
        self._reached: dict[str, int] = {}
        """Of each kind: how far the choice is in its order. Counted when tasks are chosen: steps that are chosen ahead
        would take the same ones otherwise."""
        for place, task in enumerate(tasks):
            self._kinds.setdefault(self._kind(task), []).append(place)

    @property
    def adapts(self) -> bool:
        """Whether what it chooses follows from the rollouts that it observed."""
        options = self._options
        return any(one is not None for one in (options.by, options.tiers, options.difficulty_filter))

    def choose(self, step: int) -> list[Task]:
        """The tasks of a step."""
        size = self._config.grpo.prompts_per_step
        out = self.difficulty.left_out(step, wanted=size)
        if self._options.by is not None:
            places = self._mixed(size, f"{step}", out)
        else:
            places = [place for place in tasks_of_step(step, len(self._tasks), self._config) if place not in out]
            free = [place for place in range(len(self._tasks)) if place not in out and place not in places]
            places += random.Random(f"{self._config.seed}/{step}/instead").sample(free, size - len(places))
        return [self._tasks[place] for place in places]

    def choose_more(self, step: int, round_number: int, count: int, taken: Collection[str]) -> list[Task]:
        """Up to `count` further tasks for a step, none of those whose ids are in `taken`."""
        out = self.difficulty.left_out(step)
        free = [place for place, task in enumerate(self._tasks) if task.id not in taken and place not in out]
        count = min(count, len(free))
        if not count:
            return []
        if self._options.by is None:
            places = random.Random(f"{self._config.seed}/{step}/{round_number}").sample(free, count)
        else:
            places = self._mixed(count, f"{step}/{round_number}", frozenset(range(len(self._tasks))) - set(free))
        return [self._tasks[place] for place in places]

    def _mixed(self, size: int, name: str, taken: frozenset[int]) -> list[int]:
        """`size` places, of kinds that teach; none that is taken."""
        chance = random.Random(f"{self._config.seed}/curriculum/{name}")
        room = {kind: len(set(places) - taken) for kind, places in self._kinds.items()}
        counts = self._counts(size, room, chance)
        places = [place for kind, count in counts.items() for place in self._next(kind, count, taken)]
        chance.shuffle(places)
        return places

    def observe(self, rollouts: Iterable[Rollout]) -> None:
        """Learn from rollouts in the order in which they were run, whole groups together."""
        for _, members in groupby(rollouts, key=lambda rollout: rollout.group):
            group = list(members)
            self.difficulty.observe(group)
            scores = [r.verdict.score for r in group if r.scored and r.verdict is not None]
            if len(scores) >= 2:
                seen = self._spreads.setdefault(self._kind(group[0].task), deque(maxlen=_GROUPS_REMEMBERED))
                seen.append(statistics.pstdev(scores))

    def _kind(self, task: Task) -> str:
        return task.tags[self._options.by] if self._options.by is not None else ""

    def _counts(self, size: int, room: Mapping[str, int], chance: random.Random) -> dict[str, int]:
        """How many tasks of each kind: systematic sampling, so that a step is as mixed as the weights are."""
        kinds = [kind for kind in self._kinds if room[kind]]
        chance.shuffle(kinds)
        counts = dict.fromkeys(kinds, 0)
        at, reached = chance.random(), 0.0
        for kind, weight in zip(kinds, self._weights(kinds), strict=True):
            reached += weight * size
            while at < reached:
                counts[kind] += 1
                at += 1
        # A kind cannot give more tasks than it has; the next ones fill in.
        counts = {kind: min(count, room[kind]) for kind, count in counts.items()}
        missing = size - sum(counts.values())
        while missing > 0:
            for kind in kinds:
                if missing > 0 and counts[kind] < room[kind]:
                    counts[kind] += 1
                    missing -= 1
        return counts

    def _weights(self, kinds: Sequence[str]) -> list[float]:
        """The share of each kind. A kind that was not seen yet counts as the average one."""
        everything = [spread for seen in self._spreads.values() for spread in seen]
        usual = statistics.fmean(everything) if everything else 0.0
        taught = [self._taught(kind, usual) for kind in kinds]
        total = sum(taught)
        even = 1 / len(kinds)
        if total == 0:
            return [even] * len(kinds)
        return [_EVEN_SHARE * even + (1 - _EVEN_SHARE) * one / total for one in taught]

    def _taught(self, kind: str, usual: float) -> float:
        seen = self._spreads.get(kind, ())
        return (sum(seen) + usual) / (len(seen) + 1)

    def _next(self, kind: str, count: int, taken: frozenset[int]) -> list[int]:
        """The next tasks of a kind: each comes up once before one comes up again; what is taken is passed over."""
        places = self._kinds[kind]
        chosen: list[int] = []
        number = self._reached.get(kind, 0)
        while len(chosen) < count:
            cycle, at = divmod(number, len(places))
            order = list(places)
            random.Random(f"{self._config.seed}/{kind}/{cycle}").shuffle(order)
            if order[at] not in chosen and order[at] not in taken:
                chosen.append(order[at])
            number += 1
        self._reached[kind] = number
        return chosen


def tasks_of_step(step: int, task_count: int, config: TrainConfig) -> list[int]:
    """The places of a step's tasks, all different. Every epoch of whole steps shuffles anew, and leaves out the tasks
    that make no whole one; nothing is remembered to resume."""
    size = config.grpo.prompts_per_step
    epoch, place = divmod(step, max(1, task_count // size))
    order = list(range(task_count))
    random.Random(f"{config.seed}/{epoch}").shuffle(order)
    return order[place * size : (place + 1) * size]


def interleaved(tasks: Sequence[Task], tag: str, seed: int) -> list[Task]:
    """All tasks, the kinds in turn: any part of them holds each kind's share, as far as whole tasks allow."""
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(task.tags[tag], []).append(task)
    chance = random.Random(f"{seed}/{tag}")
    placed: list[tuple[float, float, Task]] = []
    for members in kinds.values():
        chance.shuffle(members)
        # The n-th of N tasks belongs at (n + 1/2) / N of the way; who is first among equals is left to chance.
        placed += [((n + 0.5) / len(members), chance.random(), task) for n, task in enumerate(members)]
    return [task for _, _, task in sorted(placed, key=lambda entry: entry[:2])]
