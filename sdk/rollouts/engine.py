"""Many rollouts at once: one starts as soon as another ends, and each is scored as soon as it is done. A host plays
them, by default the loop of policy and tools that comes with the library."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger import Listener
from mcp_bridge.records import ToolResult
from mcp_bridge.world import WorldSource, not_simulated

from ..errors import VerifierError, plain_errors
from ..policies.protocol import Agent, Conversation, ForkableConversation, Sampling
from ..policies.tool_prompt import with_tool_prompt
from ..records import Failure, Message, Rollout, ToolCall, ToolPrompt
from ..users.played_users import Users
from ..verifiers import VerifierLike, run_verifier
from .branching import Branching
from .episode import AgentHost, Episode, Job, run_episode
from .forks import TurnStart, may_call_again, require_forkable, turn_start
from .limits import Limits
from .stream import OnRollout, RolloutCounts, RolloutStream


class ToolLoop:
    """One agent among others. An `AgentHost`, and the only one that can play branches."""

    boundary: Literal["policy", "agent"] = "policy"

    def __init__(self, keep_starts: list[TurnStart] | None = None) -> None:
        """`keep_starts`: takes a copy of the rollout before each of its turns; the caller closes them."""
        self._keep_starts = keep_starts

    async def play(self, episode: Episode, agent: Agent) -> None:
        """See `AgentHost.play`."""
        rollout, start = episode.rollout, episode.start
        if start is None:
            conversation = agent.start(episode.tools, sampling=episode.sampling, seed=rollout.seed)
            incoming = rollout.task.opening()
            rollout.messages.extend(incoming)
        else:
            start.begin(rollout)
            assert isinstance(start.conversation, ForkableConversation)
            conversation = start.conversation.fork(seed=rollout.seed)
            incoming = start.incoming
        while not episode.is_spent():
            if self._keep_starts is not None:
                self._keep_starts.append(await _start_of_turn(episode, conversation, incoming))
            reply = await episode.ask(conversation, incoming)
            if reply is None or episode.over.is_set():
                return
            if reply.message.tool_calls:
                incoming = await _call_all(episode, reply.message.tool_calls)
                rollout.messages.extend(incoming)
            else:
                said = await episode.users_turn()
                if not isinstance(said, Message):
                    episode.end(said, reply.message.content if said == "answered" else "")
                    return
                incoming = [said]


async def _start_of_turn(episode: Episode, conversation: Conversation, incoming: Sequence[Message]) -> TurnStart:
    return await turn_start(
        episode.rollout,
        conversation,
        episode.world,
        episode.source,
        incoming=incoming,
        call_timeout_s=episode.limits.call_timeout_s,
    )


async def _call_all(episode: Episode, calls: Sequence[ToolCall]) -> list[Message]:
    """The calls of one turn, all at once; results in the order of the calls."""
    results: list[ToolResult | None] = [None] * len(calls)
    failures: list[BridgeError] = []

    async def one(place: int, call: ToolCall) -> None:
        try:
            results[place] = await episode.call(call)
        except BridgeError as error:
            failures.append(error)

    if len(calls) == 1:
        await one(0, calls[0])
    else:
        async with anyio.create_task_group() as group:
            for place, call in enumerate(calls):
                group.start_soon(one, place, call)
    answered = zip(calls, results, strict=True)
    messages = [episode.answered(call, result) for call, result in answered if result is not None]
    if failures:
        raise failures[0]
    return messages


class RolloutEngine:
    """Runs jobs with one agent, one source of worlds and one verifier.

    At most `concurrency` rollouts are in flight, fewer while the policy's cache is full or servers give way (see
    `AdaptiveConcurrency`). Sampling and tool calls of different rollouts overlap; a slow tool holds up its own rollout
    only.
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
        host: AgentHost | None = None,
        users: Users | None = None,
    ) -> None:
        """`on_call` is called before each tool call is sent and after it ended, see `run_episode`. `host` plays; None:
        `ToolLoop` does. `users` take the turns of tasks' users. Raises `ConfigError` where the limits name a final
        tool that `source` has not."""
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be 1 or more")
        self.agent = agent
        self.source = source
        self.verifier = verifier
        self.limits = limits or Limits()
        self.limits.check(source.tools)
        self.concurrency = concurrency
        self.verifier_timeout_s = verifier_timeout_s
        self.on_call = on_call
        self.host = host
        self.users = users or Users()
        self._agents: dict[ToolPrompt, Agent] = {}
        self.counts = RolloutCounts()
        """Of the stream that was opened last."""

    async def run(
        self,
        jobs: Sequence[Job],
        *,
        sampling: Sampling,
        on_rollout: OnRollout | None = None,
        branching: Branching | None = None,
    ) -> list[Rollout]:
        """Run all jobs; the rollouts come back in the order of the jobs, each followed by its branches.

        `on_rollout` is called with each as it ends. Raises `ConfigError` where branches are asked for and cannot be.
        """
        async with self.stream(sampling=sampling, on_rollout=on_rollout, branching=branching) as stream:
            return await stream.submit(jobs).wait()

    @asynccontextmanager
    async def stream(
        self,
        *,
        sampling: Sampling,
        on_rollout: OnRollout | None = None,
        on_broken: OnRollout | None = None,
        branching: Branching | None = None,
        retries: int = 0,
    ) -> AsyncIterator[RolloutStream]:
        """Rollouts that go on while others are handed in. What is in flight when the block ends is given up.

        `retries`: how often a rollout is played again, in a new world, after something around it broke: the engine, a
        server, the time. Not where a live tool was called, which would then happen twice. A verifier that fails leaves
        its rollout unscored. `on_broken` is called with attempts that broke and are made again.
        """
        if retries < 0:
            raise ValueError(f"retries is {retries}; it must be 0 or more")
        if branching is not None:
            require_forkable(not_simulated(self.source))
        with plain_errors():
            async with contextlib.AsyncExitStack() as copies, anyio.create_task_group() as group:
                stream = RolloutStream(
                    self,
                    group,
                    sampling=sampling,
                    on_rollout=on_rollout,
                    on_broken=on_broken,
                    branching=branching,
                    retries=retries,
                )
                self.counts = stream.counts
                copies.push_async_callback(stream.let_go)
                try:
                    yield stream
                finally:
                    stream.close()
                    group.cancel_scope.cancel()

    async def attempt(
        self,
        job: Job,
        sampling: Sampling,
        *,
        starts: list[TurnStart] | None = None,
        retries: int = 0,
        on_broken: Callable[[Rollout, bool], None] | None = None,
    ) -> Rollout:
        """One rollout, played and not scored yet: see `judge`.

        `on_broken` hears of each attempt that broke, and whether it is made again. `starts`: takes a copy of the
        rollout before each turn.
        """
        job, agent = self._shown(job)
        for number in range(retries + 1):
            rollout = await run_episode(
                job,
                agent=agent,
                source=self.source,
                limits=self.limits,
                sampling=sampling,
                on_call=self.on_call,
                world_id=f"{job.id}!{number}" if number else None,
                host=self.host or ToolLoop(starts),
                users=self.users,
            )
            if rollout.failure is None:
                break
            again = number < retries and may_call_again(not_simulated(self.source), rollout)
            if on_broken is not None:
                on_broken(rollout, again)
            if not again:
                break
            while starts:
                await starts.pop().aclose()
        return rollout

    def _shown(self, job: Job) -> tuple[Job, Agent]:
        """The job with its tool prompt, and the agent that is shown so much. Raises `ConfigError`, see
        `with_tool_prompt`."""
        own: ToolPrompt = getattr(self.agent, "tool_prompt", "full")
        length = job.tool_prompt or own
        if length not in self._agents:  # one for each, so that what is rendered of the tools is rendered once
            self._agents[length] = with_tool_prompt(self.agent, length)
        return job if job.tool_prompt == length else replace(job, tool_prompt=length), self._agents[length]

    async def judge(self, rollout: Rollout) -> None:
        """The verdict, noted in the rollout. What broke has none, nor has what a verifier fails on, nor one whose user
        did not keep to its part: see its failure."""
        if rollout.failure is not None:
            return
        try:
            rollout.failure = await self.users.judged(rollout)
            if self.verifier is not None and rollout.failure is None:
                rollout.verdict = await run_verifier(self.verifier, rollout, self.verifier_timeout_s)
        except VerifierError as error:
            rollout.failure = Failure(boundary="verifier", kind="VerifierError", message=str(error))
