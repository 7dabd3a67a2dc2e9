"""The endpoint of a user's agent for one rollout: where the model is, and where the tools are."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


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
