"""Sampling for later steps while the trainer works, and how old the weights may be that sampled.

The trainer of step s has published version s of the weights. Rollouts of step s + k may begin then, if k is no more
than the bound, so no token of step s + k is older than k versions. What is off-policy by so little is corrected for by
GRPO's clipped ratio against the sampler's own log-probabilities (PipelineRL, arXiv 2509.19128; AReaL, 2505.24298).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..records import Rollout, Task, TokenRow
from ..rollouts.tree import sampled_turns

FIGURES = "rollouts"
"""The stage under which `metrics.jsonl` has, for each step, how its rollouts came about."""
BROKEN = "grpo_broken"
"""The stage under which the run folder keeps attempts that broke and were made again."""


class Ahead:
    """Which tasks each step takes, chosen up to `bound` steps ahead.

    The choice for step s rests on what was observed up to step s - 1 - bound, also after a resume.
    """

    def __init__(self, choose: Callable[[int], list[Task]], *, bound: int, steps: int) -> None:
        self._choose = choose
        self._bound = bound
        self._steps = steps
        self.planned: dict[int, list[Task]] = {}
        """Steps after the present one whose tasks are chosen."""

    def tasks(self, step: int) -> list[Task]:
        """The tasks of the present step; those of the next `bound` steps are then in `planned`."""
        for later in range(step, min(step + self._bound, self._steps - 1) + 1):
            if later not in self.planned:
                self.planned[later] = self._choose(later)
        return self.planned.pop(step) if step in self.planned else self._choose(step)


@dataclass(frozen=True)
class Staleness:
    """How many versions of the weights a step's tokens were behind the step that trained them."""

    tokens: int
    total: int
    largest: int

    @classmethod
    def of(cls, rollouts: Iterable[Rollout], step: int) -> Staleness:
        """Over the sampled tokens of `rollouts`."""
        ages = [step - v for rollout in rollouts for row in rollout.rows for v in row.versions if v >= 0]
        return cls(len(ages), sum(ages), max(ages, default=0))

    def figures(self) -> dict[str, Any]:
        """For the metrics: the mean and the largest age, in versions."""
        return {"staleness/mean": self.total / max(1, self.tokens), "staleness/max": self.largest}


def recalled(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Without what only training needs: tokens, messages and states would fill the memory."""
    nothing: dict[str, Any] = {"messages": [], "calls": [], "ledger": [], "initial_state": None, "final_state": None}
    return [rollout.model_copy(update={**nothing, "rows": [_a_token_a_turn(rollout)]}) for rollout in rollouts]


def _a_token_a_turn(rollout: Rollout) -> TokenRow:
    """As many sampled turns as the rollout has: signals are found turn by turn, whatever was said in them."""
    turns = len(sampled_turns(rollout))
    return TokenRow(
        prompt_ids=[],
        completion_ids=[0, 0] * turns,
        sampled=[True, False] * turns,
        logprobs=[0.0, 0.0] * turns,
        versions=[-1, -1] * turns,
    )
