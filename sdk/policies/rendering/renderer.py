"""The protocol of a renderer: messages to token ids and back, without ever rendering a history twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mcp_bridge.records import Tool

from ...records import Message, TokenRow, ToolCall

Made = TypeVar("Made")

CALL_OPEN = "<tool_call>"

ASK = Message(role="user", content="Ask")
PROBE_TOOL = Tool(
    name="probe_tool",
    description="Probe.",
    input_schema={"type": "object", "properties": {"probe": {"type": "string"}}},
)
PROBE_CALL = ToolCall(id="call_1", name=PROBE_TOOL.name, arguments={"probe": "value"})
"""What a renderer is tried with, to find out what it does."""


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
    written: Mapping[int, str] = field(default_factory=dict)
    """Those that did, where the format tells."""
    verbatim: str | None = None
    """All that follows the reasoning, calls and what stands beside them as they were written; None where the format
    does not tell, and where there are no calls, so that `content` is all."""

    @property
    def before_calls(self) -> str:
        """The content with the white space between it and the first call, where the format tells."""
        return self.content if self.verbatim is None else self.verbatim.partition(CALL_OPEN)[0]


class ChatRenderer(Protocol):
    """Messages to token ids and back for one tokenizer. Text in messages and tools never becomes a control token."""

    @property
    def family(self) -> str:
        """`template`, or the name that `make_renderer(tokenizer, family=...)` takes for this renderer."""

    @property
    def stop_token_ids(self) -> list[int]:
        """The ids that end the assistant's turn."""

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The prompt's ids [P], generation prompt included.

        Raises `ModelError` when the template does not take these messages or cannot show tools.
        """

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

    def parse(
        self, completion_ids: Sequence[int], tools: Sequence[Tool], *, prompt_ids: Sequence[int] = ()
    ) -> ParsedReply:
        """What the completion says. `prompt_ids` tells whether the prompt had already opened the reasoning."""

    def tagged_text(self, completion_ids: Sequence[int]) -> str | None:
        """The text that `parse` reads as `parse_tagged_reply` does, without the token that ends the turn; None where
        the family writes in another form."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens among it; half a character is U+FFFD."""

    def encode_reply(self, message: Message, tools: Sequence[Tool]) -> list[int]:
        """The ids a policy would have sampled to say `message`, the token that ends the turn included."""


def reasoning_open(renderer: ChatRenderer, prompt_ids: Sequence[int]) -> bool:
    """Whether the prompt has opened the reasoning: then any token after it is reasoning."""
    return renderer.parse(prompt_ids[:1], [], prompt_ids=prompt_ids).reasoning is not None


_MOST_LISTS = 64


class ByTools(Generic[Made]):
    """`make(tools)`, kept for the next time that the same `Tool` objects are given; they are frozen records."""

    def __init__(self, make: Callable[[Sequence[Tool]], Made]) -> None:
        self._make = make
        # The tools are kept too: their ids stay theirs.
        self._kept: dict[tuple[int, ...], tuple[Sequence[Tool], Made]] = {}

    def __call__(self, tools: Sequence[Tool]) -> Made:
        key = tuple(map(id, tools))
        found = self._kept.get(key)
        if found is None:
            while len(self._kept) >= _MOST_LISTS:
                del self._kept[next(iter(self._kept))]
            found = self._kept[key] = (list(tools), self._make(tools))
        return found[1]


def append_tokens(
    row: TokenRow,
    token_ids: Sequence[int],
    *,
    sampled: bool = False,
    logprobs: Sequence[float] | None = None,
    version: int | Sequence[int] = -1,
    allowed: Sequence[bytes] | None = None,
) -> None:
    """Append tokens [T] to the row; those not sampled have log-probability 0.0 and version -1. `version`: of all
    tokens, or of each [T]. `allowed`: see `TokenRow`; None where no grammar bounded them."""
    if allowed is not None or row.allowed:
        row.allowed.extend([None] * (len(row.completion_ids) - len(row.allowed)))
        row.allowed.extend([None] * len(token_ids) if allowed is None else allowed)
    row.completion_ids.extend(token_ids)
    row.sampled.extend([sampled] * len(token_ids))
    row.logprobs.extend(logprobs if logprobs is not None else [0.0] * len(token_ids))
    row.versions.extend([version] * len(token_ids) if isinstance(version, int) else version)
