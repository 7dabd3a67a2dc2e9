"""Answers in OpenAI's form for chat completions: one object, or chunks of a stream; and how any stream is sent."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..errors import plain_errors
from ..records import ToolPrompt
from .generation import Choice, Generated, Listener, written
from .requests import ApiError, as_api_error, current_record
from .tool_calls import WrittenCall, go_on_from


class WholeReply(JSONResponse):
    """An answer that is not streamed, which may have `WrittenJson` in it."""

    def render(self, content: Any) -> bytes:
        return written(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients skip. Proxies give a connection up on which nothing comes."""
KEEP_ALIVE_S = 15.0
CLIENT_CLOSED = 499
"""nginx's status of a request whose client went away before its answer was complete."""


def whole_reply(
    generated: Generated, model: str, fingerprint: str | None, tool_prompt: ToolPrompt = "full"
) -> dict[str, Any]:
    """The body of an answer that is not streamed. `tool_prompt`, how much of the tools its prompt showed, is in it
    beside OpenAI's fields, under our name: who measures a model behind this endpoint can tell."""
    return {
        **_head("chat.completion", model, fingerprint),
        "toolbake": own_fields(generated, tool_prompt),
        "choices": [
            {
                "index": index,
                "message": chat_message(choice),
                "finish_reason": choice.finish_reason,
                "logprobs": _logprobs(choice),
            }
            for index, choice in enumerate(generated.choices)
        ],
        "usage": generated.usage(),
    }


class ReplyStream:
    """Server-sent events, as the answers grow. Joined, the deltas are exactly the message of `whole_reply`."""

    def __init__(
        self, model: str, fingerprint: str | None, *, include_usage: bool, send: Callable[[bytes], None]
    ) -> None:
        """`send` takes one event at a time."""
        self._head = _head("chat.completion.chunk", model, fingerprint)
        self._include_usage = include_usage
        self._send = send
        self._said: dict[int, tuple[str, str]] = {}
        """Reasoning and content of each answer that has begun."""
        self._calls: dict[int, list[WrittenCall]] = {}
        """What was said of its calls."""

    def grow(self, index: int, reasoning: str, content: str, calls: Sequence[WrittenCall] = ()) -> None:
        """See `Listener`."""
        if index not in self._said:
            self._said[index] = ("", "")
            self._delta(index, {"role": "assistant", "content": None if calls and not content else ""})
        said_reasoning, said_content = self._said[index]
        if rest := reasoning[len(said_reasoning) :]:
            self._delta(index, {"reasoning_content": rest})
        if rest := content[len(said_content) :]:
            self._delta(index, {"content": rest})
        self._said[index] = (reasoning, content)
        said = self._calls.get(index, [])
        for number, call in enumerate(calls):
            if number >= len(said):
                self._delta(index, {"tool_calls": [{"index": number, **_call(replace(call, arguments=""))}]})
            if rest := call.arguments[len(said[number].arguments) if number < len(said) else 0 :]:
                self._delta(index, {"tool_calls": [{"index": number, "function": {"arguments": rest}}]})
        self._calls[index] = list(calls)

    def finish(self, index: int, choice: Choice) -> None:
        """See `Listener`."""
        reasoning, content = choice.reasoning or "", choice.content
        said_reasoning, said_content = self._said.get(index, ("", ""))
        if not (reasoning.startswith(said_reasoning) and content.startswith(said_content)):
            raise stream_broken()
        if not go_on_from(self._calls.get(index, []), choice.tool_calls):
            raise stream_broken()
        self.grow(index, reasoning, content, choice.tool_calls)
        invalid = _invalid_calls(index, choice)
        extra = {"toolbake": {"invalid_calls": invalid}} if invalid else {}
        self._delta(index, {}, choice.finish_reason, extra, _logprobs(choice))

    def end(self, generated: Generated) -> None:
        """See `ReplyEvents`."""
        if self._include_usage:
            self._send(_event({**self._head, "choices": [], "usage": generated.usage()}))
        self._send(DONE)

    def failed(self, error: ApiError) -> bytes:
        """See `ReplyEvents`."""
        return _event(error.body)

    def _delta(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        extra: Mapping[str, Any] = {},
        logprobs: dict[str, Any] | None = None,
    ) -> None:
        chunk = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        usage = {"usage": None} if self._include_usage else {}
        self._send(_event({**self._head, "choices": [chunk], **usage, **extra}))


def stream_broken() -> ApiError:
    """Only a format whose marks are longer than `ComparedReply` looks back leads here."""
    return ApiError(
        500,
        "the complete answer does not begin with what was streamed of it; ask without stream",
        kind="server_error",
        code="stream_broken",
    )


def _head(kind: str, model: str, fingerprint: str | None) -> dict[str, Any]:
    made = {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}
    return {**made, "system_fingerprint": fingerprint}


def _logprobs(choice: Choice) -> dict[str, Any] | None:
    return None if choice.logprobs is None else {"content": choice.logprobs, "refusal": None}


def chat_message(choice: Choice) -> dict[str, Any]:
    """The assistant's message, as clients send it back in their next request."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [_call(call) for call in choice.tool_calls]
    return message


def own_fields(generated: Generated, tool_prompt: ToolPrompt) -> dict[str, Any]:
    """What an answer has beside OpenAI's fields."""
    invalid = [one for index, choice in enumerate(generated.choices) for one in _invalid_calls(index, choice)]
    return {"tool_prompt": tool_prompt, **({"invalid_calls": invalid} if invalid else {})}


def _invalid_calls(index: int, choice: Choice) -> list[dict[str, Any]]:
    """What is wrong with calls, by the places of answer and call; for our own field, since OpenAI's form has none."""
    numbered = enumerate(choice.tool_calls)
    return [{"choice": index, "call": n, "problem": call.problem} for n, call in numbered if call.problem is not None]


def _call(call: WrittenCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {written(data)}\n\n".encode()


class ReplyEvents(Listener, Protocol):
    """Says what it hears as server-sent events."""

    def end(self, generated: Generated) -> None:
        """All answers are complete."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """What ends a stream that broke after it had begun."""
        ...


Found = TypeVar("Found")


class StreamedReply(Response):
    """Server-sent events while the answers are sampled.

    What goes wrong before the first event is an error like any other, with its status; what goes wrong later is the
    stream's last event. While there is nothing to say, comments keep the connection.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generate: Callable[[Listener], Awaitable[Generated]],
        events: Callable[[Callable[[bytes], None]], ReplyEvents],
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        """`generate` tells its listener of the answers; `events` makes that listener of what takes one event."""
        # nginx would hold the events back otherwise.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generate, self._events, self._keep_alive_s = generate, events, keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Raises `ApiError` where nothing has been sent yet."""
        if not await unless_disconnected(receive, lambda: self._send_all(send)):
            note_client_left()

    async def _send_all(self, send: Send) -> bool:
        """True once all is sent."""
        events, to_send = anyio.create_memory_object_stream[bytes](math.inf)
        stream = self._events(events.send_nowait)
        failed: list[Exception] = []

        async def generate() -> None:
            with events:
                try:
                    stream.end(await self._generate(stream))
                except Exception as error:  # carried out of the task group, which would wrap it
                    failed.append(error)

        sent = 0

        async def keep_alive() -> None:
            while True:
                before = sent
                await anyio.sleep(self._keep_alive_s)
                if sent == before:
                    with contextlib.suppress(anyio.ClosedResourceError):  # the answer has just ended
                        events.send_nowait(KEEP_ALIVE)

        begun = False
        async with anyio.create_task_group() as group:
            group.start_soon(generate)
            group.start_soon(keep_alive)
            with to_send:
                async for event in to_send:
                    sent += 1
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            group.cancel_scope.cancel()
        if failed and not begun:
            raise failed[0]
        last = b""
        if failed:
            error = as_api_error(failed[0])
            if (record := current_record()) is not None:
                record.note(error.status, error.kind)
            last = stream.failed(error)
        await send({"type": "http.response.body", "body": last})
        return True


def note_client_left() -> None:
    """The client went away in the midst of its answer, whose sampling has ended with that."""
    if (record := current_record()) is not None:
        record.note(CLIENT_CLOSED, "client_left")


async def unless_disconnected(receive: Receive, work: Callable[[], Awaitable[Found]]) -> Found | None:
    """What `work` returns; None when the client went away first, which cancels it."""
    found: list[Found] = []

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    with plain_errors():
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            found.append(await work())
            group.cancel_scope.cancel()
    return found[0] if found else None
