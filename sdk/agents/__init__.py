"""Agents of the user's own: each of their rollouts has a URL for the model, and one for the world of that rollout."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_bridge.extras import require_extra

from ..errors import ConfigError
from ..records import Rollout

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


@dataclass(frozen=True)
class AgentEndpoint:
    """What an agent needs for one rollout. Both URLs are on this machine, and end with the rollout.

    Example::

        async def agent(task, endpoint):
            client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
            reply = await client.chat.completions.create(model=endpoint.model, messages=[...])
            return reply.choices[0].message.content
    """

    base_url: str
    """Of OpenAI's API, such as `http://127.0.0.1:40123/v1`."""
    api_key: str = field(repr=False)
    """The rollout's own, for both URLs."""
    model: str
    """The name to ask for."""
    mcp_url: str
    """Of the tools, over streamable HTTP: all calls with this key meet this rollout's world."""

    @property
    def mcp_headers(self) -> dict[str, str]:
        """What MCP clients must send."""
        return {"Authorization": f"Bearer {self.api_key}"}

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables, for a command, which asks no proxy for this machine."""
        past_proxies = _past_proxies()
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "MCP_URL": self.mcp_url,
            "MCP_API_KEY": self.api_key,
            "NO_PROXY": past_proxies,
            "no_proxy": past_proxies,
        }


def _past_proxies() -> str:
    """The hosts that are reached without a proxy: those that are set, and this machine."""
    named = ",".join(os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    hosts = dict.fromkeys(host.strip() for host in [*named, "127.0.0.1", "localhost"] if host.strip())
    return "*" if "*" in hosts else ",".join(hosts)  # which has a meaning only alone


def program_of(agent: AgentSource | None) -> AgentProgram | None:
    """The program of what a user gives, None where it is left to the loop that comes with the library. Raises
    `ConfigError` for what is no agent, and where the server for it is not installed."""
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
