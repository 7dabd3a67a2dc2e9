"""Where a rollout is forked, and how often: the decisions worth exploring several times.

Branches are chosen once a rollout has ended, from copies that were taken before each of its turns: so the choice knows
how sure the policy was of every turn. A branch does not branch again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..records import Rollout
from .episode import Job
from .forks import TurnStart
from .seeds import derive_seed
from .tree import branch_id, sampled_turns

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
