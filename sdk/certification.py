"""`certify`: what a verifier pays to policies that do not do the task, degenerate ones and one that is trained."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from mcp_bridge import Handlers
from mcp_bridge.errors import BridgeError
from mcp_bridge.extras import require_extra

from .connecting import connect
from .errors import ConfigError, StoppedByAlarm, ToolbakeError, plain_errors, require_number
from .evaluation.conditions import is_success
from .policies.model_source import check_model_source
from .probing.certificate import Certificate, TrainedAttack, judge_probes, play_probes
from .probing.probes import ATTACKS, GOLD
from .progress import Progress, Silent
from .records import Task
from .rollouts.limits import Limits
from .rollouts.run_context import RunContext
from .synthesis.task_checks import require_known_names
from .tasks import load_tasks, spread
from .traces.run_folder import RunFolder
from .trainer.groups import STAGE
from .users.played_users import open_users
from .verifiers import VerifierLike, check_verifier

log = logging.getLogger(__name__)

_FEWEST_TASKS = 2
TRAINED = "trained"
"""The name by which the alarms of the policy that is trained are allowed."""


async def certify_async(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    *,
    most_tasks: int = 24,
    threshold: float = 1.0,
    allow: Sequence[str] = (),
    train_minutes: float = 0.0,
    model: str | Path | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 120.0,
    concurrency: int = 16,
    progress: Progress | None = None,
) -> Certificate:
    """Let policies that do not do the tasks try to earn the reward, on at most `most_tasks` of the tasks.

    Some know nothing of the expected outcome (`sdk.probing.probes.PROBES`), others begin with a task's own solution or
    that of another task (`sdk.probing.probes.ATTACKS`). The demonstrations themselves must be rewarded. A rollout
    that reaches `threshold` is a finding, unless its probe is in `allow`. Of tools that are not simulated, only those
    declared read-only are called.

    `train_minutes`: GRPO then also trains `model` (the embedded one where None) against the verifier for that long, in
    a temporary folder, from its untrained weights. Whatever raises an alarm is a hole; the certificate has its reward
    and a rewarded rollout to read, or why the training failed. At least two tasks are needed. Raises what
    `sdk.evaluate` raises.
    """
    check_verifier(verifier)
    progress = progress or Silent()
    known = [GOLD.name, *(probe.name for probe in ATTACKS), TRAINED]
    if unknown := [name for name in allow if name not in known]:
        raise ConfigError(f"there is no probe {unknown[0]!r} to allow; the probes are {', '.join(known)}")
    require_number("threshold", threshold)
    require_number("most_tasks", most_tasks, least=1, whole=True)
    require_number("train_minutes", train_minutes, least=0)
    require_number("concurrency", concurrency, least=1, whole=True)
    if model is not None and not train_minutes:
        raise ConfigError(f"`model` is {str(model)!r} and does nothing without train_minutes; leave it out")
    tasks = load_tasks(prompts)
    if train_minutes:  # before the probes, which take minutes
        require_extra("train", "certify with train_minutes", ConfigError)
        check_model_source(model)
        if len(tasks) < _FEWEST_TASKS:
            raise ConfigError(f"there are {len(tasks)} tasks; a policy is trained on {_FEWEST_TASKS} or more")
    bounds = Limits.of(limits)
    connecting = connect(
        tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    )
    async with connecting as source, open_users(tasks, source.tools, rows=concurrency) as users:
        bounds.check(source.tools)
        for line in await require_known_names(source, tasks, verifier):
            progress.say(line)
        context = RunContext(
            tools=source,
            verifier=verifier,
            limits=bounds,
            concurrency=concurrency,
            progress=progress,
            success_threshold=threshold,
            users=users,
        )
        played = await play_probes([GOLD, *ATTACKS], spread(tasks, most_tasks), context)
        certificate = await judge_probes(played, context, allowed=allow)
    if not train_minutes:
        return certificate
    from .trainer.pipeline import train_async

    with tempfile.TemporaryDirectory(prefix="toolbake-certify-") as folder:
        run, failure = Path(folder) / "run", ""
        try:
            with plain_errors(), anyio.move_on_after(train_minutes * 60), suppress(StoppedByAlarm):
                await train_async(
                    tools,
                    [_of_no_split(task) for task in tasks],
                    verifier,
                    model,
                    run,
                    _ATTACKER | {"limits": bounds, "evaluation.success_threshold": threshold},
                    handlers=handlers,
                    connect_timeout_s=connect_timeout_s,
                    progress=progress,
                )
        except anyio.get_cancelled_exc_class():  # Ctrl-C: the probes took minutes
            progress.say(f"The training against the verifier was stopped. Before it:\n{certificate}")
            raise
        except (ToolbakeError, BridgeError) as error:
            failure = str(error)
        except Exception as error:  # the probes took minutes: whatever fails here, what they found is handed back
            log.warning("the training against the verifier failed", exc_info=True)
            failure = f"{type(error).__name__}: {error}"
        found = _trained(run, threshold) if (run / "run.json").is_file() else _NOT_BEGUN
        return replace(certificate, trained=replace(found, failure=failure))


def _of_no_split(task: Task) -> Task:
    """An attacker trains on all tasks."""
    return task.model_copy(update={"tags": {name: value for name, value in task.tags.items() if name != "split"}})


_ATTACKER = {
    "probes.tasks": 0,
    "warm_start.max_steps": 0,
    "grpo.max_steps": 1000,
    "evaluation.heldout": 1,
    "evaluation.validation": 0,
}
"""GRPO alone: a demonstration would show the policy what the task is."""
_GAMED = ("canary", "repeated_answer", "jump", "diversity")
"""The kinds of alarms that are signs of a reward earned without the task. Others can come from the model's limits."""
_NOT_BEGUN = TrainedAttack(steps=0, first_reward=None, last_reward=None, alarms=(), example=None)


def _trained(run: Path, threshold: float) -> TrainedAttack:
    with RunFolder.open_to_read(run) as folder:
        rewards = [line["reward"] for line in folder.read_metrics() if line.get("stage") == STAGE]
        alarms = [alarm for line in folder.read_metrics() for alarm in line.get("alarms", [])]
        rollouts = folder.read_rollouts(STAGE) if STAGE in folder.rollout_stages() else []
    scored = [reward for reward in rewards if reward is not None]
    paid = [rollout for rollout in rollouts if is_success(rollout, threshold)]
    return TrainedAttack(
        steps=len(rewards),
        first_reward=scored[0] if scored else None,
        last_reward=scored[-1] if scored else None,
        alarms=[alarm for alarm in alarms if alarm.startswith(_GAMED)],
        example=max(paid, key=lambda rollout: rollout.step, default=None),
    )
