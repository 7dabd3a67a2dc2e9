"""One rollout from the task to its final state: a conversation between an agent and a world.

What the policy did wrong comes back to it as tool messages. What broke around it ends the rollout
with a `Failure`, and leaves it unscored.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import anyio

from mcp_bridge.errors import BridgeError, ToolFailure
from mcp_bridge.ledger.lines import Ledger, Listener
from mcp_bridge.records import ToolResult
from mcp_bridge.world import World, WorldSource

from ..errors import PolicyFailure
from ..policies.protocol import Agent, Conversation, Reply, Sampling
from ..records import CallRecord, Failure, Message, Rollout, StopReason, Task, ToolCall
from .limits import Limits


@dataclass(frozen=True)
class Job:
    """A rollout to be run. `id` is unique in the run; rollouts of one `group` are compared with each other."""

    id: str
    task: Task
    seed: int
    group: str = ""
    step: int = -1


async def run_episode(
    job: Job,
    *,
    agent: Agent,
    source: WorldSource,
    limits: Limits,
    sampling: Sampling,
    on_call: Listener | None = None,
) -> Rollout:
    """Play one task in a world of its own. Never raises for what can go wrong outside: see `Rollout.failure`.

    `on_call` hears of each call before it is sent and after it ended, where the world keeps a ledger, as those of a
    connected toolset do.
    """
    rollout = Rollout(
        id=job.id, task=job.task, policy=agent.name, group=job.group or job.task.id, seed=job.seed, step=job.step
    )
    started = time.monotonic()
    try:
        with anyio.move_on_after(limits.max_seconds) as clock:
            async with source.open_world(job.id, job.task.setup) as world:
                with _ledger_kept(world, rollout, on_call):
                    if len(world.tools) != len(source.tools):  # a setup may show fewer
                        rollout.shown_tools = [tool.name for tool in world.tools]
                    rollout.initial_state = await world.state()
                    episode = _Episode(rollout, world, limits, sampling)
                    await episode.play(agent.start(world.tools, sampling=sampling, seed=job.seed))
                    rollout.final_state = await world.state()
        if clock.cancelled_caught:
            spent = f"not finished after {limits.max_seconds} s; raise max_seconds or lower max_turns and max_tokens"
            rollout.failure = Failure(boundary="policy", kind="time_limit", message=spent)
    except ToolFailure as error:
        rollout.failure = Failure(boundary="tools", kind=type(error).__name__, message=str(error))
    except BridgeError as error:
        rollout.failure = Failure(boundary="world", kind=type(error).__name__, message=str(error))
    except PolicyFailure as error:
        rollout.failure = Failure(boundary="policy", kind=type(error).__name__, message=str(error))
    if rollout.failure is not None:
        rollout.stop_reason = "time_limit" if rollout.failure.kind == "time_limit" else "failed"
    rollout.duration_s = time.monotonic() - started
    return rollout


@contextlib.contextmanager
def _ledger_kept(world: World, rollout: Rollout, on_call: Listener | None) -> Iterator[None]:
    """Whatever ends the block, the rollout has the world's ledger."""
    ledger = getattr(world, "ledger", None)
    if not isinstance(ledger, Ledger):
        yield
        return
    ledger.listener = on_call
    try:
        yield
    finally:
        rollout.ledger = ledger.lines


class _Episode:
    """The turns of one rollout; writes what happens into the rollout as it happens."""

    def __init__(self, rollout: Rollout, world: World, limits: Limits, sampling: Sampling) -> None:
        self.rollout = rollout
        self.world = world
        self.limits = limits
        self.turn_tokens = min(limits.max_turn_tokens, sampling.max_tokens)

    async def play(self, conversation: Conversation) -> None:
        rollout = self.rollout
        incoming: Sequence[Message] = rollout.task.opening()
        later_turns = list(rollout.task.later_turns)
        try:
            while True:
                rollout.messages.extend(incoming)
                stop = self._budget_spent()
                if stop:
                    rollout.stop_reason = stop
                    return
                left = self.limits.max_tokens - rollout.sampled_tokens
                reply = await conversation.reply(incoming, max_tokens=min(self.turn_tokens, left))
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
        finally:
            rollout.rows = conversation.rows()

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
        self.rollout.messages.append(reply.message)
        if reply.stop_reason == "length":
            return "token_limit"
        if len(self.rollout.calls) + len(reply.message.tool_calls) > self.limits.max_calls:
            return "call_limit"
        return None

    async def _call_all(self, calls: Sequence[ToolCall]) -> list[Message]:
        """The calls of one turn, all at once; results in the order of the calls."""
        results: list[ToolResult | None] = [None] * len(calls)
        failures: list[ToolFailure] = []

        async def one(place: int, call: ToolCall) -> None:
            try:
                results[place] = await self._call(call)
            except ToolFailure as error:
                failures.append(error)

        if len(calls) == 1:
            await one(0, calls[0])
        else:
            async with anyio.create_task_group() as group:
                for place, call in enumerate(calls):
                    group.start_soon(one, place, call)
        messages = []
        for call, result in zip(calls, results, strict=True):
            if result is not None:
                self.rollout.calls.append(CallRecord(turn=self.rollout.turns, call=call, result=result))
                messages.append(Message(role="tool", content=result.text, tool_call_id=call.id, name=call.name))
        if failures:
            raise failures[0]
        return messages

    async def _call(self, call: ToolCall) -> ToolResult:
        if call.error is not None:
            return ToolResult(text=call.error, is_error=True, error_kind="invalid_arguments")
        return await self.world.call(
            call.name, call.arguments, call_id=f"{self.rollout.id}/{call.id}", timeout_s=self.limits.call_timeout_s
        )
