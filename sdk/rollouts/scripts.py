"""Scripted conversations side by side, each with an agent of its own: gold solutions, degenerate policies."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from mcp_bridge.ledger.lines import Listener
from mcp_bridge.world import WorldSource

from ..errors import plain_errors
from ..policies.protocol import Agent, Sampling
from ..progress import Step
from ..records import Rollout
from ..verifiers import VerifierLike
from .engine import RolloutEngine
from .episode import Job
from .limits import Limits

_UNLIMITED = 10**9


async def play_scripts(
    plays: Sequence[tuple[Job, Agent]],
    *,
    source: WorldSource,
    verifier: VerifierLike,
    limits: Limits,
    concurrency: int,
    step: Step,
    on_call: Listener | None = None,
) -> list[Rollout]:
    """The rollouts in the order of `plays`, at most `concurrency` at once; `step` advances with each.

    `on_call` hears of each call. No token limit holds: a script is counted in bytes, not in a policy's tokens.
    """
    generous = limits.model_copy(update={"max_turn_tokens": _UNLIMITED, "max_tokens": _UNLIMITED})
    rollouts: dict[int, Rollout] = {}
    limiter = anyio.CapacityLimiter(concurrency)

    async def play(place: int, job: Job, agent: Agent) -> None:
        async with limiter:
            engine = RolloutEngine(
                agent=agent, source=source, verifier=verifier, limits=generous, concurrency=1, on_call=on_call
            )
            rollouts[place] = (await engine.run([job], sampling=Sampling(temperature=0.0, max_tokens=_UNLIMITED)))[0]
            step.advance()

    with plain_errors():
        async with anyio.create_task_group() as group:
            for place, (job, agent) in enumerate(plays):
                group.start_soon(play, place, job, agent)
    return [rollouts[place] for place in range(len(plays))]
