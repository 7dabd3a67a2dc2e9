"""The endpoint that an agent gets for one rollout: where its model is, and where its world."""

from __future__ import annotations

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
        """The same as environment variables, for a command."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "MCP_URL": self.mcp_url,
            "MCP_API_KEY": self.api_key,
        }
