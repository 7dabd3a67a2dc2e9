"""The exact tokens of one conversation, kept as rows, and the ids of its calls."""

from __future__ import annotations

from collections.abc import Sequence

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
        self._ids = CallIds()

    @property
    def rows(self) -> list[TokenRow]:
        """Copies, which later turns do not change."""
        return [row.copied() for row in self._rows]

    def next_prompt(self, new_messages: Sequence[Message]) -> tuple[list[int], bool]:
        """The next prompt's ids, and whether they go on from the last row (otherwise a new row begins)."""
        if self._rows:
            extended = self._renderer.extend(self._prompt, self._completion, new_messages, self._tools)
            if extended is not None:
                said, end = len(self._prompt), len(self._prompt) + len(self._completion)
                if extended[:said] != self._prompt or extended[said:end] != self._completion:
                    raise ModelError(
                        f"renderer {self._renderer.family!r} changed tokens that were already sampled; "
                        "its extend() must keep them or return None"
                    )
                return extended, True
        return self._renderer.start([*self.messages, *new_messages], self._tools), False

    def with_call_ids(self, calls: Sequence[ToolCall], new_messages: Sequence[Message]) -> list[ToolCall]:
        """See `with_call_ids`; `new_messages` are heard and not recorded yet."""
        if not calls:
            return []
        ids = self._ids.copy()
        ids.hear(new_messages)
        return ids.give(calls)

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
        """Take a finished turn: what was heard and said, the prompt sent and the tokens sampled.

        `prompt` is kept as it is: nobody changes it from here on.
        """
        if extends:
            append_tokens(self._rows[-1], prompt[len(self._prompt) + len(self._completion) :])
        else:
            self._rows.append(TokenRow(prompt_ids=list(prompt)))
        append_tokens(self._rows[-1], token_ids, sampled=True, logprobs=logprobs, version=version)
        self._prompt, self._completion = prompt, list(token_ids)
        self.messages += [*new_messages, message]
        self._ids.hear([*new_messages, message])


def with_call_ids(calls: Sequence[ToolCall], earlier: Sequence[Message]) -> list[ToolCall]:
    """The calls with ids that are unique in the conversation: their own where free, else `call_1`, `call_2`, ..."""
    ids = CallIds()
    ids.hear(earlier)
    return ids.give(calls)


class CallIds:
    """The ids of calls that are used in one conversation."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._calls = 0

    def copy(self) -> CallIds:
        twin = CallIds()
        twin._used, twin._calls = self._used.copy(), self._calls
        return twin

    def hear(self, messages: Sequence[Message]) -> None:
        """These ids are used from here on."""
        for message in messages:
            if message.tool_call_id:
                self._used.add(message.tool_call_id)
            if message.tool_calls:
                self._used.update([call.id for call in message.tool_calls])
                self._calls += len(message.tool_calls)

    def give(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """The calls, each with an id that no other has."""
        number = self._calls
        out = []
        for call in calls:
            number += 1
            call_id = call.id
            while not call_id or call_id in self._used:
                call_id = f"call_{number}"
                number += call_id in self._used
            self._used.add(call_id)
            out.append(call if call_id == call.id else call.model_copy(update={"id": call_id}))
        return out
