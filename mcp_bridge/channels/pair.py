"""A connection in this process: for what does not go the short way, the SDK's two ends of one, made when used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio.abc
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.server import Server
from mcp.server.runner import modern_on_request
from mcp.shared.direct_dispatcher import DIRECT_TRANSPORT_KIND, DirectDispatcher
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext

_DIRECT = TransportContext(kind=DIRECT_TRANSPORT_KIND, can_send_request=True)


class Pair:
    """The dispatcher of a session with a server object. It needs no task."""

    def __init__(self, server: Server[Any], lifespan: Any) -> None:
        self._server = server
        self._lifespan = lifespan
        self._session: ClientSession | None = None
        self._made: tuple[_End, _End] | None = None
        self.is_closed = False
        self._last_id = 0

    def attach(self, session: ClientSession, group: anyio.abc.TaskGroup | None) -> None:  # noqa: ARG002 - see above
        """See `Attached`."""
        self._session = session

    def close(self) -> None:
        """See `Attached`."""
        self.is_closed = True
        for end in self._made or ():
            end.close()

    def next_id(self) -> int:
        """The number of the next request, counted together with those of the SDK's way."""
        if self._made is None:
            self._last_id += 1
            return self._last_id
        self._made[1]._next_id += 1
        return self._made[1]._next_id

    def require_open(self) -> None:
        if self.is_closed:
            raise MCPError(code=types.CONNECTION_CLOSED, message="Connection closed")

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """See `Dispatcher`."""
        return await self._ends()[0].send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """See `Dispatcher`."""
        await self._ends()[0].notify(method, params, opts)

    async def run(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("attached, not run")

    async def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """A notification from the server to the session."""
        await self._ends()[0]._dispatch_notify(method, params)

    def _ends(self) -> tuple[_End, _End]:
        if self._made is None:
            client, server = _End(_DIRECT), _End(_DIRECT)
            client.connect_to(server)
            server.connect_to(client)
            server._next_id = self._last_id
            server.start(modern_on_request(self._server, self._lifespan), _drop, None)
            if self._session is not None:
                session = self._session
                client.start(session._on_request, session._on_notify, session._intercept_notification)
            if self.is_closed:
                client.close()
                server.close()
            self._made = client, server
        return self._made


class _End(DirectDispatcher):
    """A `DirectDispatcher` that is started and closed by a call, not run by a task. So nobody ever waits for either,
    and the events that would be waited for need not be."""

    def __init__(self, transport: TransportContext) -> None:
        self._transport_ctx = transport
        self._raise_handler_exceptions = False
        self._peer = None
        self._on_request = None
        self._on_notify = None
        self._on_notify_intercept = None
        self._next_id = 0
        self._in_flight_ids = set()
        self._running = False
        self._closed = False

    def start(self, on_request: OnRequest, on_notify: OnNotify, intercept: OnNotifyIntercept | None) -> None:
        self._on_request, self._on_notify, self._on_notify_intercept = on_request, on_notify, intercept
        self._running = True

    def close(self) -> None:
        self._running, self._closed = False, True

    async def run(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("started, not run")

    async def _wait_ready(self) -> None:
        if self._closed or not self._running:
            raise MCPError(code=types.CONNECTION_CLOSED, message="Connection closed")


async def _drop(*_: Any) -> None:
    """The modern protocol has no notifications from a client to a server."""
