"""Tasks that a step leaves out: those of a tier that is not reached yet, and those that are too easy or too hard now.

A group in which all rollouts succeed or all fail has no signal, and costs as much as one that has (DAPO, arXiv
2503.14476, section 3.2, samples again; leaving such tasks out costs nothing).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..records import Rollout, Task
from .config import TrainConfig

GROUPS_OF_A_TIER = 8
"""Over so many of its latest groups the success of a tier is taken."""


class Difficulty:
    """What was measured of the tasks. It follows from the rollouts so far, so that a resumed run goes on alike.

    Example: `observe(group)` after each group; `left_out(step, wanted=8)` -> the places of tasks not to take.
    """

    def __init__(self, tasks: Sequence[Task], config: TrainConfig) -> None:
        self._config = config
        self._place = {task.id: place for place, task in enumerate(tasks)}
        self._rests: dict[int, tuple[int, bool]] = {}
        """Of places that rest: the step in which they come back, and whether they are too easy."""
        self._tiers = tiers_in_order(tasks, config.tiers)
        self._tier = [self._tiers.index(task.tags[config.tiers]) if config.tiers is not None else 0 for task in tasks]
        self._open = 1
        self._latest: deque[float] = deque(maxlen=GROUPS_OF_A_TIER)

    def left_out(self, step: int, *, wanted: int = 0) -> frozenset[int]:
        """The places of tasks that the step does not take. Those that rest come back earlier, the longest rested first,
        where fewer than `wanted` were left."""
        closed = {place for place, tier in enumerate(self._tier) if tier >= self._open}
        resting = sorted((until, place) for place, (until, _) in self._rests.items() if until > step)
        resting = [(until, place) for until, place in resting if place not in closed]
        short = max(0, wanted - (len(self._tier) - len(closed) - len(resting)))
        return frozenset(closed | {place for _, place in resting[short:]})

    def observe(self, group: Sequence[Rollout]) -> None:
        """Learn from the rollouts of a group. One in which fewer than two were scored says nothing."""
        scores = [r.verdict.score for r in group if r.scored and r.verdict is not None]
        if len(scores) < 2:
            return
        success = sum(score >= self._config.success_threshold for score in scores) / len(scores)
        place = self._place[group[0].task.id]
        if self._config.tiers is not None and self._tier[place] == self._open - 1:
            self._latest.append(success)
            reached = sum(self._latest) / len(self._latest) >= self._config.tier_success
            if reached and len(self._latest) == GROUPS_OF_A_TIER and self._open < len(self._tiers):
                self._open += 1
                self._latest.clear()
        if self._config.difficulty_filter is not None:
            low, high = self._config.difficulty_filter
            self._rests.pop(place, None)
            if not low <= success <= high:
                self._rests[place] = (group[0].step + 1 + self._config.difficulty_rest, success > high)

    def counts(self, step: int) -> dict[str, int]:
        """For the metrics, as it stands before `step`: tasks that rest, and tiers that are open."""
        counts: dict[str, int] = {}
        if self._config.difficulty_filter is not None:
            resting = [easy for until, easy in self._rests.values() if until > step]
            counts |= {"tasks_too_easy": sum(resting), "tasks_too_hard": len(resting) - sum(resting)}
        if self._config.tiers is not None:
            counts["open_tiers"] = self._open
        return counts


def tiers_in_order(tasks: Sequence[Task], tag: str | None) -> list[str]:
    """The values of a tag, numbers by their size and before words; a single one without a tag."""
    if tag is None:
        return [""]
    values = {task.tags[tag] for task in tasks}
    return sorted(values, key=lambda value: (0, int(value), "") if value.isdecimal() else (1, 0, value))
