"""Verdicts made elsewhere: a baseline whose rollouts nobody has, such as the published results of a large model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..errors import ConfigError, wrong_fields
from ..records import Rollout, Task, Verdict
from ..tasks.task_files import read_json_lines
from .conditions import is_success
from .faults import Fault


class OutsideVerdict(Verdict):
    """A line of a file of verdicts. Example: `{"task": "email/7", "score": 1, "components": {"side_effects": 0}}`"""

    task: str
    """The id of the task."""


OutsideVerdicts = dict[str, list[OutsideVerdict]]
"""Name of the baseline -> its verdicts."""


def read_verdicts(files: Mapping[str, str | Path] | None, policies: Iterable[str]) -> OutsideVerdicts:
    """Verdicts by the name of their baseline, from one JSON Lines file each.

    Raises `ConfigError` with file and line for what is no verdict and for a task that is judged twice, and for a name
    that a policy has.
    """
    found: OutsideVerdicts = {}
    for name, file in (files or {}).items():
        if name in policies:
            raise ConfigError(f"verdicts: {name!r} is the name of a policy, too; give the verdicts another name")
        found[name] = _read(Path(file))
    return found


def _read(path: Path) -> list[OutsideVerdict]:
    verdicts: dict[str, OutsideVerdict] = {}
    for value, where in read_json_lines(path):
        try:
            verdict = OutsideVerdict.model_validate(value, strict=True)
        except ValidationError as error:
            wrong = wrong_fields(error, "line")
            raise ConfigError(
                f'verdicts: {where} is no verdict: {wrong}; write {{"task": "<id>", "score": 1}} with one object a line'
            ) from None
        if verdict.task in verdicts:
            raise ConfigError(f"verdicts: {where} judges task {verdict.task!r} again; keep one of them")
        verdicts[verdict.task] = verdict
    return list(verdicts.values())


def outside_rollouts(verdicts: OutsideVerdicts, tasks: Sequence[Task]) -> dict[str, list[Rollout]]:
    """Each baseline as a condition: its verdicts on `tasks`, as rollouts of which nothing else is known. Verdicts on
    other tasks are left out.

    Raises `ConfigError` where a baseline has a verdict on none of the tasks.
    """
    by_id = {task.id: task for task in tasks}
    conditions = {}
    for name, given in verdicts.items():
        conditions[name] = [
            Rollout(
                id=f"{name}/{one.task}",
                task=by_id[one.task],
                policy=name,
                verdict=Verdict(**one.model_dump(exclude={"task"})),
            )
            for one in given
            if one.task in by_id
        ]
        if not conditions[name]:
            there = repr(given[0].task) if given else "nothing"
            raise ConfigError(
                f"verdicts: {name!r} judges none of the {len(tasks)} tasks; it has {there}, and the first task is "
                f"{tasks[0].id!r}; give verdicts on these tasks"
            )
    return conditions


def outside_faults(rollouts: Sequence[Rollout], threshold: float) -> dict[str, Fault]:
    """Rollout id -> fault: what went wrong elsewhere is not known."""
    unknown = Fault(kind="unexplained", detail="judged elsewhere: there is no rollout to read")
    return {rollout.id: unknown for rollout in rollouts if not is_success(rollout, threshold)}
