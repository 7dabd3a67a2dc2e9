"""A renderer of the `renderers` library, written by hand for a model family, behind our protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_bridge.records import Tool

from ...errors import ModelError
from ...records import Message, ToolCall
from .call_parsing import check_arguments, read_arguments
from .plain_text import PlainTextCodec
from .renderer import ASK, ByTools, ParsedReply
from .template import protected_messages, rendered_history

_PROBLEMS = {
    "invalid_json": "the call is not valid JSON",
    "unclosed_block": "the call is not closed",
    "missing_name": "the call has no name",
    "malformed_structure": "the call is not in the model's own form",
}


class LibraryRenderer:
    """One of the library's hand-written renderers, with text kept from becoming control tokens."""

    def __init__(self, tokenizer: Any, family: str, name: str = "") -> None:
        """`name`: of the model on the hub, where it is known; some families have sizes with another prompt.

        Raises `ModelError` where the family's renderer does not fit the tokenizer.
        """
        from renderers import config_from_name, create_renderer

        self.family = family
        self._codec = PlainTextCodec(tokenizer)
        self._tools = ByTools(lambda tools: [self._codec.protect(tool.as_openai()) for tool in tools] or None)

        def called(known_as: str) -> Any:
            return create_renderer(_ProtectingTokenizer(tokenizer, self._codec, known_as), config_from_name(family))

        def prompt_of(renderer: Any) -> list[int]:
            return list(renderer.render_ids(protected_messages(self._codec, [ASK]), add_generation_prompt=True))

        try:
            self._renderer = called(name or getattr(tokenizer, "name_or_path", ""))
        except (ValueError, AssertionError, TypeError) as error:
            raise ModelError(f"renderer {family!r} does not fit this tokenizer: {error}") from error
        self.stop_token_ids = list(self._renderer.get_stop_token_ids())
        if name and prompt_of(self._renderer) != prompt_of(called("")):
            self.family = name  # a saved folder has no name that tells

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return rendered_history(lambda heard: self._render(heard, tools, generation_prompt=True), messages)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        bridged = self._renderer.bridge_to_next_turn(
            list(prompt_ids),
            list(completion_ids),
            protected_messages(self._codec, new_messages),
            tools=self._tools(tools),
        )
        if bridged is None:
            return None
        history = [*prompt_ids, *completion_ids]
        ids = list(bridged.token_ids)
        return ids if ids[: len(history)] == history else None

    def parse(
        self, completion_ids: Sequence[int], tools: Sequence[Tool], *, prompt_ids: Sequence[int] = ()
    ) -> ParsedReply:
        specifications = [tool.as_openai()["function"] for tool in tools] or None
        parsed = self._renderer.parse_response(
            list(completion_ids), tools=specifications, prompt_ids=list(prompt_ids) or None
        )
        calls = [_tool_call(call) for call in parsed.tool_calls]
        reasoning = parsed.reasoning_content
        return ParsedReply(
            # White space around both is the template's. The library cuts it off from some replies and not from others.
            content=parsed.content.strip(),
            reasoning=reasoning if reasoning is None else reasoning.strip(),
            tool_calls=calls,
            unparsed={
                place: written.raw.strip()
                for place, (call, written) in enumerate(zip(calls, parsed.tool_calls, strict=True))
                if call.error is not None
            },
        )

    def tagged_text(self, completion_ids: Sequence[int]) -> None:  # noqa: ARG002 - each family has a form of its own
        return None

    def decode(self, ids: Sequence[int]) -> str:
        return self._codec.decode(ids)

    def encode_reply(self, message: Message, tools: Sequence[Tool]) -> list[int]:
        opening = self._render([ASK], tools, generation_prompt=True)
        ids = self._encoded(message, tools, opening)
        if not ids or ids[-1] not in self.stop_token_ids:
            raise ModelError(f"renderer {self.family!r} writes replies without the token that ends them")
        read = self.parse(ids, tools, prompt_ids=opening)
        # Some templates leave out what is said beside calls; how values are written may need the tools' schemas.
        as_said = read.content == message.content.strip() or (bool(message.tool_calls) and not read.content)
        wanted, found = ([(call.name, set(call.arguments)) for call in m.tool_calls] for m in (message, read))
        if any(call.error for call in message.tool_calls) or (as_said and wanted == found):
            return ids
        raise ModelError(
            f"renderer {self.family!r} writes a reply of {_shown(message)} that is not read as one; replies of its "
            "model cannot be written for it"
        )

    def _encoded(self, message: Message, tools: Sequence[Tool], opening: list[int]) -> list[int]:
        try:
            whole = self._renderer.render(protected_messages(self._codec, [ASK, message]), tools=self._tools(tools))
        except Exception as error:  # as in `_render`
            raise ModelError(f"renderer {self.family!r} fails on {_shown(message)}: {error}") from error
        ids = list(whole.token_ids)
        if ids[: len(opening)] == opening:
            ends = [i for i, token in enumerate(ids) if token in self.stop_token_ids and i >= len(opening)]
            if ends:
                return ids[len(opening) : ends[-1] + 1]
        if len(whole.sampled_mask) != len(ids):
            raise ModelError(f"renderer {self.family!r} does not tell which tokens of an answer the model samples")
        return [
            t
            for t, sampled, i in zip(ids, whole.sampled_mask, whole.message_indices, strict=True)
            if sampled and i == 1
        ]

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation_prompt: bool) -> list[int]:
        try:
            return list(
                self._renderer.render_ids(
                    protected_messages(self._codec, messages),
                    tools=self._tools(tools),
                    add_generation_prompt=generation_prompt,
                )
            )
        except Exception as error:  # each family refuses in its own way what its model was not trained on
            roles = [message.role for message in messages]
            raise ModelError(f"renderer {self.family!r} fails on roles {roles}: {error}") from error


def _shown(message: Message) -> str:
    calls = len(message.tool_calls)
    return "text" if not calls else "one call" if calls == 1 else f"{calls} calls"


class _ProtectingTokenizer:
    """A tokenizer that encodes protected text as plain text; everything else is the wrapped one's.

    It has no `__call__`: character offsets would be those of the stand-ins. The library then leaves out what needs
    them (`is_content`) and its ids are the same.
    """

    def __init__(self, tokenizer: Any, codec: PlainTextCodec, name: str) -> None:
        self._tokenizer = tokenizer
        self._codec = codec
        self.name_or_path = name

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._codec.encode(text)

    def decode(self, ids: Any, **options: Any) -> str:
        return str(self._tokenizer.decode(ids, **options))

    def __getattr__(self, name: str) -> Any:
        if name == "__call__":
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


def _tool_call(parsed: Any) -> ToolCall:
    status = str(parsed.status)
    name = parsed.name or ""
    call_id = parsed.id or ""
    if status in _PROBLEMS:
        return ToolCall(id=call_id, name=name, error=f"{_PROBLEMS[status]}: {parsed.raw.strip()[:120]}")
    # `unknown_tool` is not an error of form: whoever runs the call answers it with the tools there are.
    if isinstance(parsed.arguments, str):
        arguments, error = read_arguments(parsed.arguments)
    else:
        arguments, error = check_arguments(parsed.arguments if parsed.arguments is not None else {})
    return ToolCall(id=call_id, name=name, arguments=arguments, error=error)
