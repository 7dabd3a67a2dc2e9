"""Advice after a training. Its figures give reason to sentences, each with what to change."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..records import Rollout, StopReason, Task
from .conditions import is_success

if TYPE_CHECKING:
    from .report import TrainingSummary

_ENOUGH = 8
"""Groups or rollouts from which on a kind of tasks is spoken of."""
_FEW = 4
"""Held-out tasks of a kind from which on it is spoken of. With fewer than `_ENOUGH` twice the difference is asked for,
since one task is much of it."""
_MOST_KINDS = 20
_FALLS_SHORT = 0.25
"""Held-out tasks of a kind that succeed so much more rarely than its tasks in training are of other families."""
_OFTEN = 0.05
_MOSTLY = 0.5
_RISE = 0.1
_REFUSED = 0.25
"""The share of failed held-out rollouts from which on their refused calls are spoken of."""
_ALIKE = 0.8
"""The share of held-out answers from which on it is told that they are the same."""

_FIXES: dict[StopReason, str] = {
    "turn_limit": "raise limits.max_turns",
    "token_limit": "raise limits.max_turn_tokens or limits.max_tokens",
    "call_limit": "raise limits.max_calls",
    "context_limit": "show less of the tools (tool_prompt), or train a model with a longer context",
}


class _Practised(NamedTuple):
    """What is needed of one scored rollout of a training, which may have many."""

    group: str
    family: str
    right: bool
    stop_reason: StopReason


def next_steps(
    practice: Iterable[Rollout],
    heldout: Sequence[Rollout],
    training: TrainingSummary | None,
    *,
    threshold: float,
    learnt: float | None,
    lost: float,
    could_be_strict: bool,
) -> list[str]:
    """What the figures of a run advise, the gravest first; nothing where they give no reason.

    `practice`: the rollouts of GRPO, in the order of its steps. `heldout`: those of the last weights. `training`: of
    GRPO; None where there was a warm start alone. `learnt`: held-out success after GRPO less that before it. `lost`:
    success of the weights that are handed over less that of GRPO's last ones, on the tasks kept aside.
    `could_be_strict`: whether calls could be held to the tools and their schemas, and were not.
    """
    kind_of = _kinds([rollout.task for rollout in heldout])
    of_kind = defaultdict[str, list[_Practised]](list)
    for rollout in practice:
        if rollout.scored:
            right = is_success(rollout, threshold)
            of_kind[kind_of(rollout.task)].append(
                _Practised(rollout.group, rollout.task.family, right, rollout.stop_reason)
            )
    measured = defaultdict[str, list[bool]](list)
    for rollout in heldout:
        if rollout.scored:
            measured[kind_of(rollout.task)].append(is_success(rollout, threshold))
    refused = _refused_calls(heldout, threshold) if could_be_strict else []
    if training is None:
        cut_off = _cut_off([rollout.stop_reason for rollout in heldout if rollout.scored], "held-out rollouts")
        further = [*_one_answer(heldout, kind_of), *refused]
        return [*cut_off, *_never_solved(measured), *further]
    late = [one.stop_reason for practised in of_kind.values() for one in practised[len(practised) // 2 :]]
    steps = [
        *_broken(training),
        *_cut_off(late, "rollouts in the second half of training"),
        *_without_signal(of_kind),
        *_other_families(of_kind, measured),
        *_one_answer(heldout, kind_of),
        *refused,
        *([] if all(map(all, measured.values())) else _reward_alone(training, learnt)),
    ]
    if lost >= _RISE:
        steps.append(
            "The last weights did worse on the tasks kept aside than those handed over: lower grpo.learning_rate, or "
            "raise grpo.prompts_per_step."
        )
    elif lost <= 0 and _still_rises(training):
        steps.append(
            f"Success on the tasks kept aside was highest at the last of {training.steps} steps: train longer "
            f"(grpo.max_steps={2 * training.steps})."
        )
    return steps


def _kinds(tasks: Sequence[Task]) -> Callable[[Task], str]:
    """The kind of a task: its value of the tag `kind`, or else of the tag with the fewest values of those with two."""
    values = defaultdict[str, set[str]](set)
    for task in tasks:
        for tag, value in task.tags.items():
            values[tag].add(value)
    grouping = [tag for tag, found in values.items() if 1 < len(found) <= _MOST_KINDS]
    if not grouping:
        return lambda _: "all tasks"
    kind = "kind" if "kind" in grouping else min(grouping, key=lambda tag: len(values[tag]))
    return lambda task: f"{kind}={task.tags.get(kind, 'none')}"


def _broken(training: TrainingSummary) -> list[str]:
    broken, all_of_them = training.skipped_rollouts or 0, training.rollouts or 0
    if broken <= _OFTEN * all_of_them:
        return []
    return [
        f"{broken} of {all_of_them} rollouts in training broke and taught nothing: read their failures in "
        "rollouts/grpo.jsonl."
    ]


def _cut_off(ends: Sequence[StopReason], which: str) -> list[str]:
    found = Counter(ends)
    return [
        f"{_percent(found[reason] / len(ends))} of the {which} ended with {reason}: {fix}."
        for reason, fix in _FIXES.items()
        if found[reason] > _OFTEN * len(ends)
    ]


def _never_solved(measured: Mapping[str, Sequence[bool]]) -> list[str]:
    never = [
        f"{kind} ({len(right)} tasks)" for kind, right in measured.items() if len(right) >= _FEW and not any(right)
    ]
    if not never:
        return []
    return [
        f"No held-out task is solved of these: {', '.join(never)}. Give more demonstrations of such tasks, in other "
        "wordings, or train on the warm start for longer (warm_start.max_steps)."
    ]


def _without_signal(of_kind: Mapping[str, Sequence[_Practised]]) -> list[str]:
    never, mastered, groups = [], 0, 0
    for kind, practised in of_kind.items():
        right = defaultdict[str, list[bool]](list)
        for one in practised:
            right[one.group].append(one.right)
        groups += len(right)
        mastered += sum(map(all, right.values()))
        if len(right) >= _ENOUGH and not any(map(any, right.values())):
            never.append(f"{kind} ({len(right)} groups)")
    steps = []
    if never:
        steps.append(
            f"No rollout in training succeeded at {', '.join(never)}: give demonstrations of such tasks, or easier "
            "tasks of the kind; train on the warm start for longer (warm_start.max_steps)."
        )
    if groups >= _ENOUGH and mastered > _MOSTLY * groups:
        steps.append(
            f"In {mastered} of {groups} groups all rollouts succeeded, which teaches nothing: add harder tasks."
        )
    return steps


def _other_families(of_kind: Mapping[str, Sequence[_Practised]], measured: Mapping[str, Sequence[bool]]) -> list[str]:
    steps = []
    for kind, practised in of_kind.items():
        late = [one.right for one in practised[-max(_ENOUGH, len(practised) // 3) :]]
        held_out = measured.get(kind, [])
        if len(late) < _ENOUGH or len(held_out) < _FEW:
            continue
        trained, found = sum(late) / len(late), sum(held_out) / len(held_out)
        if trained - found >= (_FALLS_SHORT if len(held_out) >= _ENOUGH else 2 * _FALLS_SHORT):
            families = len({one.family for one in practised})
            steps.append(
                f"{kind}: {_percent(trained)} of the rollouts succeed at the end of training, but {_percent(found)} of "
                f"the held-out tasks. The model learned {families} {'family' if families == 1 else 'families'} of this "
                "kind: write tasks of more (other wordings)."
            )
    return steps


def _one_answer(heldout: Iterable[Rollout], kind_of: Callable[[Task], str]) -> list[str]:
    """Nearly one answer to tasks of a kind that expect several: no error to a verifier that pays where it is right."""
    answers = defaultdict[str, list[tuple[str, str]]](list)
    for rollout in heldout:
        if rollout.scored and "answer" in rollout.task.expected:
            expected = json.dumps(rollout.task.expected["answer"], sort_keys=True)
            answers[kind_of(rollout.task)].append((rollout.answer, expected))
    steps = []
    for kind, pairs in answers.items():
        (answer, times), (_, wanted) = (Counter(one).most_common(1)[0] for one in zip(*pairs, strict=True))
        is_alike = len(pairs) >= _ENOUGH and times >= _ALIKE * len(pairs) and answer.strip() != ""
        if is_alike and times - wanted > _RISE * len(pairs):
            steps.append(
                f"{kind}: {times} of {len(pairs)} held-out answers are {answer[:80]!r}, and at most {wanted} tasks "
                "expect any one answer: the model answers without looking. Give tasks that expect each answer as often."
            )
    return steps


def _refused_calls(heldout: Iterable[Rollout], threshold: float) -> list[str]:
    failed = [one for one in heldout if one.scored and not is_success(one, threshold)]
    refused = sum(not one.error_kinds.keys().isdisjoint({"unknown_tool", "invalid_arguments"}) for one in failed)
    if refused < _FEW or refused < _REFUSED * len(failed):
        return []
    return [
        f"{refused} of {len(failed)} failed held-out rollouts had a call of no tool, or with arguments that its schema "
        "refuses. Clients that set strict: true get valid calls only: measure that with strict_tools "
        "(toolbake evaluate --strict-tools)."
    ]


def _reward_alone(training: TrainingSummary, learnt: float | None) -> list[str]:
    first, last = training.first_reward, training.last_reward
    if first is None or last is None or learnt is None or learnt > 0 or last - first < _RISE:
        return []
    return [
        f"The mean reward rose from {first:.2f} to {last:.2f}, and held-out success did not: read the rollouts in "
        "report.md; do they earn the reward in a way that you did not intend?"
    ]


def _still_rises(training: TrainingSummary) -> bool:
    if len(training.validation) < 2:
        return False
    *before, last = (rate for _, rate in sorted(training.validation.items()))
    return max(before) < last < 1


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
