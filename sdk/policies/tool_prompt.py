"""The tool prompt: how much of its tools a policy's prompt shows, and what a model was trained with.

A model that was trained on its tools should need less of them in its prompt: full schemas, names only, or nothing. The
world is the same in every case: it has all tools and checks every call against their schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from mcp_bridge.records import Tool

from ..errors import ConfigError, ModelError
from ..records import PROMPT_NAMES, Message, Rollout, ToolPrompt
from .endpoint import EndpointAgent
from .protocol import Agent, Conversation, Sampling
from .rendering import ChatRenderer
from .rendering.renderer import ASK, PROBE_CALL, PROBE_TOOL, ByTools
from .token_agent import TokenAgent

TOOL_PROMPTS: tuple[ToolPrompt, ...] = get_args(ToolPrompt)
"""From the longest to the shortest."""

TrainedToolPrompt = ToolPrompt | dict[ToolPrompt, float]
"""What a model is trained with: one of them, or several by their shares."""


def shown_by_default(trained: TrainedToolPrompt | None) -> ToolPrompt:
    """What a model is measured and served with where nobody says otherwise: what it was trained with, of several the
    longest. `full` where that is not known."""
    if isinstance(trained, Mapping):
        return next(length for length in TOOL_PROMPTS if trained.get(length))
    return trained or "full"


def shortest(*lengths: ToolPrompt) -> ToolPrompt:
    """What is left where several each leave something out. Example: `shortest("full", "names") == "names"`"""
    return max(lengths, key=TOOL_PROMPTS.index)


def lengths_of(trained: TrainedToolPrompt) -> tuple[ToolPrompt, ...]:
    """What may be shown in a training, from the longest."""
    return tuple(n for n in TOOL_PROMPTS if n in trained) if isinstance(trained, Mapping) else (trained,)


def describe_trained(trained: TrainedToolPrompt) -> str:
    """For people. Example: `full schemas (50 %) and names only (50 %), measured with full schemas`"""
    if isinstance(trained, Mapping):
        given = [length for length in TOOL_PROMPTS if trained.get(length)]
        shares = " and ".join(f"{PROMPT_NAMES[length]} ({100 * trained[length]:g} %)" for length in given)
        return f"{shares}, measured with {PROMPT_NAMES[given[0]]}"
    return PROMPT_NAMES[trained]


def describe_shown(rollouts: Iterable[Rollout]) -> str:
    """What the prompts of these rollouts showed, for people. Example: `names only`; empty without rollouts."""
    shown = {rollout.tool_prompt for rollout in rollouts}
    return " and ".join(PROMPT_NAMES[length] for length in TOOL_PROMPTS if length in shown)


def as_trained(value: Any) -> TrainedToolPrompt:
    """What a user or a file gives, in the one form that says it: without shares that are 0, and one share alone as its
    word. Raises `ValueError` for what is not a `TrainedToolPrompt`; the text names the choices and the fix."""
    choices = ", ".join(repr(length) for length in TOOL_PROMPTS)
    if not isinstance(value, Mapping):
        if value not in TOOL_PROMPTS:
            raise ValueError(f'give one of {choices}, or shares of several, such as {{"full": 0.5, "names": 0.5}}')
        known: ToolPrompt = value
        return known
    if unknown := [length for length in value if length not in TOOL_PROMPTS]:
        raise ValueError(f"{unknown[0]!r} is not a tool prompt; they are {choices}")
    shares = list(value.values())
    if not all(isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s <= 1 for s in shares):
        raise ValueError("each share must be a number from 0 to 1")
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f'the shares add up to {sum(shares):g}; they must make 1, such as {{"full": 0.5, "names": 0.5}}'
        )
    given: dict[ToolPrompt, float] = {length: float(share) for length, share in value.items() if share}
    return next(iter(given)) if len(given) == 1 else given


_CALLS = Message(role="assistant", tool_calls=[PROBE_CALL])
_RESULT = Message(role="tool", content="Result", tool_call_id=PROBE_CALL.id, name=PROBE_TOOL.name)


_BARE = {"type": "object", "properties": {}}


def shown_tools(tools: Sequence[Tool], length: ToolPrompt) -> list[Tool]:
    """The tools as the prompt shows them. `names`: without descriptions, and with schemas that say nothing."""
    if length == "none":
        return []
    if length == "names":
        return [tool.model_copy(update={"description": "", "input_schema": _BARE}) for tool in tools]
    return list(tools)


def shows_name_alone(tool: Tool) -> bool:
    """Whether a tool is as `names` shows it: then its schema tells nothing of its arguments, not that it has none."""
    return not tool.description and tool.input_schema == _BARE


def with_tool_prompt(agent: Agent, length: ToolPrompt) -> Agent:
    """The agent with so much of the tools in its prompt; its calls are read as before.

    Raises `ConfigError` for an endpoint and `none`: endpoints read calls only where they were sent tools; and
    `ModelError` as `render_less`.
    """
    if length == "full":
        return agent
    if isinstance(agent, EndpointAgent) and length == "none":
        raise no_calls_read(agent.name)
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
    shorter: ChatRenderer = _ShorterRenderer(renderer, length)  # has the rest of it, too
    try:
        ids = shorter.start([ASK], [PROBE_TOOL])
        reply = shorter.encode_reply(_CALLS, [PROBE_TOOL])
        shorter.extend(ids, reply, [_RESULT], [PROBE_TOOL])
        shorter.start([ASK, _CALLS, _RESULT], [PROBE_TOOL])
    except Exception as error:  # templates and renderers can raise anything
        others = " or ".join(repr(other) for other in TOOL_PROMPTS if other != length)
        raise ModelError(
            f"tool_prompt {length!r} cannot be used with this model, whose prompts need more of the tools after a "
            f"call: {error}; use another tool_prompt ({others}) or a chat template that does not need them"
        ) from error
    return shorter


def no_calls_read(name: str) -> ConfigError:
    """An endpoint cannot be shown no tools."""
    return ConfigError(
        f"tool prompt 'none' cannot be measured for {name!r} behind an endpoint: it reads no calls where no tools are "
        "sent; use 'names', or the model itself as a folder"
    )


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

    def __getattr__(self, name: str) -> Any:
        # Replies are written with all tools, too: some templates write no calls where no tools are given.
        return getattr(self._renderer, name)

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
