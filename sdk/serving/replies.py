"""Answers in OpenAI's form: one object, or chunks of a stream."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..records import ToolPrompt
from .api_errors import ApiError, as_api_error
from .chat_request import ChatRequest
from .generation import Choice, Generated, Generator
from .tool_calls import WrittenCall

_PIECE_CHARS = 32
DONE = b"data: [DONE]\n\n"


def whole_reply(generated: Generated, model: str, tool_prompt: ToolPrompt = "full") -> dict[str, Any]:
    """The body of an answer that is not streamed. `tool_prompt`, how much of the tools its prompt showed, is in it
    beside OpenAI's fields, under our name: who measures a model behind this endpoint can tell."""
    invalid = [one for index, choice in enumerate(generated.choices) for one in _invalid_calls(index, choice)]
    return {
        **_head("chat.completion", model),
        "toolbake": {"tool_prompt": tool_prompt, **({"invalid_calls": invalid} if invalid else {})},
        "choices": [
            {"index": index, "message": _message(choice), "finish_reason": choice.finish_reason, "logprobs": None}
            for index, choice in enumerate(generated.choices)
        ],
        "usage": generated.usage(),
    }


class ReplyStream:
    """Server-sent events, as the answers grow. Joined, the deltas are exactly the message of `whole_reply`."""

    def __init__(self, model: str, *, include_usage: bool, send: Callable[[bytes], None]) -> None:
        """`send` takes one event at a time."""
        self._head = _head("chat.completion.chunk", model)
        self._include_usage = include_usage
        self._send = send
        self._said: dict[int, tuple[str, str]] = {}
        """Reasoning and content of each answer that has begun."""

    def grow(self, index: int, reasoning: str, content: str) -> None:
        """See `Listener`."""
        if index not in self._said:
            self._said[index] = ("", "")
            self._delta(index, {"role": "assistant", "content": ""})
        said_reasoning, said_content = self._said[index]
        if rest := reasoning[len(said_reasoning) :]:
            self._delta(index, {"reasoning_content": rest})
        if rest := content[len(said_content) :]:
            self._delta(index, {"content": rest})
        self._said[index] = (reasoning, content)

    def finish(self, index: int, choice: Choice) -> None:
        """See `Listener`."""
        reasoning, content = choice.reasoning or "", choice.content
        if index in self._said:
            said_reasoning, said_content = self._said[index]
            if not (reasoning.startswith(said_reasoning) and content.startswith(said_content)):
                # Only a format whose marks are longer than `SettledReply` looks back leads here.
                raise ApiError(
                    500,
                    "the complete answer does not begin with what was streamed of it; ask without stream",
                    kind="server_error",
                    code="stream_broken",
                )
        elif choice.tool_calls and not content:
            self._said[index] = ("", "")
            self._delta(index, {"role": "assistant", "content": None})
        self.grow(index, reasoning, content)
        for number, call in enumerate(choice.tool_calls):
            for delta in _call_deltas(number, call):
                self._delta(index, delta)
        invalid = _invalid_calls(index, choice)
        extra = {"toolbake": {"invalid_calls": invalid}} if invalid else {}
        self._delta(index, {}, choice.finish_reason, extra)

    def end(self, usage: dict[str, int]) -> None:
        """After all answers."""
        if self._include_usage:
            self._send(_event({**self._head, "choices": [], "usage": usage}))
        self._send(DONE)

    def _delta(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None, extra: Mapping[str, Any] = {}
    ) -> None:
        chunk = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        usage = {"usage": None} if self._include_usage else {}
        self._send(_event({**self._head, "choices": [chunk], **usage, **extra}))


def error_event(error: ApiError) -> bytes:
    """What ends a stream that broke after it had begun."""
    return _event(error.body)


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [_call(call) for call in choice.tool_calls]
    return message


def _invalid_calls(index: int, choice: Choice) -> list[dict[str, Any]]:
    """What is wrong with calls, by the places of answer and call; for our own field, since OpenAI's form has none."""
    numbered = enumerate(choice.tool_calls)
    return [{"choice": index, "call": n, "problem": call.problem} for n, call in numbered if call.problem is not None]


def _call(call: WrittenCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_deltas(number: int, call: WrittenCall) -> Iterator[dict[str, Any]]:
    opened = _call(call)
    arguments, opened["function"]["arguments"] = opened["function"]["arguments"], ""
    yield {"tool_calls": [{"index": number, **opened}]}
    for start in range(0, len(arguments), _PIECE_CHARS):
        piece = arguments[start : start + _PIECE_CHARS]
        yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


Found = TypeVar("Found")


class StreamedReply(Response):
    """Server-sent events while the answers are sampled.

    What goes wrong before the first event is an error like any other, with its status; what goes wrong later is the
    stream's last event.
    """

    media_type = "text/event-stream"

    def __init__(self, generator: Generator, request: ChatRequest, model_name: str) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._generator, self._request, self._model_name = generator, request, model_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Raises `ApiError` where nothing has been sent yet."""
        await unless_disconnected(receive, lambda: self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        events, to_send = anyio.create_memory_object_stream[bytes](math.inf)
        include_usage = bool(self._request.stream_options and self._request.stream_options.include_usage)
        stream = ReplyStream(self._model_name, include_usage=include_usage, send=events.send_nowait)
        failed: list[Exception] = []

        async def generate() -> None:
            with events:
                try:
                    generated = await self._generator.generate(self._request, stream)
                    stream.end(generated.usage())
                except Exception as error:  # carried out of the task group, which would wrap it
                    failed.append(error)

        begun = False
        async with anyio.create_task_group() as group:
            group.start_soon(generate)
            with to_send:
                async for event in to_send:
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        if failed and not begun:
            raise failed[0]
        await send({"type": "http.response.body", "body": error_event(as_api_error(failed[0])) if failed else b""})


async def unless_disconnected(receive: Receive, work: Callable[[], Awaitable[Found]]) -> Found | None:
    """What `work` returns; None when the client went away first, which cancels it."""
    found: list[Found] = []
    failed: list[Exception] = []

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            found.append(await work())
        except Exception as error:  # carried out of the task group, which would wrap it
            failed.append(error)
        group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return found[0] if found else None
