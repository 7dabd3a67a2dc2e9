"""An HTTP client whose failures cost one request, never the session that sent it.

The SDK's transport lets an error of the network, and an answer of any size, reach the tasks of the whole session. Here
both become the answer to the one request: an error of JSON-RPC that stands for a `Fault`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import anyio
import anyio.abc
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic_core import from_json

from ..access.logins import LoginFailed
from ..errors import Delivery
from .messages import (
    CLOSED,
    EventSplitter,
    Fault,
    Incoming,
    LineSplitter,
    LongLine,
    ToClient,
    batch,
    fault_of,
    readable,
    refused_with,
    too_large,
    written,
)

if TYPE_CHECKING:
    from .transports import Notes

# ---------------------------------------------------------------------------------------------------------------------
# MCP over HTTP as it was until 2025-03-26: one stream of events from the server, and a POST for each message to it.
#
# In place of the SDK's transport, which leaves a call without an answer where its POST fails, and ends the session at
# an event above 1 MB.

logger = logging.getLogger(__name__)


class SseStreams:
    """The messages of one session, for the SDK's client."""

    def __init__(
        self,
        url: str,
        http: httpx2.AsyncClient,
        incoming: Incoming,
        on_end: Callable[[str], None],
    ) -> None:
        """`http` is open, and waits for an answer without a limit. `on_end` hears why the stream of events ended."""
        self._url = url
        self._http = http
        self._incoming = incoming
        self._on_end = on_end

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
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
        self, response: httpx2.Response, to_client: ToClient, *, task_status: anyio.abc.TaskStatus[str]
    ) -> None:
        known = False
        why = ""
        events = EventSplitter(self._incoming.limit)
        try:
            if not _is_stream(response):
                raise httpx2.RemoteProtocolError("what it answers is not a stream of events")
            async for chunk in response.aiter_bytes():
                for kind, data in events.feed(chunk):
                    if kind == "endpoint" and not known and isinstance(data, bytes):
                        known = True
                        task_status.started(self._endpoint(data.decode(errors="replace")))
                    elif isinstance(data, LongLine) or (kind == "message" and data):
                        for message in self._incoming.messages(data, "sent an event"):
                            await to_client.send(message)
                    if isinstance(data, LongLine) and not data.can_be_skipped:
                        why = f"an event of {data.told} came, above max_answer_mb of the server"
                        break
                if why:
                    break
        except httpx2.HTTPError as error:
            if not known:
                raise
            why = f"the server's stream of events broke off ({type(error).__name__}: {error})"
        except CLOSED:
            return
        if not known:
            raise httpx2.RemoteProtocolError("the stream of events ended before it named an endpoint for messages")
        self._on_end(why or "the server ended its stream of events")
        to_client.close()

    def _endpoint(self, told: str) -> str:
        endpoint = urljoin(self._url, told)
        here, there = urlsplit(self._url), urlsplit(endpoint)
        if (here.scheme, here.netloc.rpartition("@")[2]) != (there.scheme, there.netloc):
            # Another host would get this one's headers.
            raise httpx2.RemoteProtocolError("the server names an endpoint for messages on another host")
        return endpoint

    async def _write(
        self, endpoint: str, from_client: MemoryObjectReceiveStream[SessionMessage], to_client: ToClient
    ) -> None:
        async with anyio.create_task_group() as posts:
            async for message in from_client:
                posts.start_soon(self._post, endpoint, message, to_client)

    async def _post(self, endpoint: str, message: SessionMessage, to_client: ToClient) -> None:
        if (body := await written(message, to_client)) is None:
            return
        try:
            response = await self._http.post(endpoint, content=body, headers={"Content-Type": "application/json"})
            fault = _refusal(response)
        except LoginFailed as error:
            fault = Fault("login", "refused", str(error))
        except httpx2.HTTPError as error:
            fault = lost(error)
        if fault is None:
            return
        if not isinstance(message.message, mcp_types.JSONRPCRequest):
            logger.warning("%s did not take a notification: %s", self._incoming.spec.label, fault.message)
            return
        with contextlib.suppress(*CLOSED):
            await to_client.send(fault.answer_to(message.message.id))


def _refusal(response: httpx2.Response) -> Fault | None:
    status = response.status_code
    if status < 300:
        return None
    if status == 404:
        return Fault("no_session", "refused", "it no longer knows the session (HTTP 404)")
    return refused_with(response, "status", "unknown" if status >= 500 else "refused")


# ---------------------------------------------------------------------------------------------------------------------

_NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
_REFUSED = frozenset({401, 403, 404, 405, 429})
_NEVER_THE_TOOLS = frozenset({401, 403, 405, 429, 502, 503, 504})
"""Statuses with which whoever stands before a server answers, whatever the body says."""
_SESSION_HEADER = "mcp-session-id"
_MOST_ERROR_BYTES = 65_536
_FAULT_STATUS = 502


class HttpFaults:
    """The faults of one session's requests. They cross the SDK as JSON, by a token that no server can know."""

    def __init__(self) -> None:
        self._waiting: dict[str, Fault] = {}

    def as_json(self, fault: Fault) -> bytes:
        token = secrets.token_hex(16)
        self._waiting[token] = fault
        error = {**fault.as_error().model_dump(exclude={"data"}), "data": token}
        return json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()

    def of(self, error: BaseException | None) -> Fault | None:
        """The fault behind an error of the SDK's client, once."""
        data = error.error.data if isinstance(error, MCPError) else None
        return self._waiting.pop(data, None) if isinstance(data, str) else fault_of(error)


class ContainedClient(httpx2.AsyncClient):
    """Like `httpx2.AsyncClient`; a POST that brings no answer is answered with its fault.

    Refusals are the SDK's until the session is open: it learns from them what the server speaks.
    """

    def __init__(self, notes: Notes, max_answer_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._notes = notes
        self._limit = max_answer_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method != "POST":
            response = await super().send(request, **options)
            return self._bounded(response) if _is_stream(response) else response
        await request.aread()  # of one that follows a redirect, the content is not known yet
        try:
            response = await super().send(request, **options)
        except LoginFailed as error:
            return self._answered_by(Fault("login", "refused", str(error)), request)
        except httpx2.HTTPError as error:
            return self._answered_by(lost(error), request)
        except Exception as error:
            if not self._notes.is_open:
                raise
            # A login that failed, for example: the other calls of the session go on.
            return self._answered_by(Fault("status", "unknown", f"{type(error).__name__}: {error}"), request)
        try:
            if response.status_code >= 400:
                if not self._notes.is_open:
                    return response
                return await self._refusal(response)
            if _is_stream(response):
                return self._bounded(response)
            if response.next_request is not None:  # the SDK's client follows it, or says why not
                return response
            return await self._whole(response)
        except BaseException:
            await response.aclose()
            raise

    def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        return _with_body(response, stream=_Events(response, self._notes.faults, self._limit))

    async def _whole(self, response: httpx2.Response) -> httpx2.Response:
        """The response with its body read, up to the limit."""
        try:
            body = await _read(response, self._limit)
        except httpx2.HTTPError as error:
            await response.aclose()
            return self._answered_by(lost(error), response.request)
        if body is None:
            await response.aclose()
            told = response.headers.get("content-length", "")
            size = f"{int(told) / 1e6:.1f} MB" if told.isdigit() else f"more than {self._limit / 1e6:g} MB"
            return self._answered_by(too_large(size, self._limit), response.request)
        parts = [readable(one) for one in batch(body)]
        if self._notes.is_open and not any(_answers(one, response.request.content) for one in parts):
            # The SDK's client would wait for the right one, which no longer comes.
            fault = Fault("status", "answered", "it sent something else than the answer to this request")
            return self._answered_by(fault, response.request)
        if len(parts) == 1:
            return _with_body(response, content=parts[0])
        # Of several messages the SDK's client reads only events.
        events = b"".join(b"data: " + one + b"\n\n" for one in parts)
        return _with_body(response, content=events, kind="text/event-stream")

    async def _refusal(self, response: httpx2.Response) -> httpx2.Response:
        try:
            body = await _read(response, _MOST_ERROR_BYTES) or b""
        except httpx2.HTTPError:
            body = b""
        await response.aclose()
        status = response.status_code
        error = _error_in(response, body)
        # With another id, or without one, it says that the request was not read, so no tool said it.
        its_own = error is not None and error.id is not None and _answers(body, response.request.content)
        if its_own and status not in _NEVER_THE_TOOLS:
            return _with_body(response, content=body)
        if _SESSION_HEADER in response.request.headers and (
            status == 404 or (status == 400 and b"session" in body.lower())
        ):
            fault = Fault("no_session", "refused", f"it no longer knows the session (HTTP {status})")
        else:
            delivery: Delivery = "refused" if status in _REFUSED else "unknown" if status >= 500 else "answered"
            told = f": {error.error.message}" if error is not None else ""
            fault = refused_with(response, "status", delivery, told)
        return self._answered_by(fault, response.request)

    def _answered_by(self, fault: Fault, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            _FAULT_STATUS,
            headers={"content-type": "application/json"},
            content=self._notes.faults.as_json(fault),
            request=request,
        )


class _Events(httpx2.AsyncByteStream):
    """A body of server-sent events. One that breaks off or grows above the limit ends with its fault as an event."""

    def __init__(self, response: httpx2.Response, faults: HttpFaults, limit: int) -> None:
        self._response = response
        self._faults = faults
        self._limit = limit

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _readable_events(self._bounded()) if self._response.request.method == "POST" else self._bounded()

    async def _bounded(self) -> AsyncIterator[bytes]:
        # What a GET brings is taken up again by the SDK where it breaks off.
        size, resumable = 0, self._response.request.method == "GET"
        try:
            async for chunk in self._response.aiter_bytes():
                end = max(chunk.rfind(b"\n\n"), chunk.rfind(b"\r\n\r\n"), chunk.rfind(b"\r\r"))
                size = size + len(chunk) if end < 0 else len(chunk) - end
                if size > self._limit:
                    yield self._event(too_large(f"more than {self._limit / 1e6:g} MB", self._limit), after=size)
                    return
                # The SDK asks for the rest of a stream whose events have ids.
                resumable = resumable or chunk.startswith(b"id:") or b"\nid:" in chunk
                yield chunk
        except httpx2.HTTPError as error:
            if resumable:
                raise
            yield self._event(lost(error), after=size)

    def _event(self, fault: Fault, *, after: int) -> bytes:
        """`after`: the bytes since the last event ended, its end included."""
        # Ends an event that was begun; what is left of it is not JSON, so it must not be one: a comment first.
        begun = b"\n: cut here\nevent: cut\n\n" if after > len(b"\r\n\r\n") else b"\n"
        return begun + b"event: message\ndata: " + self._faults.as_json(fault) + b"\n\n"

    async def aclose(self) -> None:
        await self._response.aclose()


def _is_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


async def _readable_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same events, line by line, with data that the SDK's client reads. The chunks are bounded."""
    lines = LineSplitter(math.inf)

    def in_lines(chunk: bytes) -> Iterator[bytes]:
        for line in lines.feed(chunk):
            assert isinstance(line, bytes)
            is_data = line.startswith(b"data:")
            yield (b"data:" + readable(line[5:]) if is_data else line) + b"\n"

    async for chunk in chunks:
        for line in in_lines(chunk):
            yield line
    for line in in_lines(b"\n"):
        yield line


def _error_in(response: httpx2.Response, body: bytes) -> mcp_types.JSONRPCError | None:
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return None
    try:
        return mcp_types.JSONRPCError.model_validate_json(body, by_name=False)
    except ValueError:
        return None


def lost(error: httpx2.HTTPError) -> Fault:
    delivery: Delivery = "not_sent" if isinstance(error, _NOT_SENT) else "unknown"
    return Fault("connection", delivery, f"{type(error).__name__}: {error}")


async def _read(response: httpx2.Response, limit: int) -> bytes | None:
    """The body, decoded; `None` where it is above the limit. No more than that is held."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _answers(body: bytes, request: bytes) -> bool:
    """Whether a body is JSON-RPC's answer to a request; to a notification anything is."""
    asked = json.loads(request).get("id")
    try:
        answer = from_json(body)
    except ValueError:
        return asked is None
    return asked is None or (isinstance(answer, dict) and answer.get("id") in (asked, str(asked), None))


def _with_body(response: httpx2.Response, *, kind: str | None = None, **body: Any) -> httpx2.Response:
    """The same response with its body decoded. `kind`: its media type, where that is another one."""
    changed = {"content-encoding", "content-length", "transfer-encoding"} | ({"content-type"} if kind else set())
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in changed]
    headers += [("content-type", kind)] if kind else []
    whole = httpx2.Response(response.status_code, headers=headers, request=response.request, **body)
    whole.history = response.history
    whole.next_request = response.next_request
    return whole
