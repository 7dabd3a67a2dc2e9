"""A renderer over any chat template, made exact: only new messages are rendered, as a suffix of a probe conversation.

The template is opaque, so what it does is found out once, by rendering probes: which token ends a turn, whether
it shows tools and writes calls in a form that can be read back, and whether later messages change earlier ones.
Rendered texts are kept, but for long ones: the rollouts of a group begin alike, and often call alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from mcp_bridge.records import Tool

from ...errors import ModelError
from ...records import Message, ToolCall
from .call_parsing import CALL_CLOSE, UnreadCall, parse_tagged_reply
from .plain_text import LONG_CHARS, PlainTextCodec
from .renderer import ASK, CALL_OPEN, PROBE_CALL, PROBE_TOOL, ByTools, ParsedReply

_MOST_TEXTS = 1024
_MARKS = (CALL_OPEN, CALL_CLOSE, "<think>", "</think>")
"""What tells calls and reasoning from text; control tokens of some models."""


class TemplateRenderer:
    """Renders with the tokenizer's own chat template; reads calls in `<tool_call>` tags (the Hermes format)."""

    family = "template"

    def __init__(self, tokenizer: Any) -> None:
        """Raises `ModelError` when there is no template, it fails on a plain exchange, or no token ends a turn."""
        self._name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                f"model {self._name!r} has no chat template; use an instruction-tuned model, "
                "or set tokenizer.chat_template (a Jinja template) before"
            )
        self._codec = PlainTextCodec(tokenizer)
        self._tokenizer = tokenizer
        self._specifications = ByTools(
            lambda tools: json.dumps([self._codec.protect(tool.as_openai()) for tool in tools] or None)
        )
        # A template that writes the time renders anew each time.
        most = 0 if "strftime_now" in str(tokenizer.chat_template) else _MOST_TEXTS
        self._applied = lru_cache(maxsize=most)(self._apply)
        # Prompts end as the template does, in one or two ways.
        self._opens_reasoning = lru_cache(maxsize=64)(
            lambda tail: self._codec.decode(tail).rstrip().endswith("<think>")
        )
        self._turn_end, self._turn_end_id = self._find_turn_end()
        eos = getattr(tokenizer, "eos_token_id", None)
        self.stop_token_ids = [self._turn_end_id] + ([eos] if eos not in (None, self._turn_end_id) else [])
        self._tools_problem = self._find_tools_problem()
        self._stable = {"tool": self._keeps_history("tool"), "user": self._keeps_history("user")}

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        if tools and self._tools_problem:
            raise ModelError(self._tools_problem)
        return rendered_history(
            lambda heard: self._codec.encode(self._render(heard, tools, generation_prompt=True)), messages
        )

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        if not all(self._stable.get("tool" if m.role == "tool" else "user") for m in new_messages):
            return None
        suffix = self._suffix(new_messages, tools)
        if suffix is None:
            return None
        closed = bool(completion_ids) and completion_ids[-1] in self.stop_token_ids
        close = [] if closed else [self._turn_end_id]
        return [*prompt_ids, *completion_ids, *close, *self._codec.encode(suffix)]

    def parse(
        self,
        completion_ids: Sequence[int],
        tools: Sequence[Tool],  # noqa: ARG002 - JSON needs no schema to be read; other families do
        *,
        prompt_ids: Sequence[int] = (),
    ) -> ParsedReply:
        text = self.tagged_text(completion_ids)
        return parse_tagged_reply(text, reasoning_open=self._opens_reasoning(tuple(prompt_ids[-8:])))

    def tagged_text(self, completion_ids: Sequence[int]) -> str:
        # A model may end a turn by further tokens, of which its tokenizer does not tell: Qwen2.5 by <|endoftext|>, too.
        last = completion_ids[-1:]
        ends = bool(last) and self._codec.is_control(last[0]) and self._codec.decode(last) not in _MARKS
        return self._codec.decode(completion_ids[:-1] if ends else completion_ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self._codec.decode(ids)

    def encode_reply(self, message: Message, tools: Sequence[Tool]) -> list[int]:
        opening = self._render([ASK], tools, generation_prompt=True)
        whole = self._render([ASK, message], tools)
        if not whole.startswith(opening):
            raise ModelError(
                f"the chat template of {self._name!r} renders an answer otherwise than it prompts for one, so a "
                "demonstration cannot be turned into the tokens a policy would sample; name a family"
            )
        return self._codec.encode(whole[len(opening) : whole.rindex(self._turn_end) + len(self._turn_end)])

    def _suffix(self, new_messages: Sequence[Message], tools: Sequence[Tool], said: str = "Said") -> str | None:
        """The text between the end of an assistant's turn and its next one; None if the template rewrites the turn.

        It is taken from an exchange of our own, whose assistant's turn is what was sampled in the real one.
        """
        results = [(m.tool_call_id or "", m.name or "tool") for m in new_messages if m.role == "tool"]
        calls = [PROBE_CALL.model_copy(update={"id": call_id, "name": name}) for call_id, name in results]
        before = [ASK, Message(role="assistant", content=said, tool_calls=calls)]
        ended = self._render(before, tools)
        if said not in ended or self._turn_end not in ended:
            return None
        ended = ended[: ended.rindex(self._turn_end) + len(self._turn_end)]
        if not ended.startswith(self._render([ASK], tools, generation_prompt=True)):
            return None
        whole = self._render([*before, *new_messages], tools, generation_prompt=True)
        return whole[len(ended) :] if whole.startswith(ended) else None

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation_prompt: bool = False) -> str:
        """The text, as transformers renders it. Stand-ins hold the place of control tokens from messages and tools.

        Raises `ModelError` where the messages do not fit the template.
        """
        plain = json.dumps(protected_messages(self._codec, messages))
        try:
            specifications = self._specifications(tools)
            apply = self._applied if len(plain) + len(specifications) < LONG_CHARS else self._apply
            return apply(plain, specifications, generation_prompt)
        except Exception as error:  # a template can raise anything; all of it tells that the messages do not fit
            roles = [message.role for message in messages]
            raise ModelError(f"the chat template of {self._name!r} fails on roles {roles}: {error}") from error

    def _apply(self, messages: str, tools: str, generation_prompt: bool) -> str:
        """The text of messages and tools that are given as JSON."""
        return str(
            self._tokenizer.apply_chat_template(
                json.loads(messages),
                tools=json.loads(tools),
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
        )

    def _find_turn_end(self) -> tuple[str, int]:
        text = self._render([ASK, Message(role="assistant", content="Said")], [])
        found = self._codec.first_token(text[text.rindex("Said") :]) if "Said" in text else None
        if found is None:
            raise ModelError(
                f"the chat template of {self._name!r} ends an assistant's turn with no control token, so nothing "
                "tells when the model has finished; use another template (tokenizer.chat_template)"
            )
        return found[0], found[1]

    def _find_tools_problem(self) -> str | None:
        """Why this template cannot be used with tools, or None."""
        advice = "use a model trained for tools, or set tokenizer.chat_template to a template that has them"
        if PROBE_TOOL.name not in self._render([ASK], [PROBE_TOOL], generation_prompt=True):
            return f"the chat template of {self._name!r} does not show tools to the model; {advice}"
        try:
            said = self._render([ASK, Message(role="assistant", tool_calls=[PROBE_CALL])], [PROBE_TOOL])
        except ModelError as error:
            return f"{error}; {advice}"
        marker = said.rfind("<tool_call>")
        calls = parse_tagged_reply(said[marker:].split(self._turn_end)[0]).tool_calls if marker >= 0 else []
        if [(call.name, call.arguments) for call in calls] != [(PROBE_CALL.name, PROBE_CALL.arguments)]:
            return (
                f"the chat template of {self._name!r} writes calls in a form that is not read here "
                "(<tool_call> with JSON is); name the model's family: make_renderer(tokenizer, family=...); "
                f"or {advice}"
            )
        return None

    def _keeps_history(self, role: Literal["tool", "user"]) -> bool:
        """Whether a message of this role leaves earlier turns as they were said, reasoning included."""
        message = Message(role=role, content="Next", tool_call_id="call_1", name=PROBE_TOOL.name)
        tools = [] if self._tools_problem else [PROBE_TOOL]
        try:
            return all(
                self._suffix([message], tools, said) is not None
                for said in ("Said", "<think>\nThought\n</think>\n\nSaid")
            )
        except ModelError:  # the template does not take such a message at all; rendering it later says so
            return False


def rendered_history(render: Callable[[Sequence[Message]], list[int]], messages: Sequence[Message]) -> list[int]:
    """What `render` makes of messages. Where it takes arguments as objects only, calls have an empty one then."""
    try:
        return render(messages)
    except Exception:
        plain = [
            message.model_copy(
                update={
                    "tool_calls": [ToolCall(id=c.id, name=c.name, arguments=c.arguments) for c in message.tool_calls]
                }
            )
            if any(isinstance(call, UnreadCall) for call in message.tool_calls)
            else message
            for message in messages
        ]
        if plain == list(messages):
            raise
        return render(plain)


def protected_messages(codec: PlainTextCodec, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates take them (arguments as objects), free of control tokens."""
    out = []
    for message in messages:
        plain = message.as_openai()
        for call, shown in zip(message.tool_calls, plain.get("tool_calls", []), strict=True):
            shown["function"]["arguments"] = (
                call.written if isinstance(call, UnreadCall) else json.loads(shown["function"]["arguments"])
            )
        out.append(codec.protect(plain, keep_markup=message.role == "assistant"))
    return out
