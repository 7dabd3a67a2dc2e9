"""Messages in OpenAI's form as our own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..records import Message, ToolCall
from .api_errors import bad_request, shown

_REASONING = ("reasoning_content", "reasoning")
"""What we call a reasoning, and what vLLM does."""
_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FIELDS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", *_REASONING},
    "tool": {"role", "content", "name", "tool_call_id"},
}


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Raises `ApiError` that names the message's place."""
    return [_message(message, f"messages.{index}") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], at: str) -> Message:
    named = message.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise bad_request(
            f"{at}.role is {shown(repr(message.get('role')))}; choose from {', '.join(_ROLES)}", f"{at}.role"
        )
    given = {name: value for name, value in message.items() if value is not None}
    for name, value in given.items():
        if name not in _FIELDS[role] and not _adds_nothing(value, given):
            raise bad_request(f"{at}.{shown(name)} is not supported for the role {role}", f"{at}.{name}")
    calls = given.get("tool_calls", [])
    if "content" not in given and role != "assistant":
        raise bad_request(f"{at} has no content", f"{at}.content")
    if not isinstance(calls, list):
        raise bad_request(f"{at}.tool_calls is no list", f"{at}.tool_calls")
    if role == "tool" and not isinstance(given.get("tool_call_id"), str):
        raise bad_request(f"{at} is a tool's result without tool_call_id", f"{at}.tool_call_id")
    for name in ("name", *_REASONING):
        if name in given and not isinstance(given[name], str):
            raise bad_request(f"{at}.{name} is no string", f"{at}.{name}")
    reasoning = [given[name] for name in _REASONING if name in given]
    if len(set(reasoning)) > 1:
        raise bad_request(f"{at} has two reasonings that differ; send one of {', '.join(_REASONING)}", at)
    return Message(
        role=role,
        content=_text(given.get("content", ""), f"{at}.content"),
        tool_calls=[_call(call, f"{at}.tool_calls.{index}") for index, call in enumerate(calls)],
        tool_call_id=given.get("tool_call_id"),
        name=given.get("name"),
        reasoning=reasoning[0] if reasoning else None,
    )


def _adds_nothing(value: Any, message: Mapping[str, Any]) -> bool:
    """Whether a field is empty, or an object of which every part is empty or stands in the message itself.

    Clients send back what they read of an answer, with fields of their own and of other servers.
    """
    if isinstance(value, Mapping):
        return all(_adds_nothing(part, {}) or part == message.get(name) for name, part in value.items())
    return value is None or value is False or value in ("", [])


def _text(content: Any, at: str) -> str:
    """A content as text: a string, or a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{at} is a JSON {type(content).__name__}; send a string or a list of text parts", at)
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise bad_request(
                f"{at}.{index} is a part of type {shown(repr(kind))}; only text is supported", f"{at}.{index}"
            )
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Any, at: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_request(f"{at} is no call; send {{id, type, function: {{name, arguments}}}}", at)
    if not isinstance(call.get("id"), str):
        raise bad_request(f"{at} has no id", f"{at}.id")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise bad_request(f"{at}.function.arguments is no string; send the arguments as JSON text", f"{at}.function")
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return ToolCall(id=call["id"], name=function["name"], arguments=value)
    # The model's own slip in an earlier turn. The history must hold it, or the tool's answer hangs in the air.
    return ToolCall(
        id=call["id"], name=function["name"], error=f"the arguments are not a JSON object: {arguments[:120]}"
    )
