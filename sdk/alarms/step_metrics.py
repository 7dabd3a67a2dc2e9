"""One training step in the figures that alarms compare. Rollouts of canary tasks do not count: they teach nothing."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from ..records import Rollout
from ..verifiers.text_tokens import tokenize

CANARY = "canary"
"""The tag of a task whose reward must never be earned; its value is "true"."""


class StepFigures(BaseModel):
    """Over the scored rollouts of a step; None where there is none. `reward_se` is the standard error of the mean."""

    model_config = ConfigDict(frozen=True)

    step: int
    rollouts: int
    reward: float | None
    reward_se: float
    diversity: float | None
    """Distinct answers over rollouts that answered, within each group, then averaged: 1 where all differ."""
    length: float | None
    """Mean sampled tokens of a rollout."""
    components: dict[str, float]
    """Means of the verdicts' components, such as those of `watched`."""


def step_figures(step: int, rollouts: Sequence[Rollout]) -> StepFigures:
    """The figures of one step's rollouts."""
    scored = [r for r in rollouts if r.scored and not is_canary(r)]
    scores = [r.verdict.score for r in scored if r.verdict is not None]
    parts: dict[str, list[float]] = defaultdict(list)
    for rollout in scored:
        for name, value in (rollout.verdict.components if rollout.verdict else {}).items():
            parts[name].append(value)
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return StepFigures(
        step=step,
        rollouts=len(scored),
        reward=math.fsum(scores) / len(scores) if scores else None,
        reward_se=spread / math.sqrt(len(scores)) if scores else 0.0,
        diversity=_diversity(scored),
        length=math.fsum(r.sampled_tokens for r in scored) / len(scored) if scored else None,
        components={name: math.fsum(values) / len(values) for name, values in sorted(parts.items())},
    )


def is_canary(rollout: Rollout) -> bool:
    return rollout.task.tags.get(CANARY) == "true"


def said(rollout: Rollout) -> tuple[str, ...]:
    """An answer by its words: case and punctuation make no other one."""
    return tuple(map(str, tokenize(rollout.answer)))


def _diversity(scored: Sequence[Rollout]) -> float | None:
    groups: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for rollout in scored:
        if rollout.answer.strip():
            groups[rollout.group].append(said(rollout))
    shares = [len(set(answers)) / len(answers) for answers in groups.values() if len(answers) > 1]
    return math.fsum(shares) / len(shares) if shares else None
