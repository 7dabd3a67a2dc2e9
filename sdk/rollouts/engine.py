"""Many rollouts at once: one starts as soon as another ends, and each is scored as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from mcp_bridge.ledger.lines import Listener
from mcp_bridge.world import WorldSource

from ..errors import VerifierError, plain_errors
from ..policies.protocol import Agent, Sampling
from ..records import Failure, Rollout
from ..verifiers import VerifierLike, run_verifier
from .episode import Job, run_episode
from .limits import Limits

OnRollout = Callable[[Rollout], None]


class RolloutEngine:
    """Runs jobs with one agent, one source of worlds and one verifier.

    At most `concurrency` rollouts are in flight. Sampling and tool calls of different rollouts overlap;
    a slow tool holds up its own rollout only.
    """

    def __init__(
        self,
        *,
        agent: Agent,
        source: WorldSource,
        verifier: VerifierLike | None,
        limits: Limits | None = None,
        concurrency: int = 64,
        verifier_timeout_s: float = 60.0,
        on_call: Listener | None = None,
    ) -> None:
        """`on_call` hears of each tool call before it is sent and after it ended; see `run_episode`."""
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be 1 or more")
        self.agent = agent
        self.source = source
        self.verifier = verifier
        self.limits = limits or Limits()
        self.concurrency = concurrency
        self.verifier_timeout_s = verifier_timeout_s
        self.on_call = on_call

    async def run(
        self, jobs: Sequence[Job], *, sampling: Sampling, on_rollout: OnRollout | None = None
    ) -> list[Rollout]:
        """Run all jobs; the rollouts come back in the order of the jobs, `on_rollout` hears of each as it ends."""
        rollouts: dict[int, Rollout] = {}
        waiting = iter(enumerate(jobs))

        async def worker() -> None:
            for place, job in waiting:
                rollouts[place] = await self._one(job, sampling)
                if on_rollout is not None:
                    on_rollout(rollouts[place])

        with plain_errors():
            async with anyio.create_task_group() as group:
                for _ in range(min(self.concurrency, len(jobs))):
                    group.start_soon(worker)
        return [rollouts[place] for place in range(len(jobs))]

    async def _one(self, job: Job, sampling: Sampling) -> Rollout:
        rollout = await run_episode(
            job,
            agent=self.agent,
            source=self.source,
            limits=self.limits,
            sampling=sampling,
            on_call=self.on_call,
        )
        if self.verifier is not None and rollout.failure is None:
            await self._judge(self.verifier, rollout)
        return rollout

    async def _judge(self, verifier: VerifierLike, rollout: Rollout) -> None:
        try:
            rollout.verdict = await run_verifier(verifier, rollout, timeout_s=self.verifier_timeout_s)
        except VerifierError as error:
            rollout.failure = Failure(boundary="verifier", kind="VerifierError", message=str(error))
