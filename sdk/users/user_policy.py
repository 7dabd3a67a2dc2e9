"""The protocol of whoever takes a user's turns, and the user of a task with later turns, who follows a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from mcp_bridge.records import ToolResult

from ..records import Rollout, ToolCall, UserTurn

CallTool = Callable[[ToolCall], Awaitable[ToolResult]]
"""Calls one of the user's tools in the rollout's world."""


class UserPolicy(Protocol):
    """Takes the user's turns, of many rollouts at once. It keeps nothing between them: all that was said and done is in
    the rollout, so that a branch goes on from any of its turns."""

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:
        """What the user says to the policy's last message; None where it has nothing more to say.

        `call` raises `BridgeError` where something broke. Raises `UserFailure`.
        """


class ScriptedUser:
    """Says a task's later turns, whatever the policy answers."""

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:  # noqa: ARG002
        """See `UserPolicy.turn`."""
        said = len(rollout.user_turns)
        if said >= len(rollout.task.later_turns):
            return None
        return UserTurn(turn=rollout.turns, by="script", said=rollout.task.later_turns[said])
