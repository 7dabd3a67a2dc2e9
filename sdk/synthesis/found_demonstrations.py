"""The search for demonstrations as a stage of a training run: what it may try, and what it leaves in the run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from mcp_bridge import Toolset
from mcp_bridge.records import Tool
from mcp_bridge.sources.functions import function_name
from mcp_bridge.sources.specs import FunctionSpec

from ..errors import RunFolderError
from ..records import Rollout, Task
from ..rollouts.run_context import RunContext
from ..tasks import counted, load_tasks
from ..tasks.splitting import ThreeWaySplit
from ..traces.atomic_files import write_bytes
from .demonstration_search import DemonstrationSearch, with_demonstration
from .function_effects import may_change
from .progress_file import as_lines
from .teacher import TRIES, taught

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
    named = "; ".join(f"{tool} ({why})" for tool, why in list(found.items())[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"rollouts may share state that cannot be reset, by way of {named}{more}: each sees what others changed, calls "
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
