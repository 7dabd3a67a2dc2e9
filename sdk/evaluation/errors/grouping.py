"""Faults in groups, the largest first: how many, where, which rollouts tell most, and what changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, Field

from ...records import Rollout
from ..conditions import is_success
from .faults import ORDER, Fault, FaultKind
from .similar import Embedder, alike

TELLING = 3
"""Rollouts kept of each group."""
_SIGNATURES = 5

TELLING_RULE = (
    "By rule: first tasks that the baseline solved, then the group's commonest tool and argument, then the shortest "
    "conversation."
)


class TellingRollout(BaseModel):
    """A rollout to read, without its tokens and states."""

    fault: Fault
    newly_failing: bool
    """The baseline solved this task."""
    rollout: Rollout


class TaskChanges(BaseModel):
    """Tasks against the baseline, for one kind of fault. A task has the fault of its first rollout that failed."""

    new: int
    """Solved in the baseline, fails so now."""
    moved: int
    """Failed otherwise in the baseline, fails so now."""
    stayed: int
    """Failed so in the baseline and does now."""
    fixed: int
    """Failed so in the baseline, solved now."""
    before: int
    """Failed so in the baseline, over the tasks that both have."""


class ErrorGroup(BaseModel):
    """Rollouts with the same kind of fault."""

    kind: FaultKind
    rollouts: int
    tasks: int
    share: float
    """Of all rollouts of the condition that are no success."""
    signatures: dict[str, int]
    """The commonest tools and arguments, `get_order.order_id`, with their number of rollouts."""
    alike: list[list[str]] = Field(default_factory=list)
    """Ids of rollouts whose faults read alike, by the embedder; empty without one."""
    telling: list[TellingRollout]


class ConditionErrors(BaseModel):
    """What went wrong first in one condition."""

    rollouts: int
    failed: int
    """No success, unscored ones included."""
    groups: list[ErrorGroup]
    faults: dict[str, Fault] = Field(default_factory=dict)
    """Id of each rollout that failed -> its fault."""
    baseline: str | None = None
    changes: dict[str, TaskChanges] = Field(default_factory=dict)
    """Kind of fault -> what became of its tasks; empty without a baseline."""
    judge_errors: int = 0
    """Faults for which a judge was asked and failed."""


def group_errors(
    rollouts: Sequence[Rollout],
    faults: Mapping[str, Fault],
    *,
    baseline: tuple[str, Sequence[Rollout], Mapping[str, Fault]] | None = None,
    threshold: float = 1.0,
    embed: Embedder | None = None,
) -> ConditionErrors:
    """The groups of one condition. `faults`: see `find_faults`; `baseline`: name, rollouts and faults of another."""
    failed = [rollout for rollout in rollouts if rollout.id in faults]
    members: dict[FaultKind, list[Rollout]] = defaultdict(list)
    for rollout in failed:
        members[faults[rollout.id].kind].append(rollout)
    solved = _solved(baseline[1], baseline[2], threshold) if baseline else frozenset[str]()
    kinds = sorted(members, key=lambda kind: (-len(members[kind]), ORDER[kind]))
    return ConditionErrors(
        rollouts=len(rollouts),
        failed=len(failed),
        groups=[_group(kind, members[kind], faults, len(failed), solved, embed) for kind in kinds],
        faults={rollout.id: faults[rollout.id] for rollout in failed},
        baseline=baseline[0] if baseline else None,
        changes=_changes(rollouts, faults, baseline[1], baseline[2]) if baseline else {},
        judge_errors=sum(faults[rollout.id].judge_error is not None for rollout in failed),
    )


def _solved(rollouts: Sequence[Rollout], faults: Mapping[str, Fault], threshold: float) -> frozenset[str]:
    """Tasks that were scored and never failed."""
    failed = {rollout.task.id for rollout in rollouts if rollout.id in faults}
    return frozenset({rollout.task.id for rollout in rollouts if is_success(rollout, threshold)} - failed)


def _group(
    kind: FaultKind,
    members: Sequence[Rollout],
    faults: Mapping[str, Fault],
    failed: int,
    solved: frozenset[str],
    embed: Embedder | None,
) -> ErrorGroup:
    signatures = Counter(signature for r in members if (signature := faults[r.id].signature))
    in_order = sorted(
        members,
        key=lambda r: (r.task.id not in solved, -signatures[faults[r.id].signature], len(r.messages), r.id),
    )
    texts = [f"{faults[r.id].detail}\n{r.answer}" for r in members]
    return ErrorGroup(
        kind=kind,
        rollouts=len(members),
        tasks=len({r.task.id for r in members}),
        share=len(members) / failed,
        signatures=dict(sorted(signatures.items(), key=lambda item: (-item[1], item[0]))[:_SIGNATURES]),
        alike=[[members[place].id for place in group] for group in alike(texts, embed)] if embed else [],
        telling=[
            TellingRollout(
                fault=faults[r.id],
                newly_failing=r.task.id in solved,
                rollout=r.model_copy(update={"rows": [], "initial_state": None, "final_state": None, "ledger": []}),
            )
            for r in _one_a_task(in_order)[:TELLING]
        ],
    )


def _one_a_task(rollouts: Sequence[Rollout]) -> list[Rollout]:
    first: dict[str, Rollout] = {}
    for rollout in rollouts:
        first.setdefault(rollout.task.id, rollout)
    return list(first.values())


def _changes(
    rollouts: Sequence[Rollout],
    faults: Mapping[str, Fault],
    baseline: Sequence[Rollout],
    baseline_faults: Mapping[str, Fault],
) -> dict[str, TaskChanges]:
    now, before = _kind_by_task(rollouts, faults), _kind_by_task(baseline, baseline_faults)
    both = [(before[task], now[task]) for task in now.keys() & before.keys()]
    kinds = sorted({kind for pair in both for kind in pair if kind is not None}, key=lambda kind: ORDER[kind])
    return {
        kind: TaskChanges(
            new=both.count((None, kind)),
            moved=sum(old not in (None, kind) and new == kind for old, new in both),
            stayed=both.count((kind, kind)),
            fixed=both.count((kind, None)),
            before=sum(old == kind for old, _ in both),
        )
        for kind in kinds
    }


def _kind_by_task(rollouts: Sequence[Rollout], faults: Mapping[str, Fault]) -> dict[str, FaultKind | None]:
    """The kind of each task's first rollout that failed; None for a task without one."""
    kinds: dict[str, FaultKind | None] = {}
    for rollout in sorted(rollouts, key=lambda r: r.id):
        if kinds.get(rollout.task.id) is None:
            kinds[rollout.task.id] = faults[rollout.id].kind if rollout.id in faults else None
    return kinds
