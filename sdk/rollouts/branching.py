"""Where a rollout is forked, and how often: the decisions worth exploring several times.

Branches are chosen once a rollout has ended, from copies that were taken before each of its turns: so the choice knows
how sure the policy was of every turn. A branch does not branch again.

Who branched from whom is in the rollouts' ids, so that a run folder keeps it: `grpo/3/t7/0~2.1` is the second branch
(counted from 0) of `grpo/3/t7/0` at its third turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..records import Rollout
from . import derive_seed
from .episode import Job
from .forks import TurnStart

ChooseTurns = Callable[[Rollout], Sequence[int]]
"""From a rollout that has ended to the turns (counted from 0) to branch at, in any order."""


@dataclass(frozen=True)
class Branching:
    """What to explore. Example: `Branching(branches=2)` takes the least sure decision of each rollout twice more.

    `branches`: further continuations at each branch point. `points`: branch points of a rollout, the turns
    whose tokens were least probable on average, as in entropy-guided trees (TreeRL, arXiv 2506.11902; ARPO, arXiv
    2507.19849). `where`: a function of the rollout that returns them instead.

    The first turn is branched at by a function only: to take it again is to have a larger group.
    """

    branches: int
    points: int = 1
    where: ChooseTurns | None = None

    def __post_init__(self) -> None:
        if self.branches < 1:
            raise ValueError(f"branches is {self.branches}; it must be 1 or more")
        if self.points < 1:
            raise ValueError(f"points is {self.points}; it must be 1 or more")

    def turns(self, rollout: Rollout) -> list[int]:
        """The turns to branch at, in order; none where the rollout has one turn only, or broke."""
        if rollout.failure is not None:
            return []
        if self.where is not None:
            return sorted({turn for turn in self.where(rollout) if 0 <= turn < rollout.turns})
        later = range(1, rollout.turns)
        surprise = surprise_of_turns(rollout)
        return sorted(sorted((t for t in later if t < len(surprise)), key=lambda t: -surprise[t])[: self.points])

    def jobs(self, job: Job, rollout: Rollout, starts: Sequence[TurnStart]) -> list[Job]:
        """The branches of a rollout that has ended. `starts`: the copies taken before each of its turns."""
        by_turn = {start.turn: start for start in starts}
        made = []
        for turn in self.turns(rollout):
            for number in range(self.branches if turn in by_turn else 0):
                name = branch_id(job.id, turn, number)
                made.append(replace(job, id=name, seed=derive_seed(job.seed, turn, number), start=by_turn[turn]))
        return made


def surprise_of_turns(rollout: Rollout) -> list[float]:
    """The mean negative log-probability of each turn's sampled tokens, in nats."""
    return [
        -sum(rollout.rows[span.row].logprobs[span.begin : span.end]) / (span.end - span.begin)
        for span in sampled_turns(rollout)
    ]


# ---------------------------------------------------------------------------------------------------------------------

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
