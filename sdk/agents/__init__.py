"""Agents of the user's own: each of their rollouts has a URL for the model, and one for the world of that rollout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp_bridge.extras import require_extra

from ..errors import ConfigError
from ..records import Rollout
from .agent_endpoint import AgentEndpoint

if TYPE_CHECKING:
    from ..rollouts.episode import AgentHost
    from .agent_programs import AgentProgram, AgentSource

__all__ = [
    "AgentEndpoint",
    "agent_facts",
    "agent_identity",
    "history_breaks",
    "host_of",
    "program_of",
    "require_own_loop",
]


def program_of(agent: AgentSource | None) -> AgentProgram | None:
    """The program of what a user gives, None where it is left to the loop that comes with the library. Raises
    `ConfigError` for what is not an agent, and where the server for it is not installed."""
    if agent is None:
        return None
    require_extra("serve", "agent", ConfigError)
    from .agent_programs import as_program

    return as_program(agent)


@asynccontextmanager
async def host_of(program: AgentProgram | None) -> AsyncIterator[AgentHost | None]:
    """A host of the program while this is open; None for none."""
    if program is None:
        yield None
        return
    from .agent_host import open_host

    async with open_host(program) as host:
        yield host


def require_own_loop(program: AgentProgram | None) -> None:
    """Raises `ConfigError` for branches of rollouts that an agent of the user's plays."""
    if program is not None:
        raise ConfigError(
            "rollouts.branches needs conversations that can be copied between two turns, and those of an agent of your "
            "own cannot; set rollouts.branches to 0, or leave agent out"
        )


def agent_identity(program: AgentProgram | None) -> dict[str, Any]:
    """What a run is known by: another agent is another run."""
    return {} if program is None else {"agent": program.identity}


def history_breaks(rollouts: Iterable[Rollout]) -> int:
    """How often a conversation went on with another history than that which the policy's tokens have: each time a
    further row begins."""
    return sum(max(0, len(rollout.rows) - 1) for rollout in rollouts)


def agent_facts(program: AgentProgram | None, rollouts: Iterable[Rollout]) -> dict[str, Any]:
    """For the report: who played, and how often histories broke."""
    return {} if program is None else {"agent": program.name, "history_breaks": history_breaks(rollouts)}
