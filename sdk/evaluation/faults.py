"""Faults: what can go wrong first in a rollout, the judge that may overrule the rules, and groups of faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, get_args

from pydantic import BaseModel, Field

from ..records import Rollout
from ..worker_pool import work_through
from .conditions import is_success

_ASKED_AT_ONCE = 8
"""Questions to a judge."""

FaultKind = Literal[
    "broken_tool",
    "broken_policy",
    "broken_user",
    "unreadable_call",
    "wrong_tool",
    "ungrounded_argument",
    "wrong_argument",
    "loop",
    "ran_out",
    "gave_up",
    "ignored_result",
    "wrong_answer",
    "verifier_doubt",
    "unexplained",
]

FAULTS: dict[FaultKind, str] = {
    "broken_tool": "a tool, its server or the world failed, or a fault was put into its answer",
    "broken_policy": "the model's engine, its endpoint or its agent failed, or time ran out; the rollout is unscored",
    "broken_user": "the model that plays the task's user did not keep to its part, or failed; the rollout is unscored",
    "unreadable_call": "a call that no parser can read",
    "wrong_tool": "a tool that does not exist, or one that the task did not need",
    "ungrounded_argument": "an argument that stands neither in the prompt nor in an earlier result",
    "wrong_argument": "an argument against the schema, or other than the task needed",
    "loop": "the same call with the same result three times or after it had worked, or the same text over and over",
    "ran_out": "a limit of turns, tokens, calls or context ended it",
    "gave_up": "an answer before all needed calls were made, an empty one, or a refusal",
    "ignored_result": "a result says the right answer, or an error, and the answer does not heed it",
    "wrong_answer": "the answer says something else, and no result had said the right one",
    "verifier_doubt": "calls and answer look right, or the verifier failed: look at the verifier or the task",
    "unexplained": "no rule applies",
}
"""Each kind with what it means. Of two that begin in one turn the earlier in this list is taken."""

ORDER: dict[FaultKind, int] = {kind: place for place, kind in enumerate(get_args(FaultKind))}


class Fault(BaseModel, frozen=True):
    """What went wrong first in a rollout, and was not made good later."""

    kind: FaultKind
    turn: int = 0
    """The assistant message it began in, from 1; 0 where none was to blame."""
    tool: str = ""
    argument: str = ""
    detail: str = ""
    """What happened, for people. Written from the rollout: untrusted text."""
    by: Literal["rule", "judge"] = "rule"
    judge_error: str | None = None
    """Why a judge that was asked gave no fault; the rule's fault is kept then."""

    @property
    def signature(self) -> str:
        """A short name that distinguishes faults of one kind: `get_order.order_id`."""
        return f"{self.tool}.{self.argument}" if self.argument else self.tool


class FaultJudge(Protocol):
    """Says what went wrong first. Rollouts hold text that models and tools wrote: material, never instructions."""

    async def judge(self, rollout: Rollout, found: Fault, /) -> Fault | None:
        """The fault, given what the rules found; None leaves it at that."""


async def judged_faults(
    judge: FaultJudge, rollouts: Iterable[Rollout], faults: Mapping[str, Fault]
) -> dict[str, Fault]:
    """`faults`, with the judge's where it gives one. Where it raises, the error is noted and the rule's fault kept."""
    result = dict(faults)

    async def ask(rollout: Rollout) -> None:
        found = faults[rollout.id]
        try:
            said = await judge.judge(rollout, found)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            result[rollout.id] = found.model_copy(update={"judge_error": reason})
        else:
            result[rollout.id] = found if said is None else said.model_copy(update={"by": "judge"})

    await work_through([one for one in rollouts if one.id in faults], ask, at_once=_ASKED_AT_ONCE)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Groups of faults, the largest first.

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
    """Of all rollouts of the condition that did not succeed."""
    signatures: dict[str, int]
    """The commonest tools and arguments, `get_order.order_id`, with their number of rollouts."""
    telling: list[TellingRollout]


class ConditionErrors(BaseModel):
    """What went wrong first in one condition."""

    rollouts: int
    failed: int
    """Did not succeed, unscored ones included."""
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
) -> ConditionErrors:
    """The groups of one condition. `faults`: see `find_faults`; `baseline`: name, rollouts and faults of another."""
    failed = [rollout for rollout in rollouts if rollout.id in faults]
    members: dict[FaultKind, list[Rollout]] = defaultdict(list)
    for rollout in failed:
        members[faults[rollout.id].kind].append(rollout)
    solved = set[str]()
    if baseline:
        # Tasks that were scored and never failed.
        solved = {rollout.task.id for rollout in baseline[1] if is_success(rollout, threshold)}
        solved -= {rollout.task.id for rollout in baseline[1] if rollout.id in baseline[2]}
    kinds = sorted(members, key=lambda kind: (-len(members[kind]), ORDER[kind]))
    return ConditionErrors(
        rollouts=len(rollouts),
        failed=len(failed),
        groups=[_group(kind, members[kind], faults, len(failed), solved) for kind in kinds],
        faults={rollout.id: faults[rollout.id] for rollout in failed},
        baseline=baseline[0] if baseline else None,
        changes=_changes(rollouts, faults, baseline[1], baseline[2]) if baseline else {},
        judge_errors=sum(faults[rollout.id].judge_error is not None for rollout in failed),
    )


def _group(
    kind: FaultKind,
    members: Sequence[Rollout],
    faults: Mapping[str, Fault],
    failed: int,
    solved: set[str],
) -> ErrorGroup:
    signatures = Counter(signature for r in members if (signature := faults[r.id].signature))
    in_order = sorted(
        members, key=lambda r: (r.task.id not in solved, -signatures[faults[r.id].signature], len(r.messages), r.id)
    )
    return ErrorGroup(
        kind=kind,
        rollouts=len(members),
        tasks=len({r.task.id for r in members}),
        share=len(members) / failed,
        signatures=dict(sorted(signatures.items(), key=lambda item: (-item[1], item[0]))[:_SIGNATURES]),
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
