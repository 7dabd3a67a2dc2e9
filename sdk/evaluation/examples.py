"""Which rollouts a report shows in full, by rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from ..records import Rollout
from .conditions import by_task, is_success

Kind = Literal["newly solved", "still failing", "newly failing", "still solved", "solved", "failed"]

RULE = (
    "By rule, not by taste: one newly solved, one still failing and one newly failing task, the first of each in the "
    "order of task ids; where a kind has none, the next of another kind."
)
_SHOWN = 3
_ORDER: tuple[Kind, ...] = ("newly solved", "still failing", "newly failing", "solved", "failed", "still solved")


class Example(BaseModel):
    """One rollout to read, without its tokens and states."""

    kind: Kind
    condition: str
    rollout: Rollout
    earlier_score: float | None = None
    """The score of the same task in the first condition."""


def choose_examples(conditions: Mapping[str, Sequence[Rollout]], *, threshold: float) -> list[Example]:
    """Rollouts of the last condition, set against the first where there are two. See `RULE`."""
    if not conditions:
        return []
    names = list(conditions)
    last = by_task(conditions[names[-1]])
    first = by_task(conditions[names[0]]) if len(names) > 1 else {}
    by_kind: dict[Kind, list[Example]] = defaultdict(list)
    for task, tries in last.items():
        if first and task not in first:
            continue
        now, earlier = tries[0], first[task][0] if first else None
        kind = _kind(now, earlier, threshold)
        earlier_score = earlier.verdict.score if earlier is not None and earlier.verdict is not None else None
        shown = now.model_copy(update={"rows": [], "initial_state": None, "final_state": None})
        by_kind[kind].append(Example(kind=kind, condition=names[-1], rollout=shown, earlier_score=earlier_score))
    # Round by round over the kinds: the first of each, then the second of each.
    rounds = max((len(examples) for examples in by_kind.values()), default=0)
    in_order = [by_kind[kind][i] for i in range(rounds) for kind in _ORDER if i < len(by_kind[kind])]
    return in_order[:_SHOWN]


def _kind(now: Rollout, earlier: Rollout | None, threshold: float) -> Kind:
    solved = is_success(now, threshold)
    if earlier is None:
        return "solved" if solved else "failed"
    if is_success(earlier, threshold):
        return "still solved" if solved else "newly failing"
    return "newly solved" if solved else "still failing"
