"""One question to a served model, through its OpenAI-compatible endpoint, with real tools attached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ToolbakeError

if TYPE_CHECKING:
    from ..records import Rollout, Task
    from ..rollouts.limits import Limits
    from ..serving import Server
    from ..verifiers import VerifierLike


async def ask_served_model(
    server: Server, tools: Any, task: Task, verifier: VerifierLike, *, limits: Limits
) -> Rollout:
    """The conversation about `task` in a fresh world, as any client of the endpoint would have it.

    Raises `ToolbakeError` where the endpoint or a tool broke.
    """
    from ..connecting import connect
    from ..policies.endpoint import EndpointAgent
    from ..policies.protocol import Sampling
    from ..rollouts.engine import RolloutEngine
    from ..rollouts.episode import Job

    async with connect(tools, call_timeout_s=limits.call_timeout_s) as source:
        async with EndpointAgent(f"{server.url}/v1", server.model_name) as agent:
            engine = RolloutEngine(agent=agent, source=source, verifier=verifier, limits=limits)
            sampling = Sampling(temperature=0.0, max_tokens=limits.max_turn_tokens)
            rollout = (await engine.run([Job(id=f"ask/{task.id}", task=task, seed=0)], sampling=sampling))[0]
    require_no_failure(rollout)
    return rollout


def require_no_failure(rollout: Rollout) -> None:
    """Raises `ToolbakeError` where something around the policy broke."""
    failure = rollout.failure
    if failure is not None:
        raise ToolbakeError(
            f"the rollout failed at the boundary {failure.boundary!r}: {failure.kind}: {failure.message}"
        )
