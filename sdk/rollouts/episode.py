"""One rollout from the task to its final state: a conversation between an agent and a world.

What the policy did wrong comes back to it as tool messages. What broke around it ends the rollout
with a `Failure`, and leaves it unscored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import anyio

from mcp_bridge.errors import BridgeError, ToolFailure
from mcp_bridge.ledger import Ledger, Listener
from mcp_bridge.records import ToolResult
from mcp_bridge.world import World, WorldSource

from ..errors import PolicyFailure
from ..policies.protocol import Agent, Conversation, ForkableConversation, Reply, Sampling
from ..policies.tool_prompt import shortest
from ..records import CallRecord, Failure, Message, Rollout, StopReason, Task, ToolCall, ToolPrompt
from .forks import ForkFailed, TurnStart, turn_start
from .limits import Limits


@dataclass(frozen=True)
class Job:
    """A rollout to be run. `id` is unique in the run; rollouts of one `group` are compared with each other."""

    id: str
    task: Task
    seed: int
    group: str = ""
    step: int = -1
    tool_prompt: ToolPrompt | None = None
    """How much of the tools the policy is shown; None: as much as it was trained with."""
    start: TurnStart | None = None
    """Where a branch begins; None: at the task's beginning."""

    @property
    def world_is_replayed(self) -> bool:
        """Whether it is a branch whose world is made by the calls so far, and not forked."""
        return self.start is not None and self.start.is_replayed


async def run_episode(
    job: Job,
    *,
    agent: Agent,
    source: WorldSource,
    limits: Limits,
    sampling: Sampling,
    on_call: Listener | None = None,
    world_id: str | None = None,
    keep_starts: list[TurnStart] | None = None,
) -> Rollout:
    """Play one task in a world of its own. Never raises for what can go wrong outside: see `Rollout.failure`.

    `on_call` is called before each call is sent and after it ended, where the world keeps a ledger, as those of a
    connected toolset do. `world_id`: the job's id where not given; another one for each further attempt.
    `keep_starts`: takes a copy of the rollout before each of its turns; the caller closes them.
    """
    rollout = Rollout(
        id=job.id,
        task=job.task,
        policy=agent.name,
        group=job.group or job.task.id,
        seed=job.seed,
        step=job.step,
        tool_prompt=job.tool_prompt or "full",
    )
    started = anyio.current_time()
    try:
        with anyio.move_on_after(limits.max_seconds) as clock:
            async with _opened(job, source, world_id or job.id) as world:
                with _ledger_kept(world, rollout, on_call, job.start):
                    if len(world.tools) != len(source.tools):  # a setup may show fewer
                        rollout.shown_tools = [tool.name for tool in world.tools]
                    episode = _Episode(rollout, world, source, limits, sampling, keep_starts)
                    if job.start is None:
                        rollout.initial_state = await world.state()
                        await episode.play(agent.start(world.tools, sampling=sampling, seed=job.seed))
                    else:
                        await episode.go_on(job.start, job.seed)
                    rollout.final_state = await world.state()
        if clock.cancelled_caught:
            spent = f"not finished after {limits.max_seconds} s; raise max_seconds or lower max_turns and max_tokens"
            rollout.failure = Failure(boundary="policy", kind="time_limit", message=spent)
    except ForkFailed as error:
        rollout.failure = Failure(boundary="world", kind="ForkFailed", message=str(error))
    except ToolFailure as error:
        rollout.failure = Failure(boundary="tools", kind=type(error).__name__, message=str(error))
    except BridgeError as error:
        rollout.failure = Failure(boundary="world", kind=type(error).__name__, message=str(error))
    except PolicyFailure as error:
        rollout.failure = Failure(boundary="policy", kind=type(error).__name__, message=str(error))
    if rollout.failure is not None:
        rollout.stop_reason = "time_limit" if rollout.failure.kind == "time_limit" else "failed"
    rollout.duration_s = anyio.current_time() - started
    return rollout


def _opened(job: Job, source: WorldSource, world_id: str) -> AbstractAsyncContextManager[World]:
    return source.open_world(world_id, job.task.setup) if job.start is None else job.start.world.open(world_id)


@contextlib.contextmanager
def _ledger_kept(world: World, rollout: Rollout, on_call: Listener | None, start: TurnStart | None) -> Iterator[None]:
    """Whatever ends the block, the rollout has the world's ledger; a branch, also that of its past."""
    ledger = getattr(world, "ledger", None)
    if not isinstance(ledger, Ledger):
        yield
        return
    past = start.ledger if start is not None else []
    replayed = len(ledger.lines)
    ledger.listener = on_call
    try:
        yield
    finally:
        rollout.ledger = [*past, *ledger.lines[replayed:]]


class _Episode:
    """The turns of one rollout; writes what happens into the rollout as it happens."""

    def __init__(
        self,
        rollout: Rollout,
        world: World,
        source: WorldSource,
        limits: Limits,
        sampling: Sampling,
        keep_starts: list[TurnStart] | None,
    ) -> None:
        self.rollout = rollout
        self.world = world
        self.source = source
        self.limits = limits
        self.turn_tokens = min(limits.max_turn_tokens, sampling.max_tokens)
        self.keep_starts = keep_starts
        self.most_tokens = 0
        """That the present turn may sample."""

    async def go_on(self, start: TurnStart, seed: int) -> None:
        """Play on from where another rollout was."""
        start.begin(self.rollout)
        assert isinstance(start.conversation, ForkableConversation)
        await self._play(start.conversation.fork(seed=seed), start.incoming, list(start.later_turns))

    async def play(self, conversation: Conversation) -> None:
        """Play from the task's beginning."""
        opening = self.rollout.task.opening()
        self.rollout.messages.extend(opening)
        await self._play(conversation, opening, list(self.rollout.task.later_turns))

    async def _play(self, conversation: Conversation, incoming: Sequence[Message], later_turns: list[str]) -> None:
        """Turns until something ends them; `rollout.messages` hold `incoming` already."""
        rollout = self.rollout
        try:
            while True:
                stop = self._budget_spent()
                if stop:
                    rollout.stop_reason = stop
                    return
                if self.keep_starts is not None:
                    self.keep_starts.append(await self._start_of_turn(conversation, incoming, later_turns))
                reply = await self._reply(conversation, incoming)
                stop = self._heard(reply)
                if stop:
                    rollout.stop_reason = stop
                    return
                if reply.message.tool_calls:
                    incoming = await self._call_all(reply.message.tool_calls)
                elif later_turns:
                    incoming = [Message(role="user", content=later_turns.pop(0))]
                else:
                    rollout.answer = reply.message.content
                    rollout.stop_reason = "answered"
                    return
                rollout.messages.extend(incoming)
        finally:
            rollout.rows = conversation.rows()

    async def _reply(self, conversation: Conversation, incoming: Sequence[Message]) -> Reply:
        left = self.limits.max_tokens - self.rollout.sampled_tokens
        self.most_tokens = min(self.turn_tokens, left)
        with anyio.move_on_after(self.limits.reply_timeout_s):
            return await conversation.reply(incoming, max_tokens=self.most_tokens)
        raise PolicyFailure(
            f"the policy did not reply within {self.limits.reply_timeout_s:g} s; it hangs, or has too many rollouts at "
            "once: lower concurrency, or raise limits.reply_timeout_s"
        )

    async def _start_of_turn(
        self, conversation: Conversation, incoming: Sequence[Message], later_turns: Sequence[str]
    ) -> TurnStart:
        return await turn_start(
            self.rollout,
            conversation,
            self.world,
            self.source,
            incoming=incoming,
            later_turns=later_turns,
            call_timeout_s=self.limits.call_timeout_s,
        )

    def _budget_spent(self) -> StopReason | None:
        if self.rollout.turns >= self.limits.max_turns:
            return "turn_limit"
        if self.rollout.sampled_tokens >= self.limits.max_tokens:
            return "token_limit"
        return None

    def _heard(self, reply: Reply) -> StopReason | None:
        """Note a reply; the reason to stop, if it gives one."""
        if reply.stop_reason == "context":
            return "context_limit"
        self.rollout.turns += 1
        self.rollout.sampled_tokens += reply.sampled_tokens
        self.rollout.prompt_tokens += reply.prompt_tokens
        self.rollout.messages.append(reply.message)
        if reply.tool_prompt is not None:  # an endpoint of a model that was trained with less of its tools
            self.rollout.tool_prompt = shortest(self.rollout.tool_prompt, reply.tool_prompt)
        if reply.stop_reason == "length":
            # One that is cut before its limit had no room left; an endpoint that does not count tells of 0 tokens.
            return "context_limit" if 0 < reply.sampled_tokens < self.most_tokens else "token_limit"
        if len(self.rollout.calls) + len(reply.message.tool_calls) > self.limits.max_calls:
            return "call_limit"
        return None

    async def _call_all(self, calls: Sequence[ToolCall]) -> list[Message]:
        """The calls of one turn, all at once; results in the order of the calls."""
        if len(calls) == 1:
            return [self._answered(calls[0], await self._call(calls[0]))]
        results: list[ToolResult | None] = [None] * len(calls)
        failures: list[BridgeError] = []

        async def one(place: int, call: ToolCall) -> None:
            try:
                results[place] = await self._call(call)
            except BridgeError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            for place, call in enumerate(calls):
                group.start_soon(one, place, call)
        answered = zip(calls, results, strict=True)
        messages = [self._answered(call, result) for call, result in answered if result is not None]
        if failures:
            raise failures[0]
        return messages

    def _answered(self, call: ToolCall, result: ToolResult) -> Message:
        """Note a call that ended. Returns the message for the policy."""
        # Thousands of rollouts with images in them are more than the memory holds, and no trace has them.
        is_more = result.content is not None or result.meta
        read = result.model_copy(update={"content": None, "meta": {}}) if is_more else result
        self.rollout.calls.append(CallRecord(turn=self.rollout.turns, call=call, result=read))
        return Message(role="tool", content=result.text, tool_call_id=call.id, name=call.name)

    async def _call(self, call: ToolCall) -> ToolResult:
        if call.error is not None:  # it could not be read
            return ToolResult(text=call.error, is_error=True, error_kind="invalid_arguments")
        return await self.world.call(
            call.name, call.arguments, call_id=f"{self.rollout.id}/{call.id}", timeout_s=self.limits.call_timeout_s
        )
