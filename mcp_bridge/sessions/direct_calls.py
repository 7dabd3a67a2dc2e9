"""Tool calls over HTTP that the task which makes them posts, past the SDK's transport.

The SDK's transport posts each message in tasks of its own, through httpx2's client, which costs most of a call's
processor time. A plain answer is taken here, as JSON or as the one event of a stream. Any other outcome of the request,
such as several events, a redirect, a refusal or an error of the network, becomes the outcome of the request that the
SDK's transport makes then: nothing is sent twice, and all that is unusual is handled in one place.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from yarl import URL

from .connections import AiohttpTransport, Outcome, headers_of
from .messages import CLOSED, complete, message_in

if TYPE_CHECKING:
    from .transports import Notes

_ASKED = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_ONE_EVENT = re.compile(rb"(?:event: ?message\r?\n)?data: ?([^\r\n]+)\r?\n\r?\n")


class DirectCalls:
    """The streams of a session over HTTP, in which the task that makes a call posts it."""

    def __init__(
        self,
        streams: AbstractAsyncContextManager[Any],
        http: httpx2.AsyncClient,
        transport: AiohttpTransport | None,
        url: str,
        notes: Notes,
        *,
        most_bytes: int,
    ) -> None:
        """`streams`: the SDK's, over `http` and its `transport`; without that it makes all calls. `most_bytes`: of an
        answer that is read."""
        self._streams = streams
        self._http = http
        self._notes = notes
        self._most_bytes = most_bytes
        request = http.build_request("POST", url, headers=_ASKED)
        self._url = URL(str(request.url), encoded=True)
        self._headers = headers_of(request)
        self._headers.popall("Content-Length", None)
        # A login, also one in the URL, and cookies are httpx2's business.
        self._ahead = transport if http.auth is None and not request.url.userinfo else None
        self._posting: set[anyio.CancelScope] = set()
        self._closed = False

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """The two streams, for the SDK's client."""
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](float("inf"))
        async with self._streams as (received, self._to_server), to_client, from_server:
            self._to_client = to_client
            async with anyio.create_task_group() as self._group:
                self._group.start_soon(self._pass_on, received)
                try:
                    yield from_server, self
                finally:
                    self._group.cancel_scope.cancel()
                    if self._ahead is not None:
                        self._ahead.drop_kept()

    async def _pass_on(self, received: Any) -> None:
        with contextlib.suppress(*CLOSED):
            async for item in received:
                await self._to_client.send(complete(item) if isinstance(item, SessionMessage) else item)
        self._to_client.close()

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message. A call is answered when this returns, unless the SDK's client has still to do so."""
        request, about = item.message, item.metadata
        if (
            self._ahead is not None
            and isinstance(request, JSONRPCRequest)
            and request.method == "tools/call"
            and isinstance(about, ClientMessageMetadata)
            and self._notes.is_open
            and not self._http.cookies
        ):
            outcome = await self._post(self._ahead, request, about.headers or {})
            answer = _answer_in(outcome.begin, request.id)
            if answer is not None:
                if not outcome.has_ended:
                    self._group.start_soon(outcome.give_back)
                self._to_client.send_nowait(SessionMessage(answer))
                return
            kept = self._ahead.keep(outcome, str(request.id))
            item = SessionMessage(request, replace(about, headers={**(about.headers or {}), **kept}))
        await self._to_server.send(item)

    async def _post(self, ahead: AiohttpTransport, request: JSONRPCRequest, own: dict[str, str]) -> Outcome:
        """What comes of the call. Raises `anyio.ClosedResourceError` where the session ends meanwhile."""
        headers = self._headers.copy()
        headers.update(own)
        if self._notes.session_id is not None:
            headers["Mcp-Session-Id"] = self._notes.session_id
        body = request.model_dump_json(by_alias=True, exclude_unset=True).encode()
        with anyio.CancelScope() as scope:
            if self._closed:
                raise anyio.ClosedResourceError
            self._posting.add(scope)
            try:
                return await ahead.post_ahead(
                    self._url, headers, body, connect_timeout_s=self._http.timeout.connect, most_bytes=self._most_bytes
                )
            finally:
                self._posting.discard(scope)
        raise anyio.ClosedResourceError

    async def aclose(self) -> None:
        """End the calls that are being posted, and the SDK's streams."""
        self._closed = True
        for scope in self._posting:
            scope.cancel()
        await self._to_server.aclose()

    async def __aenter__(self) -> DirectCalls:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _answer_in(begin: bytes, asked: int | str) -> JSONRPCResponse | JSONRPCError | None:
    """The answer to a request; None where it is something else, or there may be more of it."""
    if not begin:
        return None
    event = _ONE_EVENT.fullmatch(begin)
    found = message_in(begin if event is None else event[1])
    message = found.message if found is not None else None
    return message if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id == asked else None
