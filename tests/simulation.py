"""Rollouts without a model: a scripted policy that takes its time and can break, slow tools, and a clock that jumps.

Everything between the two is the real engine. What takes an hour of waiting takes seconds of computing, and comes out
the same each time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import anyio

from mcp_bridge.records import ToolResult
from mcp_bridge.world import Setup, World, WorldSource
from sandboxes.wrapping import WrappedSource, WrappedWorld
from sdk.errors import PolicyFailure
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.scripted import ByteRenderer
from sdk.policies.token_agent import TokenAgent
from sdk.records import Message
from sdk.rollouts import derive_seed

Result = TypeVar("Result")


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nobody but verifiers: where nothing is ready, the clock moves on by as long as it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0
        self._of_others = frozenset(threading.enumerate())
        """Threads that were there before: a verifier that another loop no longer waits for may stay for ever."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)  # only another thread or a socket can go on from here
        if any(thread.name == "verifier" for thread in threading.enumerate() if thread not in self._of_others):
            # It computes, and its limit of time is not to pass before it had any. One that hangs is not waited for.
            ready = super().select(1.0)
            if ready:
                return ready
        self.passed_s += timeout
        return ready


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """For work that waits for timers only. What threads and sockets bring takes no time by this clock."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed_s


def run_virtual(function: Callable[..., Awaitable[Result]], *args: Any) -> Result:
    """`anyio.run` by a clock that jumps: `anyio.sleep(3600)` returns at once, an hour later by `anyio.current_time()`.

    Example: `run_virtual(anyio.sleep, 3600)`
    """
    return anyio.run(function, *args, backend="asyncio", backend_options={"loop_factory": VirtualClockLoop})


_ASSISTANT = 259  # the byte renderer's token that begins an assistant turn

Say = Callable[[int, int], Message]
"""From the number of the turn (0 is the first) and the turn's seed to what the policy says."""


class EngineDown(PolicyFailure):
    """The simulated engine has crashed and was not restarted yet."""


@dataclass(frozen=True)
class Incident:
    """What happens when the policy is asked for the `request`-th time (counted from 0).

    `crash`: it and everything in flight fails, until the engine is up again `restart_s` later. `fail`: this request
    fails, as where memory ran out for it. `hang`: this request never returns.
    """

    request: int
    kind: Literal["crash", "fail", "hang"]
    restart_s: float = 0.0


class SimulatedPolicy:
    """A `Policy` and `WeightPublisher`: `say` after `latency_s`. Equal seeds give equal tokens and log-probabilities.

    `cache_rows`: conversations that fit into its cache; `pressure` is the share of it that is in use.
    """

    context_tokens = 1_000_000

    def __init__(
        self, say: Say, *, latency_s: float = 0.2, cache_rows: int | None = None, incidents: Sequence[Incident] = ()
    ) -> None:
        self._say = say
        self._latency_s = latency_s
        self._cache_rows = cache_rows
        self._incidents = {incident.request: incident for incident in incidents}
        self._renderer = ByteRenderer()
        self._crashed = anyio.Event()
        self._up_again_s = float("-inf")
        self.version = 0
        self.requests = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.crashes = 0

    def pressure(self) -> float:
        """The share of the cache that is in use; 0 where it is not bounded."""
        return self.in_flight / self._cache_rows if self._cache_rows else 0.0

    def publish(self, state: Mapping[str, Any], *, version: int) -> None:
        """Later samples carry `version`."""
        self.version = version

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop_token_ids: Sequence[int] = (),
    ) -> Completion:
        """See `Policy.sample`. Raises `EngineDown` in a crash, and until the engine is up again."""
        incident = self._incidents.get(self.requests)
        self.requests += 1
        if anyio.current_time() < self._up_again_s:
            raise EngineDown(f"the engine is down for another {self._up_again_s - anyio.current_time():.1f} s")
        if incident is not None and incident.kind == "crash":
            self._crash(incident)
        if incident is not None and incident.kind == "fail":
            raise PolicyFailure("the engine has no memory left for this request")
        version, crashed = self.version, self._crashed
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            wait_s = float("inf") if incident is not None and incident.kind == "hang" else self._latency_s
            with anyio.move_on_after(wait_s):
                await crashed.wait()
                raise EngineDown("the engine crashed while this request was in flight")
        finally:
            self.in_flight -= 1
        return self._completion(prompt_ids, seed, sampling, version)

    def _crash(self, incident: Incident) -> None:
        self.crashes += 1
        self._up_again_s = anyio.current_time() + incident.restart_s
        self._crashed.set()
        self._crashed = anyio.Event()
        raise EngineDown("the engine crashed")

    def _completion(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, version: int) -> Completion:
        turn = list(prompt_ids).count(_ASSISTANT) - 1
        ids = self._renderer.encode_reply(self._say(turn, seed), [])
        chance = random.Random(derive_seed(seed, turn, version))
        kept = ids[: sampling.max_tokens]
        logprobs = [-chance.random() for _ in kept]
        return Completion(kept, logprobs, "stop" if len(kept) == len(ids) else "length", version)


def simulated_agent(policy: SimulatedPolicy, name: str = "simulated") -> TokenAgent:
    """An agent that speaks through `policy`, one byte a token."""
    return TokenAgent(policy, ByteRenderer(), name=name)


class SlowTools(WrappedSource):
    """`source`, each call of which takes `latency_s`. Example: `SlowTools(Helpdesk(), latency_s=0.1)`"""

    def __init__(self, source: WorldSource, *, latency_s: float) -> None:
        super().__init__(source)
        self.latency_s = latency_s
        self.calls = 0

    @asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[World]:
        """See `WorldSource.open_world`."""
        async with self.source.open_world(world_id, setup) as world:
            yield _SlowWorld(world, world_id, self)


class _SlowWorld(WrappedWorld):
    def __init__(self, world: World, world_id: str, source: SlowTools) -> None:
        super().__init__(world, world_id)
        self._source = source

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """See `World.call`."""
        self._source.calls += 1
        await anyio.sleep(self._source.latency_s)
        return await self.world.call(name, arguments, call_id=call_id, timeout_s=timeout_s)
