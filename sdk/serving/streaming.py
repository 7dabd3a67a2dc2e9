"""Answers over a connection that the client may leave at any time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .api_errors import as_api_error
from .chat_request import ChatRequest
from .generation import Generator
from .replies import ReplyStream, error_event

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
