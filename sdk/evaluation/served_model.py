"""The measurement of a model as it is served: held-out tasks, asked through the endpoint as a client asks that sets
nothing."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import BaseModel, Field

from ..records import Rollout, Task
from ..rollouts.run_context import RunContext
from .conditions import ConditionSummary, is_success, summarise_condition
from .measurement import measure

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
    pairs = [(one, known[one.task.id]) for one in rollouts if one.task.id in known]
    return ServedSummary(
        like=like,
        condition=summarise_condition(rollouts, threshold=threshold, cluster_by=cluster_by),
        differ=[
            one.task.id
            for one, other in pairs
            if one.scored and other.scored and is_success(one, threshold) != is_success(other, threshold)
        ],
    )
