"""Rollouts that branched, as trees. Who branched from whom is in their ids, so that a run folder keeps it.

`grpo/3/t7/0~2.1` is the second branch (counted from 0) of `grpo/3/t7/0` at its third turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..records import Rollout

_BRANCH = re.compile(r"(?s)(.*)~(\d+)\.(\d+)\Z")


def branch_id(parent: str, turn: int, number: int) -> str:
    """The id of branch `number` of `parent` at `turn`."""
    return f"{parent}~{turn}.{number}"


def parent_and_turn(rollout_id: str) -> tuple[str, int] | None:
    """Which rollout this one branched from, and before which of its turns; None for one that began at the beginning."""
    found = _BRANCH.fullmatch(rollout_id)
    return (found[1], int(found[2])) if found else None


@dataclass
class RolloutTree:
    """A rollout and the branches that left it, by the turn before which they left."""

    root: Rollout
    branches: dict[int, list[Rollout]] = field(default_factory=dict)

    @property
    def leaves(self) -> list[Rollout]:
        """The rollout and its branches: all that ended."""
        return [self.root, *(branch for turn in sorted(self.branches) for branch in self.branches[turn])]

    def __str__(self) -> str:
        lines = [_line(self.root)]
        for turn in sorted(self.branches):
            lines += [f"  before turn {turn + 1}: {_line(branch)}" for branch in self.branches[turn]]
        return "\n".join(lines)


def _line(rollout: Rollout) -> str:
    score = "unscored" if rollout.verdict is None else f"score {rollout.verdict.score:g}"
    return f"{rollout.id}: {rollout.turns} turns, {rollout.stop_reason}, {score}"


def grow_trees(rollouts: Iterable[Rollout]) -> list[RolloutTree]:
    """The trees among `rollouts`, in the order of their roots. Raises `ValueError` for a branch without its root."""
    listed = list(rollouts)
    trees = {rollout.id: RolloutTree(rollout) for rollout in listed if parent_and_turn(rollout.id) is None}
    for rollout in listed:
        past = parent_and_turn(rollout.id)
        if past is None:
            continue
        parent, turn = past
        if parent not in trees:
            raise ValueError(f"rollout {rollout.id!r} branched from {parent!r}, which is not among the rollouts given")
        trees[parent].branches.setdefault(turn, []).append(rollout)
    return list(trees.values())


@dataclass(frozen=True)
class TurnSpan:
    """Where the tokens of one assistant turn are: row, and places `begin` to `end` of its completion."""

    row: int
    begin: int
    end: int


def sampled_turns(rollout: Rollout) -> list[TurnSpan]:
    """The sampled tokens of each turn, in order: between two turns there are always tokens that were rendered."""
    spans = []
    for number, row in enumerate(rollout.rows):
        begin: int | None = None
        for place, sampled in enumerate([*row.sampled, False]):
            if sampled and begin is None:
                begin = place
            elif not sampled and begin is not None:
                spans.append(TurnSpan(number, begin, place))
                begin = None
    return spans
