"""Measurement of a policy. Tasks run greedily, one rollout each unless asked otherwise, and a run folder resumes them.
A saved model is also measured as its clients ask it, through the endpoint, and verdicts that were made elsewhere are
read."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel, Field, ValidationError

from ..errors import ConfigError, ToolbakeError, wrong_fields
from ..policies.protocol import Sampling
from ..records import Rollout, Task, ToolPrompt, Verdict
from ..rollouts import derive_seed
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.run_context import RunContext
from ..tasks.task_files import read_json_lines
from .conditions import ConditionSummary, is_success, summarise_condition
from .faults import Fault

log = logging.getLogger(__name__)

MEASURED_TEMPERATURE = 0.0
"""Greedy, unless told otherwise. A model that was trained is served so, too."""
UNTRAINED = "untrained"
"""The stage of the first rollouts that a training measures."""
_A_FAULT_SHOWS = 16
"""When none of so many rollouts could be scored, the rest is not waited for."""


async def measure(
    engine: RolloutEngine,
    tasks: Sequence[Task],
    context: RunContext,
    *,
    stage: str,
    title: str = "",
    temperature: float = MEASURED_TEMPERATURE,
    samples: int = 1,
    tool_prompt: ToolPrompt | None = None,
    strict_tools: bool = False,
) -> list[Rollout]:
    """`samples` rollouts for each task, in the order of the tasks. Scored ones that the folder has are not run again.

    `tool_prompt`: how much of the tools the policy is shown; None: as much as it was trained with. `strict_tools`: see
    `Sampling`.

    Unscored ones are: what broke then may work now. They move to `rollouts/<stage>.discarded.jsonl`.

    Raises `ToolbakeError` when not one rollout, or none of the first 16, could be scored: then there is nothing to
    measure, only a fault.
    """
    folder, progress, threshold = context.folder, context.progress, context.success_threshold
    unscored = folder.drop_unscored(stage) if folder else 0
    if unscored:
        progress.say(f"{title or stage}: {unscored} rollouts that could not be scored are run again")
    known = {rollout.id: rollout for rollout in folder.iter_rollouts(stage)} if folder else {}
    jobs = _jobs(tasks, stage, context.seed, samples, tool_prompt)
    missing = [job for job in jobs if job.id not in known]
    right = sum(is_success(rollout, threshold) for rollout in known.values())
    most = engine.limits.max_turn_tokens
    sampling = Sampling(temperature=temperature, max_tokens=most, strict_tools=strict_tools)
    with progress.track(title or stage, len(jobs), len(jobs) - len(missing)) as step:

        def ended(rollout: Rollout) -> None:
            nonlocal right
            for row in rollout.rows:
                row.allowed.clear()  # up to gigabytes of masks, which a trainer alone reads
            if folder is not None:
                folder.append_rollout(stage, rollout)
            right += is_success(rollout, threshold)
            known[rollout.id] = rollout
            step.advance(note=f"{right}/{len(known)} right")
            if len(known) == _A_FAULT_SHOWS:
                require_scores(list(known.values()), what=f"measuring {stage!r}")

        await engine.run(missing, sampling=sampling, on_rollout=ended)
    rollouts = [known[job.id] for job in jobs]
    require_scores(rollouts, what=f"measuring {stage!r}")
    return rollouts


def _jobs(tasks: Sequence[Task], stage: str, seed: int, samples: int, tool_prompt: ToolPrompt | None) -> list[Job]:
    """One job a task; with several samples each has its number in its id and in its seed."""
    jobs = []
    for task in tasks:
        for number in range(samples):
            name, numbers = (f"{stage}/{task.id}", ()) if samples == 1 else (f"{stage}/{task.id}#{number}", (number,))
            own = derive_seed(seed, stage, task.id, *numbers)
            jobs.append(Job(id=name, task=task, seed=own, tool_prompt=tool_prompt))
    return jobs


def require_scores(rollouts: Sequence[Rollout], *, what: str) -> None:
    """Stop before empty results are taken for bad ones. Raises `ToolbakeError` when none is scored."""
    if rollouts and not any(rollout.scored for rollout in rollouts):
        failure = next(rollout.failure for rollout in rollouts if rollout.failure is not None)
        raise ToolbakeError(
            f"{what}: none of {len(rollouts)} rollouts could be scored. The first failure, at the boundary "
            f"{failure.boundary!r}: {failure.kind}: {failure.message}"
        )


# ---------------------------------------------------------------------------------------------------------------------
# As it is served


SERVED = "served"
"""The stage of the rollouts through the endpoint."""

NOT_SENT = dict.fromkeys(("temperature", "top_p", "max_tokens", "seed"))
"""What a client leaves out that keeps to its defaults. `EndpointAgent` sends no field that is None."""


class ServedSummary(BaseModel):
    """How the saved model does through the endpoint, beside a condition that was measured with the same weights."""

    like: str
    """The name of that condition."""
    condition: ConditionSummary | None = None
    """None where the model could not be asked."""
    compared: int | None = None
    """Rollouts that are scored in both. None in reports of before it was counted."""
    differ: list[str] = Field(default_factory=list)
    """Tasks that succeed in one of the two and not in the other. Sums in another order may turn an answer; more than
    one or two mean that something else is served than was measured."""
    problem: str | None = None
    """Why the model could not be asked."""


async def measure_served(model_dir: Path, tasks: Sequence[Task], context: RunContext) -> list[Rollout]:
    """Serve a saved model on a free port of this machine, behind a key, and play `tasks` through it.

    Raises what `sdk.serve` raises, and `ToolbakeError` where not one rollout could be scored.
    """
    from ..policies.endpoint import EndpointAgent
    from ..serving import serve

    key = secrets.token_urlsafe(32)
    server = await anyio.to_thread.run_sync(partial(serve, model_dir, port=0, api_key=key, drain_seconds=0))
    try:
        async with EndpointAgent(f"{server.url}/v1", server.model_name, key, extra_body=NOT_SENT) as agent:
            return await measure(context.engine(agent), tasks, context, stage=SERVED, title="through the endpoint")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.close)


def summarise_served(
    rollouts: Sequence[Rollout], like: str, measured: Sequence[Rollout], *, threshold: float, cluster_by: str
) -> ServedSummary:
    """The figures of `rollouts` through the endpoint; `measured` are those of the condition `like`."""
    known = {rollout.task.id: rollout for rollout in measured}
    pairs = [
        (one, known[one.task.id])
        for one in rollouts
        if one.scored and one.task.id in known and known[one.task.id].scored
    ]
    return ServedSummary(
        like=like,
        condition=summarise_condition(rollouts, threshold=threshold, cluster_by=cluster_by),
        compared=len(pairs),
        differ=[one.task.id for one, other in pairs if is_success(one, threshold) != is_success(other, threshold)],
    )


# ---------------------------------------------------------------------------------------------------------------------
# Verdicts made elsewhere: a baseline whose rollouts nobody has, such as the published results of a large model.


class OutsideVerdict(Verdict):
    """A line of a file of verdicts. Example: `{"task": "email/7", "score": 1, "components": {"side_effects": 0}}`"""

    task: str
    """The id of the task."""


OutsideVerdicts = dict[str, list[OutsideVerdict]]
"""Name of the baseline -> its verdicts."""


def read_verdicts(files: Mapping[str, str | Path] | None, policies: Iterable[str]) -> OutsideVerdicts:
    """Verdicts by the name of their baseline, from one JSON Lines file each.

    Raises `ConfigError` with file and line for what is not a verdict, for a task that is judged twice, and for a name
    that a policy has.
    """
    require_other_names(files or {}, policies)
    return {name: _read(Path(file)) for name, file in (files or {}).items()}


def require_other_names(verdicts: Iterable[str], policies: Iterable[str]) -> None:
    """Raises `ConfigError` for verdicts with the name of a policy."""
    if same := set(verdicts).intersection(policies):
        raise ConfigError(f"verdicts: {min(same)!r} is the name of a policy, too; give the verdicts another name")


def _read(path: Path) -> list[OutsideVerdict]:
    verdicts: dict[str, OutsideVerdict] = {}
    for value, where in read_json_lines(path):
        try:
            verdict = OutsideVerdict.model_validate(value, strict=True)
        except ValidationError as error:
            wrong = wrong_fields(error, "line")
            raise ConfigError(
                f'verdicts: {where} is not a verdict: {wrong}; write one object a line: {{"task": "<id>", "score": 1}}'
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


def warn_of_unknown(verdicts: OutsideVerdicts, tasks: Iterable[Task]) -> None:
    """A warning for verdicts on none of `tasks`, those of all splits: ids that are spelled otherwise would leave the
    verdicts that happen to fit."""
    known = {task.id for task in tasks}
    for name, given in verdicts.items():
        if strange := [one.task for one in given if one.task not in known]:
            counts = f"{len(strange)} of the {len(given)} verdicts of {name!r} are left out"
            log.warning("%s: no task has the id %r; ids are like %r", counts, strange[0], min(known))


def plain_verdicts(verdicts: OutsideVerdicts) -> dict[str, Any]:
    """As a run's folder keeps them."""
    return {name: [one.model_dump(mode="json", exclude_defaults=True) for one in of] for name, of in verdicts.items()}


def outside_faults(rollouts: Sequence[Rollout], threshold: float) -> dict[str, Fault]:
    """Rollout id -> fault: what went wrong elsewhere is not known."""
    unknown = Fault(kind="unexplained", detail="judged elsewhere: there is no rollout to read")
    return {rollout.id: unknown for rollout in rollouts if not is_success(rollout, threshold)}
