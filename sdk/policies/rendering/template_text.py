"""The text that a chat template makes of a conversation: rendered in full, or filled into what it made of its like."""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_bridge.records import Tool

from ...errors import ModelError
from ...records import Message
from .by_tools import ByTools
from .plain_text import PlainTextCodec
from .sealed_text import Examined
from .skeletons import SealingTemplate, SkeletonCache

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shell:
    """A conversation of our own that stands before messages, and the text it begins with."""

    messages: tuple[Message, ...] = ()
    text: str = ""
    form: Hashable = None
    """Equal for equal shells."""


class _Specifications:
    """Tools as a template takes them; each list of tools has one."""

    def __init__(self, codec: PlainTextCodec, tools: Sequence[Tool]) -> None:
        self.tools = [codec.protect(tool.as_openai()) for tool in tools] or None


class TemplateText:
    """Texts of one tokenizer's template. Stand-ins hold the place of control tokens from messages and tools."""

    def __init__(self, tokenizer: Any, codec: PlainTextCodec, name: str, options: Mapping[str, Any]) -> None:
        self.skipped: dict[str, str] = {}
        """Why conversations are rendered in full, by the roles of their messages."""
        self._tokenizer = tokenizer
        self._codec = codec
        self._name = name
        self._options = options
        self._specifications = ByTools(lambda tools: _Specifications(codec, tools))
        self._kept = SkeletonCache()
        self._templates: dict[bool, SealingTemplate] = {}

    def full(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation_prompt: bool = False) -> str:
        """All of it, as transformers renders it. Raises `ModelError` where the messages do not fit the template."""
        try:
            text = self._tokenizer.apply_chat_template(
                protected_messages(self._codec, messages),
                tools=self._specifications(tools).tools,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._options,
            )
        except Exception as error:  # a template can raise anything; all of it says that the messages do not fit
            roles = [message.role for message in messages]
            raise ModelError(f"the chat template of {self._name!r} fails on roles {roles}: {error}") from error
        return str(text)

    def behind(self, shell: Shell, messages: Sequence[Message], tools: Sequence[Tool]) -> str | None:
        """The text from the end of the shell's to the generation prompt's, `messages` following those of the shell.

        None where the text does not begin with the shell's. Raises `ModelError` as `full` does.
        """
        form = self._form(shell, messages, tools)
        texts = [_protected_text(self._codec, message) for message in messages]
        found = self._kept.filled(form, texts) if form is not None else None
        if found is not None:
            return found
        whole = self.full([*shell.messages, *messages], tools, generation_prompt=True)
        if not whole.startswith(shell.text):
            return None
        rest = whole[len(shell.text) :]
        if form is not None and self._kept.wants(form):
            self._learn(form, shell, messages, tools, texts, rest)
        return rest

    def form_of(self, tools: Sequence[Tool]) -> Hashable:
        """Equal for equal lists of the same tools."""
        return self._specifications(tools)

    def _form(self, shell: Shell, messages: Sequence[Message], tools: Sequence[Tool]) -> Hashable:
        """All that the text depends on but the messages' contents; None where more than contents would have to vary."""
        if any(message.tool_calls or message.reasoning is not None for message in messages):
            return None
        heads = tuple((message.role, message.tool_call_id, message.name) for message in messages)
        return (shell.form, self.form_of(tools), heads)

    def _learn(
        self,
        form: Hashable,
        shell: Shell,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        texts: Sequence[str],
        rest: str,
    ) -> None:
        """Keep a skeleton of this form, if there is one that gives `rest` for `texts`."""
        whole = [*shell.messages, *messages]
        variables = {
            **self._tokenizer.special_tokens_map,
            "documents": None,
            **self._options,
            "tools": self._specifications(tools).tools,
            "add_generation_prompt": True,
        }
        problem = "it renders otherwise than transformers does"
        try:
            skeleton = (
                self._template(bool(tools))
                .skeleton(protected_messages(self._codec, whole), range(len(shell.messages), len(whole)), variables)
                .after(shell.text)
            )
            if skeleton is not None and skeleton.fits(texts) and skeleton.fill(texts) == rest:
                self._kept.keep(form, skeleton)
                return
        except Examined as error:
            problem = f"the template makes its own of a message's text ({error})"
        except Exception as error:  # whatever a template may raise of sealed text, and not of text
            problem = f"{type(error).__name__}: {error}"
        self._kept.keep_none(form)
        roles = ", ".join(message.role for message in messages)
        if roles not in self.skipped:
            self.skipped[roles] = problem
            log.info("the chat template of %r is run anew for each message (%s): %s", self._name, roles, problem)

    def _template(self, with_tools: bool) -> SealingTemplate:
        if with_tools not in self._templates:
            source = self._tokenizer.get_chat_template(tools=[{}] if with_tools else None)
            self._templates[with_tools] = SealingTemplate(source)
        return self._templates[with_tools]


def _protected_text(codec: PlainTextCodec, message: Message) -> str:
    return codec.protect_text(message.content, keep_markup=message.role == "assistant")


def protected_messages(codec: PlainTextCodec, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates take them (arguments as objects), free of control tokens."""
    out = []
    for message in messages:
        plain = message.as_openai()
        for call in plain.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        out.append(codec.protect(plain, keep_markup=message.role == "assistant"))
    return out
