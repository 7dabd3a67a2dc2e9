"""A renderer over any chat template, made exact: only new messages are rendered, as a suffix of a probe conversation.

The template is opaque, so what it does is found out once, by rendering probes: which token ends a turn, whether
it shows tools and writes calls in a form that can be read back, and whether later messages change earlier ones.
A conversation of a form that was rendered before is filled into what was rendered then (see `sealed_text`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from mcp_bridge.records import Tool

from ...errors import ModelError
from ...records import Message, ToolCall
from .calls import parse_tagged_reply
from .plain_text import PlainTextCodec
from .protocol import ParsedReply
from .template_text import Shell, TemplateText

_ASK = Message(role="user", content="Ask")
_NOTHING = Shell()
_MOST_SHELLS = 1024
_CALL = ToolCall(id="call_1", name="probe_tool", arguments={"probe": "value"})
_TOOL = Tool(
    name="probe_tool",
    description="Probe.",
    input_schema={"type": "object", "properties": {"probe": {"type": "string"}}},
)


class TemplateRenderer:
    """Renders with the tokenizer's own chat template; reads calls in `<tool_call>` tags (the Hermes format)."""

    family = "template"

    def __init__(self, tokenizer: Any, *, options: Mapping[str, Any] | None = None) -> None:
        """`options`: variables of the template, for example `{"enable_thinking": False}`.

        Raises `ModelError` when there is no template, it fails on a plain exchange, or no token ends a turn.
        """
        self._name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                f"model {self._name!r} has no chat template; use an instruction-tuned model, "
                "or set tokenizer.chat_template (a Jinja template) before"
            )
        self._codec = PlainTextCodec(tokenizer)
        self._texts = TemplateText(tokenizer, self._codec, self._name, dict(options or {}))
        self._shells: dict[Hashable, Shell] = {}
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
        text = self._texts.behind(_NOTHING, messages, tools)
        assert text is not None
        return self._codec.encode(text, keep=True)

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
        ends = bool(completion_ids) and completion_ids[-1] in self.stop_token_ids
        ids = completion_ids[:-1] if ends else completion_ids
        return parse_tagged_reply(self._codec.decode(ids), reasoning_open=self._opens_reasoning(tuple(prompt_ids[-8:])))

    def encode_reply(self, message: Message, tools: Sequence[Tool]) -> list[int]:
        opening = self._texts.full([_ASK], tools, generation_prompt=True)
        whole = self._texts.full([_ASK, message], tools)
        if not whole.startswith(opening):
            raise ModelError(
                f"the chat template of {self._name!r} renders an answer otherwise than it prompts for one, so a "
                "demonstration cannot be turned into the tokens a policy would sample; set its options (for example "
                '{"enable_thinking": False}) or name a family'
            )
        return self._codec.encode(whole[len(opening) : whole.rindex(self._turn_end) + len(self._turn_end)])

    def _suffix(self, new_messages: Sequence[Message], tools: Sequence[Tool], said: str = "Said") -> str | None:
        """The text between the end of an assistant's turn and its next one; None if the template rewrites the turn."""
        results = tuple((m.tool_call_id or "", m.name or "tool") for m in new_messages if m.role == "tool")
        form = (results, said, self._texts.form_of(tools))
        known = self._shells.get(form)
        found = None if known is None else self._texts.behind(known, new_messages, tools)
        if found is not None:
            return found
        # A shell does not stand for ever: a template may write the date into it.
        shell = self._shell(results, said, tools, form)
        if shell is None or shell == known:
            return None
        while len(self._shells) >= _MOST_SHELLS:
            del self._shells[next(iter(self._shells))]
        self._shells[form] = shell
        return self._texts.behind(shell, new_messages, tools)

    def _shell(
        self, results: Sequence[tuple[str, str]], said: str, tools: Sequence[Tool], form: Hashable
    ) -> Shell | None:
        """An exchange whose assistant's turn, the shell's text, is what was sampled in the real one."""
        calls = [_CALL.model_copy(update={"id": call_id, "name": name}) for call_id, name in results]
        before = (_ASK, Message(role="assistant", content=said, tool_calls=calls))
        ended = self._texts.full(before, tools)
        if said not in ended or self._turn_end not in ended:
            return None
        ended = ended[: ended.rindex(self._turn_end) + len(self._turn_end)]
        if not ended.startswith(self._texts.full([_ASK], tools, generation_prompt=True)):
            return None
        return Shell(before, ended, form)

    def _find_turn_end(self) -> tuple[str, int]:
        text = self._texts.full([_ASK, Message(role="assistant", content="Said")], [])
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
        if _TOOL.name not in self._texts.full([_ASK], [_TOOL], generation_prompt=True):
            return f"the chat template of {self._name!r} does not show tools to the model; {advice}"
        try:
            said = self._texts.full([_ASK, Message(role="assistant", tool_calls=[_CALL])], [_TOOL])
        except ModelError as error:
            return f"{error}; {advice}"
        marker = said.rfind("<tool_call>")
        calls = parse_tagged_reply(said[marker:].split(self._turn_end)[0]).tool_calls if marker >= 0 else []
        if [(call.name, call.arguments) for call in calls] != [(_CALL.name, _CALL.arguments)]:
            return (
                f"the chat template of {self._name!r} writes calls in a form that is not read here "
                "(<tool_call> with JSON is); name the model's family: make_renderer(tokenizer, family=...); "
                f"or {advice}"
            )
        return None

    def _keeps_history(self, role: Literal["tool", "user"]) -> bool:
        """Whether a message of this role leaves earlier turns as they were said, reasoning included."""
        message = Message(role=role, content="Next", tool_call_id="call_1", name=_TOOL.name)
        tools = [] if self._tools_problem else [_TOOL]
        try:
            return all(
                self._suffix([message], tools, said) is not None
                for said in ("Said", "<think>\nThought\n</think>\n\nSaid")
            )
        except ModelError:  # the template does not take such a message at all; rendering it later says so
            return False
