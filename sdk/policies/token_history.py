"""The exact tokens of one conversation, kept as rows, and the ids of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_bridge.records import Tool

from ..errors import ModelError
from ..records import Message, TokenRow, ToolCall
from .rendering import ChatRenderer, append_tokens


class TokenHistory:
    """Messages and tokens side by side. Ids are kept as they went in and out; only new messages are rendered."""

    def __init__(self, renderer: ChatRenderer, tools: Sequence[Tool]) -> None:
        self._renderer = renderer
        self._tools = list(tools)
        self.messages: list[Message] = []
        self._rows: list[TokenRow] = []
        self._prompt: list[int] = []
        self._completion: list[int] = []

    @property
    def rows(self) -> list[TokenRow]:
        """Copies, which later turns do not change."""
        return [_copied(row) for row in self._rows]

    def next_prompt(self, new_messages: Sequence[Message]) -> tuple[list[int], bool]:
        """The next prompt's ids, and whether they go on from the last row (otherwise a new row begins)."""
        if self._rows:
            extended = self._renderer.extend(self._prompt, self._completion, new_messages, self._tools)
            if extended is not None:
                history = [*self._prompt, *self._completion]
                if extended[: len(history)] != history:
                    raise ModelError(
                        f"renderer {self._renderer.family!r} changed tokens that were already sampled; "
                        "its extend() must keep them or return None"
                    )
                return extended, True
        return self._renderer.start([*self.messages, *new_messages], self._tools), False

    def record(
        self,
        new_messages: Sequence[Message],
        message: Message,
        prompt: list[int],
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        version: int | Sequence[int],
        extends: bool,
    ) -> None:
        """Take a finished turn: what was heard and said, the prompt sent and the tokens sampled."""
        if extends:
            append_tokens(self._rows[-1], prompt[len(self._prompt) + len(self._completion) :])
        else:
            self._rows.append(TokenRow(prompt_ids=list(prompt)))
        append_tokens(self._rows[-1], token_ids, sampled=True, logprobs=logprobs, version=version)
        self._prompt, self._completion = list(prompt), list(token_ids)
        self.messages += [*new_messages, message]


def _copied(row: TokenRow) -> TokenRow:
    # Not `model_copy(deep=True)`, which looks at every number: five lists of T numbers are copied as lists.
    lists: dict[str, list[Any]] = {name: list(value) for name, value in row}
    return row.model_copy(update=lists)


def with_call_ids(calls: Sequence[ToolCall], earlier: Sequence[Message]) -> list[ToolCall]:
    """The calls with ids that are unique in the conversation: their own where free, else `call_1`, `call_2`, ..."""
    used = {call.id for message in earlier for call in message.tool_calls}
    used |= {message.tool_call_id for message in earlier if message.tool_call_id}
    number = sum(len(message.tool_calls) for message in earlier)
    out = []
    for call in calls:
        number += 1
        call_id = call.id
        while not call_id or call_id in used:
            call_id = f"call_{number}"
            number += call_id in used
        used.add(call_id)
        out.append(call.model_copy(update={"id": call_id}))
    return out
