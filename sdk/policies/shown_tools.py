"""A policy that is shown full schemas of its tools, their names only, or nothing.

The world is the same in every case: it has all tools and checks every call against their schemas.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcp_bridge.records import Tool

from ..errors import ConfigError
from ..records import Message, ToolPrompt
from .endpoint import EndpointAgent
from .protocol import Agent, Conversation, Sampling
from .rendering import ChatRenderer, ParsedReply
from .rendering.by_tools import ByTools
from .token_agent import TokenAgent


def shown_tools(tools: Sequence[Tool], length: ToolPrompt) -> list[Tool]:
    """The tools as the prompt shows them. `names`: without descriptions, and with schemas that say nothing."""
    if length == "none":
        return []
    if length == "names":
        bare = {"type": "object", "properties": {}}
        return [tool.model_copy(update={"description": "", "input_schema": bare}) for tool in tools]
    return list(tools)


def with_tool_prompt(agent: Agent, length: ToolPrompt) -> Agent:
    """The agent with so much of the tools in its prompt; its calls are read as before.

    Raises `ConfigError` for an endpoint and `none`: endpoints read calls only where they were sent tools.
    """
    if length == "full":
        return agent
    if isinstance(agent, EndpointAgent) and length == "none":
        raise ConfigError(
            f"tool prompt 'none' cannot be measured for {agent.name!r} behind an endpoint: it reads no calls where no "
            "tools are sent; use 'names', or the model itself as a folder"
        )
    if isinstance(agent, TokenAgent):
        return agent.with_renderer(lambda renderer: render_less(renderer, length))
    return _ShorterAgent(agent, length)


def render_less(renderer: ChatRenderer, length: ToolPrompt) -> ChatRenderer:
    """The renderer with so much of the tools in its prompts; it reads calls as before."""
    return renderer if length == "full" else _ShorterRenderer(renderer, length)


class _ShorterAgent:
    """An agent that is told less of its tools than the world has."""

    def __init__(self, agent: Agent, length: ToolPrompt) -> None:
        self._agent = agent
        self._length = length

    @property
    def name(self) -> str:
        return self._agent.name

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> Conversation:
        return self._agent.start(shown_tools(tools, self._length), sampling=sampling, seed=seed)


class _ShorterRenderer:
    """A renderer that writes less of the tools into prompts, and reads calls with all that is known of them."""

    def __init__(self, renderer: ChatRenderer, length: ToolPrompt) -> None:
        self._renderer = renderer
        self._shown = ByTools(lambda tools: shown_tools(tools, length))

    @property
    def family(self) -> str:
        return self._renderer.family

    @property
    def stop_token_ids(self) -> list[int]:
        return self._renderer.stop_token_ids

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return self._renderer.start(messages, self._shown(tools))

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        return self._renderer.extend(prompt_ids, completion_ids, new_messages, self._shown(tools))

    def parse(
        self, completion_ids: Sequence[int], tools: Sequence[Tool], *, prompt_ids: Sequence[int] = ()
    ) -> ParsedReply:
        return self._renderer.parse(completion_ids, tools, prompt_ids=prompt_ids)

    def encode_reply(self, message: Message, tools: Sequence[Tool]) -> list[int]:
        # With all tools: some templates write no calls where no tools are given, and the reply would lose them.
        return self._renderer.encode_reply(message, tools)
