"""The loop that comes with the library: ask the policy, make its calls, send it the results, until it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.records import ToolResult

from ..policies.protocol import Agent, Conversation, ForkableConversation
from ..records import Message, ToolCall
from .episode import Episode
from .forks import TurnStart, turn_start


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
