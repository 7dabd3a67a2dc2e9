"""The teacher: another model whose verified rollouts are the demonstrations of a training."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..distillation import select, tries_of
from ..errors import PolicyFailure
from ..evaluation.conditions import is_success
from ..policies.protocol import Agent, Sampling
from ..records import Rollout, Task
from ..rollouts.run_context import RunContext
from .demonstration_search import Found, SearchReport

TRIES = 4
"""Of one task. Of those that the verifier pays for the one with the fewest calls is kept."""
_HOPELESS = 2 * TRIES
"""So many tries that all broke: the endpoint is to be looked at, before each task is asked in vain."""


async def taught(
    tasks: Sequence[Task],
    context: RunContext,
    teacher: Agent,
    *,
    wanted: int,
    known: Sequence[Rollout],
    on_found: Callable[[Rollout], None],
) -> SearchReport:
    """Play tasks with the teacher, `TRIES` times each, until `wanted` of them have a demonstration.

    `known`: rollouts that an earlier call found for these tasks and handed to `on_found`. Not kept are rollouts without
    a call, which teach no tool, and those that would teach a mistake: with a call that failed, ended by a limit, or
    with an empty answer. Raises `PolicyFailure` where the teacher broke in all tries, and none was known.
    """
    report, order, broken = SearchReport(), list(tasks), 0
    random.Random(context.seed).shuffle(order)  # the first are often of one kind
    before = {rollout.task.id: rollout for rollout in known}
    engine = replace(context, host=None).engine(teacher)
    sampling = Sampling(temperature=1.0, max_tokens=context.limits.max_turn_tokens)
    at_once = max(1, context.concurrency // TRIES)
    with context.progress.track("asking the teacher", len(order)) as step:
        for begin in range(0, len(order), at_once):
            if len(report.found) >= wanted:
                break
            wave = order[begin : begin + at_once]
            asked = [task for task in wave if task.id not in before]
            rollouts = await engine.run(tries_of(asked, TRIES, context.seed, name="teacher"), sampling=sampling)
            broken += _count(report, rollouts)
            for task in wave:
                tries = [rollout for rollout in rollouts if rollout.task.id == task.id]
                right = [rollout for rollout in tries if is_success(rollout, context.success_threshold)]
                calling = [rollout for rollout in right if rollout.calls]
                clean = [rollout for rollout in calling if _is_clean(rollout)]
                report.mistaken += len(calling) - len(clean)
                distinct = select(clean, threshold=context.success_threshold, per_task=TRIES).kept
                kept = min(distinct, key=lambda one: len(one.calls), default=None)
                if task.id in before:
                    report.found[task.id] = Found(task, before[task.id])
                elif kept is not None:
                    on_found(kept)
                    report.found[task.id] = Found(task, kept)
                else:
                    (report.paid_for_nothing if right and not calling else report.not_found).append(task)
                step.advance(note=f"{len(report.found)} found")
            enough = _HOPELESS if begin + at_once < len(order) else 1
            if not report.found and broken == report.candidates >= enough:
                raise PolicyFailure(
                    f"the teacher answered in none of {report.candidates} tries, the last: {report.failure}"
                )
    return report


def _is_clean(rollout: Rollout) -> bool:
    failed = any(record.result.is_error or record.call.error is not None for record in rollout.calls)
    return rollout.stop_reason == "answered" and bool(rollout.answer.strip()) and not failed


def _count(report: SearchReport, rollouts: Sequence[Rollout]) -> int:
    """How many of them the teacher's model or endpoint broke."""
    report.candidates += len(rollouts)
    for rollout in rollouts:
        if (failure := rollout.failure) is not None and failure.boundary == "verifier":
            report.verifier_failures, report.verifier_failure = report.verifier_failures + 1, failure.message
        elif failure is not None:
            report.failures, report.failure = report.failures + 1, failure.message
    return sum(one.failure is not None and one.failure.boundary == "policy" for one in rollouts)
