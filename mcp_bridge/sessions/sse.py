"""MCP over HTTP as it was until 2025-03-26: one stream of events from the server, and a POST for each message to it.

In place of the SDK's transport, which leaves a call without an answer where its POST fails, and ends the session at an
event above 1 MB.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from urllib.parse import urljoin, urlsplit

import anyio
import anyio.abc
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage

from ..access.redaction import redacted
from .faults import Fault
from .http_client import lost
from .messages import instead_of, message_in, written

logger = logging.getLogger(__name__)

_SHOWN = 200


class SseStreams:
    """The messages of one session, for the SDK's client."""

    def __init__(
        self,
        url: str,
        http: httpx2.AsyncClient,
        *,
        label: str,
        max_answer_bytes: int,
        secrets: Sequence[str],
        on_end: Callable[[str], None],
    ) -> None:
        """`http` is open, and waits for an answer without a limit. `on_end` hears why the stream of events ended."""
        self._url = url
        self._http = http
        self._label = label
        self._limit = max_answer_bytes
        self._secrets = tuple(secrets)
        self._on_end = on_end

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[TransportStreams]:
        """The two streams. Raises `httpx2.HTTPError` where the URL brings no stream of events."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        async with self._http.stream("GET", self._url, headers=headers) as response:
            response.raise_for_status()
            to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            to_server, from_client = anyio.create_memory_object_stream[SessionMessage](float("inf"))
            with to_client, from_server, to_server, from_client:
                async with anyio.create_task_group() as group:
                    endpoint = await group.start(self._read, response, to_client)
                    group.start_soon(self._write, endpoint, from_client, to_client)
                    try:
                        yield from_server, to_server
                    finally:
                        group.cancel_scope.cancel()

    async def _read(
        self,
        response: httpx2.Response,
        to_client: MemoryObjectSendStream[SessionMessage | Exception],
        *,
        task_status: anyio.abc.TaskStatus[str],
    ) -> None:
        known = False
        why = "the server ended its stream of events"
        try:
            async for event in httpx2.EventSource(response, max_event_size=self._limit):
                if event.event == "endpoint" and not known:
                    known = True
                    task_status.started(self._endpoint(event.data))
                elif event.event == "message" and event.data:
                    message = self._message(event.data)
                    if message is not None:
                        await to_client.send(message)
        except (httpx2.HTTPError, httpx2.SSEError) as error:
            if not known:
                raise
            why = f"the server's stream of events broke off ({type(error).__name__}: {error})"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return
        if not known:
            raise httpx2.RemoteProtocolError("the stream of events ended before it named an endpoint for messages")
        self._on_end(why)
        to_client.close()

    def _endpoint(self, told: str) -> str:
        endpoint = urljoin(self._url, told)
        here, there = urlsplit(self._url), urlsplit(endpoint)
        if (here.scheme, here.netloc.rpartition("@")[2]) != (there.scheme, there.netloc):
            # Another host would get this one's headers.
            raise httpx2.RemoteProtocolError("the server names an endpoint for messages on another host")
        return endpoint

    def _message(self, data: str) -> SessionMessage | None:
        message = message_in(data)
        if message is None:
            shown = redacted(data[:_SHOWN], self._secrets)
            logger.warning("%s sent an event that is no MCP message: %s", self._label, shown)
            return instead_of(data.encode(errors="replace"))
        return message

    async def _write(
        self,
        endpoint: str,
        from_client: MemoryObjectReceiveStream[SessionMessage],
        to_client: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        async with anyio.create_task_group() as posts:
            async for message in from_client:
                posts.start_soon(self._post, endpoint, message, to_client)

    async def _post(
        self, endpoint: str, message: SessionMessage, to_client: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        body = written(message)
        if not isinstance(body, str):
            if body is not None:
                with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await to_client.send(body)
            return
        try:
            response = await self._http.post(endpoint, content=body, headers={"Content-Type": "application/json"})
            fault = _refusal(response.status_code)
        except httpx2.HTTPError as error:
            fault = lost(error)
        if fault is None:
            return
        if not isinstance(message.message, mcp_types.JSONRPCRequest):
            logger.warning("%s did not take a notification: %s", self._label, fault.message)
            return
        answer = mcp_types.JSONRPCError(jsonrpc="2.0", id=message.message.id, error=fault.as_error())
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await to_client.send(SessionMessage(answer))


def _refusal(status: int) -> Fault | None:
    if status < 300:
        return None
    if status == 404:
        return Fault("no_session", "refused", "it no longer knows the session (HTTP 404)")
    return Fault("status", "unknown" if status >= 500 else "refused", f"it answered HTTP {status}")
