"""Measurement of a policy: tasks run greedily, one rollout each unless asked otherwise, resumable from a run folder."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ToolbakeError
from ..policies.protocol import Sampling
from ..records import Rollout, Task, ToolPrompt
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.run_context import RunContext
from ..rollouts.seeds import derive_seed
from .conditions import is_success

MEASURED_TEMPERATURE = 0.0
"""Greedy, unless told otherwise. A model that was trained is served so, too."""
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
) -> list[Rollout]:
    """`samples` rollouts for each task, in the order of the tasks. Scored ones that the folder has are not run again.

    `tool_prompt`: how much of the tools the policy is shown; None: as much as it was trained with.

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
    sampling = Sampling(temperature=temperature, max_tokens=engine.limits.max_turn_tokens)
    with progress.track(title or stage, len(jobs), len(jobs) - len(missing)) as step:

        def ended(rollout: Rollout) -> None:
            nonlocal right
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
