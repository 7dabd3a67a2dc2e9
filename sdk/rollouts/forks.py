"""A rollout's state between two turns, kept so that it can go on from there several times, its world with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from mcp_bridge.errors import ServerDied, ToolFailure
from mcp_bridge.ledger import Ledger, LedgerLine
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.world import ForkableWorld, World, WorldCopy, WorldSource

from ..errors import ConfigError
from ..policies.protocol import Conversation, ForkableConversation
from ..records import Message, Rollout

logger = logging.getLogger(__name__)


class ForkFailed(Exception):
    """A world could not be brought to where another one was."""


@dataclass
class ReplayedCopy:
    """For worlds that cannot be forked: a new one, in which the calls so far are made again.

    Only for simulated worlds: see `require_forkable`. Each call must return what it returned before, else
    `ForkFailed` is raised.
    """

    source: WorldSource
    rollout: Rollout
    calls: int
    """How many of the rollout's calls had been made."""
    user_turns: int
    """How many turns its user had had."""
    call_timeout_s: float

    @asynccontextmanager
    async def open(self, world_id: str) -> AsyncIterator[World]:
        """See `WorldCopy.open`. The calls made again have ids of their own and are in no rollout's ledger."""
        async with self.source.open_world(world_id, self.rollout.task.setup) as world:
            by_user = [record for turn in self.rollout.user_turns[: self.user_turns] for record in turn.calls]
            made = sorted([*self.rollout.calls[: self.calls], *by_user], key=lambda record: record.turn)
            for number, record in enumerate(made):
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


def how_worlds_are_copied(source: WorldSource) -> str:
    """What is done for a branch, in words."""
    if getattr(source, "can_fork", False):
        return "are forked"
    return "are opened anew, and the calls so far made again, since not every source can fork its worlds"


def require_forkable(live: Iterable[Tool]) -> None:
    """Raises `ConfigError` where a call that is made again might do something real twice. `live`: `not_simulated`."""
    if names := _changing(live):
        raise ConfigError(
            f"branches need worlds that can be copied, and tool {min(names)!r} is live: its calls would be made "
            "twice. Give sandboxes, or set branches to 0"
        )


def may_call_again(live: Iterable[Tool], rollout: Rollout) -> bool:
    """Whether all that a rollout called, or may have called, can be called once more. `live`: `not_simulated`."""
    names = _changing(live)
    # Also what was asked for and has no result: a world without a ledger does not tell what was under way.
    said = rollout.messages[len(rollout.task.opening()) :]
    asked = {call.name for message in said for call in message.tool_calls if call.error is None}
    called = asked | {line.tool for line in rollout.ledger}
    return not names or (not names & called and rollout.failure is not None and rollout.failure.boundary != "tools")


def _changing(tools: Iterable[Tool]) -> set[str]:
    return {tool.name for tool in tools if tool.annotations.read_only is not True}


@dataclass
class TurnStart:
    """A rollout right before its policy speaks. Holds copies until `aclose`."""

    rollout: Rollout
    turn: int
    """Assistant messages before this one."""
    incoming: list[Message]
    """The next messages for the policy; the rollout's messages have them already."""
    user_turns: int
    """How many turns the task's user had had."""
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
        rollout.user_turns = list(before.user_turns[: self.user_turns])
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
    call_timeout_s: float,
) -> TurnStart:
    """The present moment of a rollout. Its world is forked where `source` declares that it can be, else branches
    make the calls so far again.

    Raises `ConfigError` for a conversation that cannot be copied, and `ToolFailure` where a server broke.
    """
    if not isinstance(conversation, ForkableConversation):
        raise ConfigError(
            f"branches need a policy whose conversations can be copied, and {type(conversation).__name__} cannot; use "
            "sdk.policies.token_agent.TokenAgent, or set branches to 0"
        )
    talk = conversation.fork(seed=rollout.seed)
    replayed = ReplayedCopy(source, rollout, len(rollout.calls), len(rollout.user_turns), call_timeout_s)
    fork = await _forked(world, rollout) if getattr(source, "can_fork", False) else None
    ledger = getattr(world, "ledger", None)
    return TurnStart(
        rollout=rollout,
        turn=rollout.turns,
        incoming=list(incoming),
        user_turns=len(rollout.user_turns),
        conversation=talk,
        world=replayed if fork is None else fork,
        messages=len(rollout.messages),
        calls=len(rollout.calls),
        sampled_tokens=rollout.sampled_tokens,
        prompt_tokens=rollout.prompt_tokens,
        ledger=ledger.lines if isinstance(ledger, Ledger) else [],
    )


async def _forked(world: World, rollout: Rollout) -> WorldCopy | None:
    """A copy of the world as it is now; None where it has none, or where a server refuses the fork, because it holds
    too many worlds, say. Raises `ToolFailure` where the server broke."""
    if not isinstance(world, ForkableWorld):
        return None
    try:
        return await world.fork()
    except ToolFailure as error:
        if isinstance(error, ServerDied) or error.delivery not in ("answered", "refused"):
            raise
        logger.warning("a world of %s is replayed for its branches, since it was not forked: %s", rollout.id, error)
        return None
