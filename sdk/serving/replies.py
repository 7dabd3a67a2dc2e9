"""Finished choices in OpenAI's form: one object, or chunks of a stream."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

from ..records import ToolCall
from .generation import Choice, Generated

_WORDS = re.compile(r"\S+\s*|\s+")
_PIECE_CHARS = 32


def whole_reply(generated: Generated, model: str) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    return {
        **_head("chat.completion", model),
        "choices": [
            {"index": index, "message": _message(choice), "finish_reason": choice.finish_reason, "logprobs": None}
            for index, choice in enumerate(generated.choices)
        ],
        "usage": generated.usage(),
    }


def stream_events(generated: Generated, model: str, *, include_usage: bool) -> Iterator[bytes]:
    """Server-sent events. Joined, the deltas are exactly the message of `whole_reply`."""
    head = _head("chat.completion.chunk", model)
    extra: dict[str, Any] = {"usage": None} if include_usage else {}
    for index, choice in enumerate(generated.choices):
        for delta in _deltas(choice):
            yield _event({**head, "choices": [_chunk(index, delta, None)], **extra})
        yield _event({**head, "choices": [_chunk(index, {}, choice.finish_reason)], **extra})
    if include_usage:
        yield _event({**head, "choices": [], "usage": generated.usage()})
    yield b"data: [DONE]\n\n"


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [_call(call) for call in choice.tool_calls]
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}


def _arguments(call: ToolCall) -> str:
    """The arguments as JSON text. For a call that did not parse, what is wrong with it: it must not pass for `{}`."""
    return call.error if call.error is not None else json.dumps(call.arguments, ensure_ascii=False)


def _deltas(choice: Choice) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if choice.tool_calls and not choice.content else ""}
    for piece in _WORDS.findall(choice.reasoning or ""):
        yield {"reasoning_content": piece}
    for piece in _WORDS.findall(choice.content):
        yield {"content": piece}
    for index, call in enumerate(choice.tool_calls):
        opened = _call(call)
        arguments, opened["function"]["arguments"] = opened["function"]["arguments"], ""
        yield {"tool_calls": [{"index": index, **opened}]}
        for start in range(0, len(arguments), _PIECE_CHARS):
            piece = arguments[start : start + _PIECE_CHARS]
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _chunk(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
