"""Tasks that people wrote or edited, held against the tools: every problem with its line and its fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_bridge.records import Tool

from ..connecting import connect
from ..errors import ConfigError
from ..progress import Progress, Silent
from ..records import Task
from ..tasks import load_tasks
from ..tasks.files import read_file
from ..tasks.task_rows import task_from_mapping
from .checking import Seen, played_again, replay_problem, wording_problem
from .worlds import open_worlds

_SHOWN = 20


@dataclass(frozen=True)
class Problem:
    """What is wrong with one task."""

    where: str
    """File and line, or the task's id."""
    task_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}{f' (task {self.task_id!r})' if self.task_id else ''}: {self.what}"


@dataclass(frozen=True)
class CheckedTasks:
    """The tasks that hold, and the problems of the others. `print` it; `require_all` raises where there are any."""

    tasks: Sequence[Task]
    problems: Sequence[Problem]

    def __str__(self) -> str:
        count = len({problem.where for problem in self.problems})
        head = f"{len(self.tasks)} tasks hold: their calls were played again in fresh worlds and earn what they expect"
        return "\n".join([head, *([f"{count} do not:"] if count else []), *(f"  {one}" for one in self.problems)])

    def require_all(self) -> None:
        """Raises `ConfigError` that names the problems."""
        if self.problems:
            more = len(self.problems) - _SHOWN
            shown = [f"  {problem}" for problem in self.problems[:_SHOWN]] + (
                [f"  and {more} more"] if more > 0 else []
            )
            raise ConfigError(f"{len(self.problems)} problems in the tasks:\n" + "\n".join(shown))


async def check_tasks_async(
    tools: Any,
    prompts: Any,
    *,
    connect_timeout_s: float = 20.0,
    concurrency: int = 8,
    progress: Progress | None = None,
) -> CheckedTasks:
    """Check tasks against the tools: those that `sdk.synthesize` wrote and people edited, or any with demonstrations.

    `prompts`: a file or whatever else `sdk.tasks.load_tasks` takes. Of each task the calls of its demonstration are
    played in a fresh world and must earn what it expects; the request must hold every argument that no earlier call
    returns, and not the answer; no two may ask the same in the same world. A problem of a file names its line.

    Raises `ConfigError` for a file that cannot be read and tools without worlds that can be reset.
    """
    placed, problems = _read(prompts)
    async with connect(tools, connect_timeout_s=connect_timeout_s) as source:
        await open_worlds(source, [{}])
        seen = Seen()
        playable: list[tuple[str, Task]] = []
        for where, task in placed:
            if what := _unplayable(task, source.tools) or seen.problem(task):
                problems.append(Problem(where, task.id, what))
            else:
                seen.add(task, where)
                playable.append((where, task))
        with (progress or Silent()).track("playing tasks again", len(playable)) as step:
            rollouts = await played_again(source, [task for _, task in playable], step, concurrency=concurrency)
    good = []
    for (where, task), rollout in zip(playable, rollouts, strict=True):
        if what := _mending(replay_problem(rollout)) or wording_problem(rollout):
            problems.append(Problem(where, task.id, what))
        else:
            good.append(task)
    order = {where: place for place, (where, _) in enumerate(placed)}
    return CheckedTasks(good, sorted(problems, key=lambda problem: order.get(problem.where, len(order))))


def _read(prompts: Any) -> tuple[list[tuple[str, Task]], list[Problem]]:
    """The tasks with their places, and the lines that are none."""
    if not isinstance(prompts, str | Path):
        return [(f"task {task.id!r}", task) for task in load_tasks(prompts)], []
    placed: list[tuple[str, Task]] = []
    problems: list[Problem] = []
    ids: dict[str, str] = {}
    for item, where in read_file(Path(prompts)):
        try:
            if not isinstance(item, dict):
                raise ConfigError(f"{where}: is {item!r:.80}; a task is an object with a 'prompt'")
            task = task_from_mapping(item, where)
        except ConfigError as error:
            problems.append(Problem(where, "", str(error).removeprefix(f"{where}: ")))
            continue
        if task.id in ids:
            problems.append(Problem(where, task.id, f"its id is that of {ids[task.id]}; give it an id of its own"))
            continue
        ids[task.id] = where
        placed.append((where, task))
    if not placed and not problems:
        raise ConfigError(f"{prompts} holds no task; give at least one")
    return placed, problems


def _unplayable(task: Task, tools: Sequence[Tool]) -> str:
    calls = [call for message in task.demonstration for call in message.tool_calls]
    if any(message.role != "assistant" for message in task.demonstration):
        return "its demonstration holds other messages than the assistant's; leave results out, calls are played"
    if not task.demonstration:
        return "it has no demonstration, so that nothing can be played; add the assistant messages of a right solution"
    if not {"answer", "calls", "changes", "state"} & set(task.expected):
        return "it expects nothing that can be checked; add expected.answer, expected.calls or expected.changes"
    names = {tool.name for tool in tools}
    unknown = [call.name for call in calls if call.name not in names]
    if unknown:
        return (
            f"its demonstration calls {unknown[0]!r}, which the tools do not have; they are {', '.join(sorted(names))}"
        )
    return ""


def _mending(problem: str) -> str:
    """A problem of the replay with its fix."""
    if not problem:
        return ""
    return f"{problem}. Correct `expected`, or the calls and the last message of its demonstration"
