"""`evaluate` and `rollout`: a policy and tools, without training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp_bridge import Toolset, connect
from mcp_bridge.guard.destructive import warn_of

from ..errors import ConfigError
from ..policies.opening import ModelSource, check_model_source, model_label, open_agent
from ..policies.protocol import Sampling
from ..progress import Progress, Silent
from ..records import Rollout, Task
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..tasks import load_tasks
from ..traces.digests import tasks_identity, tools_identity
from ..traces.run_folder import RunFolder
from ..verifiers import VerifierLike, check_verifier, verifier_identity
from .measuring import measure
from .report import Report, build_report
from .run_facts import call_facts, guard_facts, run_facts


async def evaluate_async(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    *,
    model: ModelSource = None,
    output_dir: str | Path | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    concurrency: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    success_threshold: float = 1.0,
    progress: Progress | None = None,
) -> Report:
    """Measure a policy on all of `prompts`: one rollout each, greedy unless `temperature` says otherwise.

    `model`: see `sdk.policies.opening.ModelSource`. With `output_dir`, every rollout and the report are kept, and a
    run that was cut off goes on. Raises what `sdk.train` raises, before work is lost.

    Live tools that are destructive are not refused here, as they are in training: the tasks are yours, and each is
    played once. A warning names them.
    """
    check_verifier(verifier)
    check_model_source(model)
    tasks = load_tasks(prompts)
    bounds = _limits(limits)
    progress = progress or Silent()
    async with connect(tools, call_timeout_s=bounds.call_timeout_s) as source:
        warn_of(source.live_destructive)
        # The folder is opened after the tools, which take part in what the run is; bad tools leave none behind.
        identity = {
            "evaluate": model_label(model),
            **_identity(tasks, tools, source, verifier, bounds),
            "temperature": temperature,
            "seed": seed,
        }
        with _opened(output_dir, identity, source) as folder:
            async with open_agent(model, rows=concurrency) as agent:
                engine = RolloutEngine(
                    agent=agent, source=source, verifier=verifier, limits=bounds, concurrency=concurrency
                )
                engine.on_call = folder.append_call if folder is not None else None
                rollouts = await measure(
                    engine,
                    tasks,
                    stage="evaluation",
                    folder=folder,
                    progress=progress,
                    title="evaluation",
                    seed=seed,
                    temperature=temperature,
                    threshold=success_threshold,
                )
            info = folder.info if folder is not None else None
            facts = {"model": agent.name, **run_facts(info, identity), **guard_facts(source), **call_facts(rollouts)}
            report = build_report({agent.name: rollouts}, run=facts, success_threshold=success_threshold)
            if folder is not None:
                report.write(folder.path)
    return report


def _identity(
    tasks: Sequence[Task], tools: Any, source: Toolset, verifier: VerifierLike, limits: Limits
) -> dict[str, Any]:
    return {
        "tasks": tasks_identity(tasks),
        "tools": tools_identity(tools, source.tools),
        "verifier": verifier_identity(verifier),
        "limits": limits.model_dump(),
    }


@contextmanager
def _opened(
    output_dir: str | Path | None, identity: Mapping[str, Any], source: Toolset
) -> Iterator[RunFolder | None]:
    if output_dir is None:
        yield None
        return
    with RunFolder.create_or_resume(Path(output_dir), identity) as folder:
        folder.record_tools(source.tools)
        yield folder


async def rollout_async(
    tools: Any,
    prompt: Any,
    *,
    model: ModelSource = None,
    verifier: VerifierLike | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> Rollout:
    """One conversation, to look at. `prompt`: a string, a mapping or a `Task`. Scored if a verifier is given."""
    if verifier is not None:
        check_verifier(verifier)
    tasks = load_tasks([prompt])
    bounds = _limits(limits)
    async with connect(tools, call_timeout_s=bounds.call_timeout_s) as source:
        warn_of(source.live_destructive)
        async with open_agent(model, rows=1) as agent:
            engine = RolloutEngine(agent=agent, source=source, verifier=verifier, limits=bounds)
            sampling = Sampling(temperature=temperature, max_tokens=bounds.max_turn_tokens)
            job = Job(id=f"rollout/{tasks[0].id}", task=tasks[0], seed=seed)
            return (await engine.run([job], sampling=sampling))[0]


def _limits(limits: Limits | Mapping[str, Any] | None) -> Limits:
    if limits is None or isinstance(limits, Limits):
        return limits or Limits()
    unknown = sorted(set(limits) - set(Limits.model_fields))
    if unknown:
        raise ConfigError(f"there is no limit {unknown[0]!r}; the limits are {', '.join(sorted(Limits.model_fields))}")
    return Limits.model_validate(dict(limits))
