"""What a renderer is: messages to token ids and back, without ever rendering a history twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mcp_bridge.records import Tool

from ...records import Message, ToolCall


@dataclass(frozen=True)
class ParsedReply:
    """What the policy said. A call that did not parse has `error` set and empty `arguments`.

    The calls' ids are those the model wrote, where its format has them, and empty otherwise: the agent gives ids.
    """

    content: str
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    unparsed: Mapping[int, str] = field(default_factory=dict)
    """The calls that did not parse as they were written, by their place in `tool_calls`."""
    verbatim: str | None = None
    """All that follows the reasoning, calls and what stands beside them as they were written; None where the format
    does not tell, and where there are no calls, so that `content` is all."""


class ChatRenderer(Protocol):
    """Messages to token ids and back for one tokenizer. Text in messages and tools never becomes a control token."""

    @property
    def family(self) -> str:
        """`template`, or the name that `make_renderer(tokenizer, family=...)` takes for this renderer."""
        ...

    @property
    def stop_token_ids(self) -> list[int]:
        """The ids that end the assistant's turn."""
        ...

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The prompt's ids [P], generation prompt included.

        Raises `ModelError` when the template does not take these messages or cannot show tools.
        """
        ...

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        """The next prompt's ids. They begin with `prompt_ids + completion_ids`, whose turn is closed if it was cut.

        None when the template would rewrite what was said before; the caller then starts a new row.
        """
        ...

    def parse(
        self, completion_ids: Sequence[int], tools: Sequence[Tool], *, prompt_ids: Sequence[int] = ()
    ) -> ParsedReply:
        """What the completion says. `prompt_ids` tells whether the prompt had already opened the reasoning."""
        ...

    def encode_reply(self, message: Message, tools: Sequence[Tool]) -> list[int]:
        """The ids a policy would have sampled to say `message`, the token that ends the turn included."""
        ...
