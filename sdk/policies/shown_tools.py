"""A policy that is shown full schemas of its tools, their names only, or nothing.

The world is the same in every case: it has all tools and checks every call against their schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_bridge.records import Tool

from ..errors import ConfigError, ModelError
from ..records import Message, ToolCall, ToolPrompt
from .endpoint import EndpointAgent
from .protocol import Agent, Conversation, Sampling
from .rendering import ChatRenderer, ParsedReply
from .rendering.by_tools import ByTools
from .token_agent import TokenAgent
from .tool_prompt import TOOL_PROMPTS

_TOOL = Tool(
    name="probe_tool",
    description="Probe.",
    input_schema={"type": "object", "properties": {"probe": {"type": "string"}}},
)
_ASK = Message(role="user", content="Ask")
_CALLS = Message(role="assistant", tool_calls=[ToolCall(id="call_1", name=_TOOL.name, arguments={"probe": "value"})])
_RESULT = Message(role="tool", content="Result", tool_call_id="call_1", name=_TOOL.name)


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

    Raises `ConfigError` for an endpoint and `none`: endpoints read calls only where they were sent tools; and
    `ModelError` as `render_less`.
    """
    if length == "full":
        return agent
    if isinstance(agent, EndpointAgent) and length == "none":
        raise _no_calls_read(agent.name)
    if isinstance(agent, TokenAgent):
        return agent.with_renderer(lambda renderer: render_less(renderer, length))
    return _ShorterAgent(agent, length)


def render_less(renderer: ChatRenderer, length: ToolPrompt) -> ChatRenderer:
    """The renderer with so much of the tools in its prompts; it reads calls as before.

    Raises `ModelError` where its template cannot go on after a call without what is left out, which a conversation
    would come upon in its second turn.
    """
    if length == "full":
        return renderer
    shorter = _ShorterRenderer(renderer, length)
    try:
        ids = shorter.start([_ASK], [_TOOL])
        reply = shorter.encode_reply(_CALLS, [_TOOL])
        shorter.extend(ids, reply, [_RESULT], [_TOOL])
        shorter.start([_ASK, _CALLS, _RESULT], [_TOOL])
    except Exception as error:  # templates and renderers can raise anything
        raise ModelError(
            f"tool_prompt {length!r} cannot be used with this model, whose prompts need more of the tools after a "
            f"call: {error}; use another tool_prompt ({_others(length)}) or a chat template that does not need them"
        ) from error
    return shorter


def require_shown(source: Any, lengths: Iterable[ToolPrompt]) -> None:
    """Raises what a policy would come upon later if its prompts showed so much of the tools.

    `source`: a checked `ModelSource`. Of a model by folder or name, and of vLLM's, the tokenizer is loaded where less
    than full schemas are shown, no weights. Raises `ConfigError` and `ModelError` as `with_tool_prompt`, and
    `ModelError` for a tokenizer that cannot be loaded.
    """
    asked = [length for length in dict.fromkeys(lengths) if length != "full"]
    by_vllm = isinstance(source, Mapping) and source.get("engine") == "vllm"
    model = source.get("model") if by_vllm else source
    if isinstance(model, tuple | Mapping) and "none" in asked:
        raise _no_calls_read(str(model[1] if isinstance(model, tuple) else model["model"]))
    if not asked or not (model is None or isinstance(model, str | Path)):
        return
    from .models.loading import load_tokenizer
    from .rendering import make_renderer

    spoken = load_tokenizer(model)
    renderer = make_renderer(spoken.tokenizer, family=spoken.family)
    for length in asked:
        render_less(renderer, length)


def _no_calls_read(name: str) -> ConfigError:
    return ConfigError(
        f"tool prompt 'none' cannot be measured for {name!r} behind an endpoint: it reads no calls where no tools are "
        "sent; use 'names', or the model itself as a folder"
    )


def _others(length: ToolPrompt) -> str:
    return " or ".join(repr(other) for other in TOOL_PROMPTS if other != length)


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
