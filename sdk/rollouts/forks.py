"""A rollout's state between two turns, kept so that it can go on from there several times, its world with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from mcp_bridge.errors import ServerDied, ToolFailure
from mcp_bridge.ledger.lines import Ledger, LedgerLine
from mcp_bridge.records import ToolResult
from mcp_bridge.world import ForkableWorld, World, WorldCopy, WorldSource

from ..errors import ConfigError
from ..policies.protocol import Conversation
from ..records import Message, Rollout
from .forkable import ForkableConversation

logger = logging.getLogger(__name__)


class ForkFailed(Exception):
    """A world could not be brought to where another one was."""


@dataclass
class ReplayedCopy:
    """For worlds that cannot be forked: a new one, in which the calls so far are made again.

    Only for simulated worlds: see `require_forkable`. What each call returns must be what it returned before, else the
    world is another one, and `ForkFailed` says so.
    """

    source: WorldSource
    rollout: Rollout
    calls: int
    """How many of the rollout's calls had been made."""
    call_timeout_s: float

    @asynccontextmanager
    async def open(self, world_id: str) -> AsyncIterator[World]:
        """See `WorldCopy.open`. The calls made again have ids of their own and are in no rollout's ledger."""
        async with self.source.open_world(world_id, self.rollout.task.setup) as world:
            for number, record in enumerate(self.rollout.calls[: self.calls]):
                if record.call.error is not None:
                    continue  # it never reached the world
                result = await world.call(
                    record.call.name,
                    record.call.arguments,
                    call_id=f"{world_id}/again-{number + 1}",
                    timeout_s=self.call_timeout_s,
                )
                _require_same(record.result, result, record.call.name)
            yield world

    async def aclose(self) -> None:
        """Nothing is held."""


def _require_same(before: ToolResult, again: ToolResult, name: str) -> None:
    if (before.text, before.is_error) != (again.text, again.is_error):
        raise ForkFailed(
            f"{name!r} returned {again.text[:80]!r} when its call was made again, and {before.text[:80]!r} before: "
            "this world does not follow from its setup and its calls, so it cannot be forked; set branches to 0"
        )


async def copy_world(world: World, source: WorldSource, rollout: Rollout, *, call_timeout_s: float) -> WorldCopy:
    """`world` as it is now: forked where its source says that its worlds can be, by its calls otherwise.

    Also by its calls where a server refuses the fork, because it holds too many worlds, say. Raises `ToolFailure`
    where the server broke.
    """
    if getattr(source, "can_fork", False) and isinstance(world, ForkableWorld):
        try:
            return await world.fork()
        except ToolFailure as error:
            if isinstance(error, ServerDied) or error.delivery not in ("answered", "refused"):
                raise
            logger.warning("a world of %s is replayed for its branches, since it was not forked: %s", rollout.id, error)
    return ReplayedCopy(source, rollout, len(rollout.calls), call_timeout_s)


def how_worlds_are_copied(source: WorldSource) -> str:
    """What is done for a branch, in words."""
    if getattr(source, "can_fork", False):
        return "are forked"
    return "are opened anew, and the calls so far made again, since not every source can fork its worlds"


def require_forkable(source: WorldSource) -> None:
    """Raises `ConfigError` where making a call again might do something real a second time."""
    if live := _live_tools(source):
        raise ConfigError(
            f"branches need worlds that can be copied, and tool {sorted(live)[0]!r} is live: its calls would be made "
            "twice. Give sandboxes, or set branches to 0"
        )


def may_call_again(source: WorldSource, rollout: Rollout) -> bool:
    """Whether all that a rollout called, or may have called, can be called once more."""
    live = _live_tools(source)
    # Also what was asked for and has no result: a world without a ledger does not tell what was under way.
    said = rollout.messages[len(rollout.task.opening()) :]
    asked = {call.name for message in said for call in message.tool_calls if call.error is None}
    called = asked | {line.tool for line in rollout.ledger}
    return not live or (not live & called and rollout.failure is not None and rollout.failure.boundary != "tools")


def _live_tools(source: WorldSource) -> set[str]:
    """The tools whose calls do something outside their world."""
    if getattr(source, "simulated", False):
        return set()
    simulated = {tool.name for tool in getattr(source, "simulated_tools", ())}
    return {tool.name for tool in source.tools if tool.name not in simulated and tool.annotations.read_only is not True}


@dataclass
class TurnStart:
    """A rollout right before its policy speaks. Holds copies until `aclose`."""

    rollout: Rollout
    turn: int
    """Assistant messages before this one."""
    incoming: list[Message]
    """What the policy hears next; the rollout's messages hold it already."""
    later_turns: list[str]
    conversation: Conversation
    world: WorldCopy
    messages: int
    calls: int
    sampled_tokens: int
    prompt_tokens: int
    ledger: list[LedgerLine] = field(default_factory=list)

    async def aclose(self) -> None:
        """Let go of the world's copy, also in a task that is cancelled."""
        with anyio.CancelScope(shield=True):
            await self.world.aclose()

    @property
    def is_replayed(self) -> bool:
        """Whether the world of a branch is made by its calls, and not forked."""
        return isinstance(self.world, ReplayedCopy)

    def begin(self, rollout: Rollout) -> None:
        """Fill in a branch's past: everything until here is that of the rollout it branches from."""
        before = self.rollout
        rollout.messages = list(before.messages[: self.messages])
        rollout.calls = list(before.calls[: self.calls])
        rollout.shown_tools = before.shown_tools
        rollout.initial_state = before.initial_state
        rollout.turns = self.turn
        rollout.sampled_tokens = self.sampled_tokens
        rollout.prompt_tokens = self.prompt_tokens


async def turn_start(
    rollout: Rollout,
    conversation: Conversation,
    world: World,
    source: WorldSource,
    *,
    incoming: Sequence[Message],
    later_turns: Sequence[str],
    call_timeout_s: float,
) -> TurnStart:
    """The present moment of a rollout. Raises `ConfigError` for a conversation that cannot be copied."""
    if not isinstance(conversation, ForkableConversation):
        raise ConfigError(
            f"branches need a policy whose conversations can be copied, and {type(conversation).__name__} cannot; use "
            "sdk.rollouts.forkable.ForkableAgent, or set branches to 0"
        )
    ledger = getattr(world, "ledger", None)
    return TurnStart(
        rollout=rollout,
        turn=rollout.turns,
        incoming=list(incoming),
        later_turns=list(later_turns),
        conversation=conversation.fork(seed=rollout.seed),
        world=await copy_world(world, source, rollout, call_timeout_s=call_timeout_s),
        messages=len(rollout.messages),
        calls=len(rollout.calls),
        sampled_tokens=rollout.sampled_tokens,
        prompt_tokens=rollout.prompt_tokens,
        ledger=ledger.lines if isinstance(ledger, Ledger) else [],
    )
