"""Many rollouts at once: one starts as soon as another ends, and each is scored as soon as it is done. A host plays
them, by default the loop of policy and tools that comes with the library."""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

import anyio
import anyio.abc

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger import Listener
from mcp_bridge.records import ToolResult
from mcp_bridge.world import WorldSource, not_simulated

from ..errors import VerifierError, plain_errors, require_number
from ..policies.protocol import Agent, Conversation, ForkableConversation, Sampling
from ..policies.tool_prompt import with_tool_prompt
from ..records import Failure, Message, Rollout, ToolCall, ToolPrompt
from ..users.played_users import Users
from ..verifiers import VerifierLike, run_verifier
from .branching import Branching
from .episode import AgentHost, Episode, Job, run_episode
from .forks import TurnStart, may_call_again, require_forkable, turn_start
from .limits import Limits


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
            if len(rollout.calls) + len(reply.message.tool_calls) > episode.limits.max_calls:
                episode.end("call_limit")
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


# ---------------------------------------------------------------------------------------------------------------------
# Jobs go in at any time, rollouts come out as they end: one starts as soon as another ends, whatever its group. Fewer
# are in flight while the policy's cache is full or servers give way, more again after.

FULL = 0.9
"""Cache pressure above which fewer rollouts are kept in flight: the policy would soon throw conversations out and
compute them again."""
ROOM = 0.75
"""Cache pressure below which one more is tried."""
_BACK_OFF = 0.75
"""What is left of the limit each time something gives way."""


class AdaptiveConcurrency:
    """Additive increase, multiplicative decrease, as TCP does (Jacobson, SIGCOMM 1988), between 1 and `most`.

    Example: `AdaptiveConcurrency(64, pressure=agent.pressure)`; without `pressure` only failures lower it.
    """

    def __init__(self, most: int, *, pressure: Callable[[], float] | None = None) -> None:
        self.most = most
        self.limit = most
        """In flight at once now."""
        self.lowest = most
        """The lowest that the limit has been."""
        self.decreases = 0
        self._pressure = pressure
        self._exact = float(most)
        self._since_decrease = 0

    def ended(self, *, overloaded: bool = False) -> None:
        """A rollout ended. `overloaded`: something broke that fewer rollouts at once may spare."""
        self._since_decrease += 1
        full = self._pressure() if self._pressure is not None else 0.0
        if overloaded or full > FULL:
            # At most once for each generation of rollouts: those in flight were started under the old limit.
            if self._since_decrease >= self._exact or not self.decreases:
                self._set(self._exact * _BACK_OFF)
                self.decreases += 1
                self._since_decrease = 0
        elif full < ROOM:
            # One more for each generation that ended well.
            self._set(self._exact + 1 / max(1.0, self._exact))

    def _set(self, limit: float) -> None:
        self._exact = min(float(self.most), max(1.0, limit))
        self.limit = int(self._exact)
        self.lowest = min(self.lowest, self.limit)


OnRollout = Callable[[Rollout], None]


class StreamClosed(Exception):
    """The stream ended before these rollouts did."""


@dataclass
class RolloutCounts:
    """What became of every rollout that was begun: `begun = ended + given_up + in flight`."""

    begun: int = 0
    ended: int = 0
    closed: bool = False
    not_begun: int = 0
    """Still waiting when the stream was closed."""
    attempts_again: int = 0
    """Attempts that broke and were made again."""
    branches: int = 0
    branches_replayed: int = 0
    """Of these, those whose world was not forked but made by the calls so far."""
    most_in_flight: int = 0

    @property
    def given_up(self) -> int:
        """Begun, and cut off because the stream was closed or something raised. They are in no batch."""
        return self.begun - self.ended if self.closed else 0


class Ticket:
    """Jobs that were handed in together."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        """Raises `ValueError` where two jobs have one id."""
        self._branches: dict[str, list[str]] = {job.id: [] for job in jobs}
        if len(self._branches) != len(jobs):
            ids = [job.id for job in jobs]
            twice = next(name for name in ids if ids.count(name) > 1)
            raise ValueError(f"two jobs have the id {twice!r}; ids are unique in a run")
        self._rollouts: dict[str, Rollout] = {}
        self._missing = len(jobs)
        self._done = anyio.Event()
        self.error: Exception | None = None
        if not jobs:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._done.is_set()

    async def wait(self) -> list[Rollout]:
        """All rollouts, in the order of the jobs, each followed by its branches.

        Raises what running one of them raised, and `StreamClosed` where the stream ended first.
        """
        if not self.done:  # rollouts that were begun just before must not run first
            await self._done.wait()
        if self.error is not None:
            raise self.error
        order = [one for name, branches in self._branches.items() for one in (name, *branches)]
        return [self._rollouts[name] for name in order]

    def fail(self, error: Exception) -> None:
        """Whoever waits raises `error`. Does nothing where the ticket is done."""
        if not self.done:
            self.error = error
            self._done.set()

    def ended(self, rollout: Rollout, branches: Sequence[Job]) -> None:
        """One of the rollouts is there, and `branches` are still to come."""
        self._rollouts[rollout.id] = rollout
        if branches:
            self._branches[rollout.id] = [branch.id for branch in branches]
        self._missing += len(branches) - 1
        if self._missing == 0:
            self._done.set()


class RolloutStream:
    """Rollouts in flight. Made by `RolloutEngine.stream`; belongs to one event loop."""

    def __init__(
        self,
        engine: RolloutEngine,
        group: anyio.abc.TaskGroup,
        *,
        sampling: Sampling,
        on_rollout: OnRollout | None,
        on_broken: OnRollout | None,
        branching: Branching | None,
        retries: int,
    ) -> None:
        self._engine = engine
        self._group = group
        self._sampling = sampling
        self._on_rollout = on_rollout
        self._on_broken = on_broken
        self._branching = branching
        self._retries = retries
        self._queue: list[tuple[int, int, Job, Ticket]] = []
        self._open: set[Ticket] = set()
        self._uses: Counter[int] = Counter()
        self._kept: dict[int, TurnStart] = {}
        self._handed_in = 0
        self._in_flight = 0
        self._closed = False
        self.counts = RolloutCounts()
        pressure = getattr(engine.agent, "pressure", None)
        self.concurrency = AdaptiveConcurrency(engine.concurrency, pressure=pressure if callable(pressure) else None)

    @property
    def in_flight(self) -> int:
        """Rollouts that have begun and not ended."""
        return self._in_flight

    def submit(self, jobs: Sequence[Job], *, priority: int = 0) -> Ticket:
        """Hand jobs in. Those of a lower `priority` begin first, then those that were handed in first."""
        ticket = Ticket(jobs)
        if self._closed:
            ticket.fail(StreamClosed("the stream is closed; open another with RolloutEngine.stream"))
        else:
            self._open = {one for one in self._open if not one.done} | {ticket}
            self._add(jobs, ticket, priority)
            # One turn of the event loop later: who takes finished rollouts of another ticket now has them before that.
            self._group.start_soon(self._begin_soon)
        return ticket

    def _add(self, jobs: Sequence[Job], ticket: Ticket, priority: int) -> None:
        for job in jobs:
            heapq.heappush(self._queue, (priority, self._handed_in, job, ticket))
            self._handed_in += 1

    async def _begin_soon(self) -> None:
        self._begin_more()

    def _begin_more(self) -> None:
        while self._queue and self._in_flight < self.concurrency.limit and not self._closed:
            priority, _, job, ticket = heapq.heappop(self._queue)
            if ticket.error is not None:
                self.counts.not_begun += 1
                continue
            self._in_flight += 1
            self.counts.begun += 1
            self.counts.most_in_flight = max(self.counts.most_in_flight, self._in_flight)
            self._group.start_soon(self._one, job, ticket, priority)

    async def _one(self, job: Job, ticket: Ticket, priority: int) -> None:
        ended = cut_off = False
        starts: list[TurnStart] | None = [] if self._branching is not None and job.start is None else None
        branches: list[Job] = []
        try:
            rollout = await self._engine.attempt(
                job, self._sampling, starts=starts, retries=self._retries, on_broken=self._broke
            )
            await self._engine.judge(rollout)
            if self._branching is not None and starts:
                branches = self._branching.jobs(job, rollout, starts)
            self.concurrency.ended()
            if self._on_rollout is not None:
                self._on_rollout(rollout)
            ended = True
            ticket.ended(rollout, branches)
        except Exception as error:
            # Whoever waits for the ticket raises it; the other tickets go on.
            ticket.fail(error)
            branches = []
        except BaseException:
            cut_off = True
            raise
        finally:
            self._in_flight -= 1
            self.counts.ended += ended
            unneeded = self._unneeded(job, starts or [], branches)
            if not cut_off:
                self.counts.branches += len(branches)
                self.counts.branches_replayed += sum(one.world_is_replayed for one in branches)
                self._add(branches, ticket, priority)
                self._begin_more()
            for start in unneeded:
                await start.aclose()

    def _unneeded(self, job: Job, starts: Sequence[TurnStart], branches: Sequence[Job]) -> list[TurnStart]:
        """The copies that no branch needs any more, now that `job` has ended."""
        for branch in branches:
            if branch.start is not None:
                self._kept[id(branch.start)] = branch.start
                self._uses[id(branch.start)] += 1
        if job.start is not None:
            self._uses[id(job.start)] -= 1
        free = [one for one in (*starts, job.start) if one is not None and self._uses[id(one)] <= 0]
        for start in free:
            del self._uses[id(start)]
            self._kept.pop(id(start), None)
        return free

    async def let_go(self) -> None:
        """Close the copies of branches that were never begun. Called when nothing is in flight any more."""
        while self._kept:
            await self._kept.popitem()[1].aclose()

    def _broke(self, rollout: Rollout, again: bool) -> None:
        """An attempt broke; `again`: it is made again."""
        self.concurrency.ended(overloaded=True)
        if again:
            self.counts.attempts_again += 1
            if self._on_broken is not None:
                self._on_broken(rollout)

    def close(self) -> None:
        """Begin nothing more; waiting tickets raise `StreamClosed`. What is in flight ends with the task group."""
        self._closed = self.counts.closed = True
        self.counts.not_begun += len(self._queue)
        self._queue = []
        for ticket in self._open:
            ticket.fail(StreamClosed("the stream was closed before all of its rollouts had ended"))
        self._open = set()  # whoever wants their rollouts has the tickets


# ---------------------------------------------------------------------------------------------------------------------


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
        `ToolLoop` does. `users` take the turns of tasks' users. Raises `ConfigError` for a number that cannot be, and
        where the limits name a final tool that `source` has not."""
        require_number("concurrency", concurrency, least=1, whole=True)
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
