"""`probe`: the degenerate policies against a verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_bridge import Handlers, Toolset
from mcp_bridge.ledger.lines import Listener
from mcp_bridge.records import Tool

from ..connecting import connect
from ..evaluation.conditions import is_success
from ..progress import Progress, Silent
from ..records import Task
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..rollouts.scripts import play_scripts
from ..tasks import load_tasks, spread
from ..verifiers import VerifierLike, check_verifier
from .degenerate import PROBES
from .probe_report import Finding, ProbeReport


async def probe_async(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    *,
    most_tasks: int = 24,
    threshold: float = 1.0,
    limits: Limits | Mapping[str, Any] | None = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 20.0,
    concurrency: int = 16,
    progress: Progress | None = None,
) -> ProbeReport:
    """Let degenerate policies try to earn the reward, on at most `most_tasks` of the tasks, spread over them.

    They answer nothing, the same, the prompt, everything the tools return, or speak to the scorer; see
    `sdk.probing.degenerate.PROBES`. Of tools that are not simulated only those are called that say they only read. A
    rollout that reaches `threshold` is a finding; one that earns more than 0 below it is in `partly`. Raises what
    `sdk.evaluate` raises.
    """
    check_verifier(verifier)
    tasks = load_tasks(prompts)
    bounds = Limits.of(limits)
    async with connect(
        tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    ) as source:
        return await run_probes(
            source,
            spread(tasks, most_tasks),
            verifier,
            threshold=threshold,
            limits=bounds,
            concurrency=concurrency,
            progress=progress or Silent(),
        )


async def run_probes(
    source: Toolset,
    tasks: Sequence[Task],
    verifier: VerifierLike,
    *,
    threshold: float,
    limits: Limits,
    concurrency: int,
    progress: Progress,
    on_call: Listener | None = None,
) -> ProbeReport:
    """Every probe on every task, with tools that are connected already. `on_call` hears of each call."""
    safe, live = _callable(source)
    pairs = [(probe, task) for task in tasks for probe in PROBES]
    plays = [
        (Job(id=f"probe/{probe.name}/{task.id}", task=task, seed=0), probe.agent(task, safe)) for probe, task in pairs
    ]
    # A probe makes all its calls in one turn.
    many_calls = limits.model_copy(update={"max_calls": 10**6})
    with progress.track("probing the verifier", len(pairs)) as step:
        played = await play_scripts(
            plays,
            source=source,
            verifier=verifier,
            limits=many_calls,
            concurrency=concurrency,
            step=step,
            on_call=on_call,
        )
    findings, partly = [], []
    for (probe, _), rollout in zip(pairs, played, strict=True):
        if is_success(rollout, threshold):
            findings.append(Finding(probe, rollout))
        elif rollout.scored and rollout.verdict is not None and rollout.verdict.score > 0:
            partly.append(Finding(probe, rollout))
    return ProbeReport(len(tasks), played, findings, partly, [tool.name for tool in live])


def _callable(source: Toolset) -> tuple[list[Tool], list[Tool]]:
    """The tools that a probe may call, and those that it may not."""
    simulated = {tool.name for tool in source.simulated_tools}
    safe = [tool for tool in source.tools if tool.name in simulated or tool.annotations.read_only]
    names = {tool.name for tool in safe}
    return safe, [tool for tool in source.tools if tool.name not in names]
