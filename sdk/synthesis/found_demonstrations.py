"""Found demonstrations as a stage of a training run: a teacher's verified rollouts, or those of a search; what the
stage may try, and what it leaves in the run folder."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from mcp_bridge import Toolset
from mcp_bridge.records import Tool
from mcp_bridge.safe_text import and_more
from mcp_bridge.sources.functions import function_name
from mcp_bridge.sources.specs import FunctionSpec

from ..distillation import select, tries_of
from ..errors import PolicyFailure, RunFolderError
from ..evaluation.conditions import is_success
from ..policies.protocol import Agent, Sampling
from ..records import Rollout, Task
from ..rollouts.run_context import RunContext
from ..tasks import counted, load_tasks
from ..tasks.splitting import ThreeWaySplit
from ..traces.atomic_files import write_bytes
from .demonstration_search import DemonstrationSearch, Found, SearchReport, with_demonstration
from .function_effects import may_change
from .progress_file import as_lines

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


# ---------------------------------------------------------------------------------------------------------------------

STAGE = "found_demonstrations"
FILE = "demonstrations.jsonl"
_SHOWN = 6


def changes_shared(source: Toolset) -> dict[str, str]:
    """The tools whose calls other rollouts may see, each with the reason. Functions whose code changes nothing are not
    among them."""
    functions = {function_name(spec.function): spec.function for spec in source.specs if isinstance(spec, FunctionSpec)}
    found = {}
    for tool in source.shared_tools:
        function = functions.get(tool.name_at_source or tool.name) if tool.source.startswith("function ") else None
        reason = may_change(function) if function is not None else "nothing says that it only reads"
        if reason is not None:
            found[tool.name] = reason
    return found


def shared_state_line(source: Toolset) -> str | None:
    """What it means that tools change a state that all rollouts share; None where none does, as far as is known."""
    if not (found := changes_shared(source)):
        return None
    named = and_more([f"{tool} ({why})" for tool, why in found.items()], _SHOWN, ";")
    return (
        f"rollouts may share state that cannot be reset, by way of {named}: each sees what others changed, calls "
        "are real, and no demonstration is searched with these tools. Give each rollout a world of its own "
        "(sandboxes.objects.ObjectTwin for Python objects and modules, docs/sandboxes.md), mark what only reads "
        "(mcp_bridge.behaves(read_only=True), or read_only in mcp.json), or name them in allow_destructive"
    )


def searchable_tools(source: Toolset, allowed: Sequence[str] = ()) -> list[Tool]:
    """The tools that a search may try: no destructive ones of live servers, and none that change a shared state unless
    `allowed` names them."""
    live = {tool.name for tool in source.live_destructive}
    shared = changes_shared(source)
    return [
        tool
        for tool in source.tools
        if tool.name not in live and (tool.name not in shared or any(fnmatchcase(tool.name, name) for name in allowed))
    ]


async def find_demonstrations(
    tasks: ThreeWaySplit, context: RunContext, *, wanted: int, allowed: Sequence[str] = ()
) -> list[Task]:
    """The training tasks, those with a demonstration that one was found for: by the teacher of `context`, or else by a
    search. Validation and held-out tasks take no part.

    Written to `demonstrations.jsonl` in the run folder, with all tasks of the run and the side of each, so that the
    file can be edited and given as the prompts of another run. A finished search is read again from there; one that was
    cut off goes on. Raises `RunFolderError` where the file was changed since.
    """
    folder = context.run_folder
    path = folder.path / FILE
    done = folder.stage(STAGE)
    if done is not None:
        if not done["found"]:
            return list(tasks.train)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != done["sha256"]:
            raise RunFolderError(
                f"{path} is not as this run wrote it; put it back, or give it as the prompts of a new run"
            )
        shown = {task.id: task.demonstration for task in load_tasks(path)}
        return [task.model_copy(update={"demonstration": shown[task.id]}) for task in tasks.train]
    tools = searchable_tools(context.tools, allowed)
    if not tools and context.teacher is None:
        context.progress.say(f"no demonstration is searched: none of the tools may be tried. {_TEACHER}")
        return list(tasks.train)

    def keep(rollout: Rollout) -> None:
        folder.append_rollout(STAGE, rollout)

    known = folder.read_rollouts(STAGE)
    if context.teacher is not None:
        context.progress.say(f"the teacher plays {counted(tasks.train, 'training task')}, {TRIES} times each")
        async with context.teacher() as teacher:  # opened here alone: a local one takes as much memory as a model does
            report = await taught(tasks.train, context, teacher, wanted=wanted, known=known, on_found=keep)
    else:
        context.progress.say(
            "no training task has a demonstration: calls are searched that the verifier pays for, with "
            f"{len(tools)} of {len(context.tools.tools)} tools (warm_start.find_demonstrations)"
        )
        search = DemonstrationSearch(context, tools)
        report = await search.run(tasks.train, wanted=wanted, known=known, on_found=keep)
    for line in report.lines():
        context.progress.say(line)
    train = [with_demonstration(report.found[task.id]) if task.id in report.found else task for task in tasks.train]
    facts: dict[str, Any] = {
        "found": len(report.found),
        "searched": len(report.searched),
        "candidates": report.candidates,
    }
    if report.found:
        sides = {"train": train, "validation": tasks.validation, "heldout": tasks.heldout}
        content = as_lines([_on_side(task, side) for side, part in sides.items() for task in part])
        write_bytes(path, content)
        facts["sha256"] = hashlib.sha256(content).hexdigest()
        context.progress.say(f"what was found is in {path}: look at it, correct it, and give it as prompts if you like")
    else:
        context.progress.say(f"no demonstration was found: the model learns from its own attempts alone. {_TEACHER}")
    folder.finish_stage(STAGE, facts)
    return train


_TEACHER = (
    "A larger model can be the teacher: sdk.train(..., teacher=(URL, NAME)), or --teacher URL#NAME. Or write "
    "demonstrations into the tasks: sdk.solve plays your calls and makes the whole task"
)


def _on_side(task: Task, side: str) -> Task:
    return task.model_copy(update={"tags": {**task.tags, "split": side}})
