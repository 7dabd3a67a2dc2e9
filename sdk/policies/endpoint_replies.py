"""What an OpenAI-compatible endpoint answers, read with suspicion."""

from __future__ import annotations

import json
import re
from typing import Any

from ..records import Message, ToolCall, ToolPrompt
from .protocol import Reply
from .rendering.call_parsing import read_arguments
from .tool_prompt import TOOL_PROMPTS

_SHOWN_CHARS = 500
_CONTEXT = re.compile(
    r"context.{0,20}(length|window|size|limit)|maximum.{0,20}(model|sequence|input) ?length|prompt is too long"
    r"|(input|prompt).{0,40}(exceeds|longer than).{0,40}(token|length)|too many (input )?tokens",
    re.IGNORECASE | re.DOTALL,
)


def context_exceeded(status: int, text: str) -> bool:
    """Whether a refusal (HTTP 400, 413 or 422) says that the conversation does not fit into the model's context."""
    if status not in (400, 413, 422):
        return False
    error = _error_object(text)
    if error.get("code") == "context_length_exceeded":
        return True
    return bool(_CONTEXT.search(error_text(text)))


def error_text(text: str) -> str:
    """The endpoint's own message, or the beginning of what it sent instead."""
    message = _error_object(text).get("message")
    shown = message if isinstance(message, str) and message else text.strip() or "(no text)"
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}... ({len(shown)} characters)"


def read_reply(text: str) -> Reply:
    """The reply in the body of a 200. Raises `ValueError` that says what is wrong with it."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error}): {error_text(text)}") from None
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError(f"no choices: {error_text(text)}")
    said = choices[0].get("message")
    if not isinstance(said, dict):
        raise ValueError(f"no message in the first choice: {error_text(text)}")
    finish = choices[0].get("finish_reason")
    if finish == "content_filter":
        raise ValueError("the endpoint's content filter withheld it")
    calls = said.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls is no list: {error_text(text)}")
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    message = Message(
        role="assistant",
        content=_content_text(said.get("content")) or _content_text(said.get("refusal")),
        reasoning=reasoning if isinstance(reasoning, str) else None,
        tool_calls=[_read_call(call) for call in calls],
    )
    usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    return Reply(
        message,
        "length" if finish == "length" else "stop",
        sampled_tokens=_count(usage.get("completion_tokens")),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        tool_prompt=_shown(body.get("toolbake")),
        extra={"finish_reason": finish, "id": body.get("id"), "model": body.get("model")},
    )


def _shown(ours: Any) -> ToolPrompt | None:
    """What `sdk.serve` says under our name; a field of another server may be called `tool_prompt`, too, and mean
    something else."""
    said = ours.get("tool_prompt") if isinstance(ours, dict) else None
    return next((length for length in TOOL_PROMPTS if length == said), None)


def _read_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ToolCall(id="", name="", error="the call has no function with a name and arguments")
    call_id = call.get("id") if isinstance(call.get("id"), str) else ""
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return ToolCall(id=call_id, name="", error="the call has no name")
    given = function.get("arguments")
    arguments, error = read_arguments(given if isinstance(given, str) or given is None else json.dumps(given))
    return ToolCall(id=call_id, name=name, arguments=arguments, error=error)


def _content_text(content: Any) -> str:
    """A message's text: a string, or the text parts of a list. Raises `ValueError` for anything else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    raise ValueError(f"content is neither text nor parts: {json.dumps(content)[:_SHOWN_CHARS]}")


def _error_object(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else {"message": error}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
