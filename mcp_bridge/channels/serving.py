"""What a handler of a server in this process is given with a request: the objects that the SDK's runner would make.

All sessions of one kind say the same of themselves with every request, so what follows from that is made once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.session import ServerSession
from mcp.shared.direct_dispatcher import DIRECT_TRANSPORT_KIND
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .pair import Pair

logger = logging.getLogger(__name__)

_NO_REQUESTS = TransportContext(kind=DIRECT_TRANSPORT_KIND, can_send_request=False)
_new, _set = object.__new__, object.__setattr__
_CALL_FIELDS = types.CallToolRequestParams(name="", arguments={}, _meta={}).__dict__


def call_params(params: Mapping[str, Any]) -> types.CallToolRequestParams:
    """What validation makes of a plain call's parameters: nothing in them can be wrong.

    `params`: name, arguments and `_meta` alone, made of JSON's types.
    """
    given = {"name": params["name"], "arguments": params["arguments"].copy(), "meta": params["_meta"].copy()}
    made: types.CallToolRequestParams = _new(types.CallToolRequestParams)
    _set(made, "__dict__", {**_CALL_FIELDS, **given})
    _set(made, "__pydantic_fields_set__", set(given))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


class Caller:
    """A client, as its requests tell a server of it."""

    def __init__(self, connection: Connection, meta: dict[str, Any]) -> None:
        """`connection`: made of `meta`, what every request says; to be copied, not used."""
        self.connection = connection
        self.log_is_request_scoped = connection.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.allowed_log_levels = allowed_log_levels(connection.protocol_version, meta)


class RequestConnection(Connection):
    """A connection of one request, as `Connection.from_envelope` makes it, from one that was checked before."""

    def __init__(self, template: Connection) -> None:
        self.outbound = template.outbound
        self.protocol_version = template.protocol_version
        self.session_id = None
        self.client_capabilities = template.client_capabilities
        self._client_params = template.client_params
        self.state = {}
        self._stack: contextlib.AsyncExitStack | None = None

    @property
    def was_used(self) -> bool:
        return self._stack is not None

    @property
    def exit_stack(self) -> contextlib.AsyncExitStack:  # type: ignore[override]
        if self._stack is None:
            self._stack = contextlib.AsyncExitStack()
        return self._stack

    @property
    def initialized(self) -> anyio.Event:  # type: ignore[override]
        event = anyio.Event()
        event.set()
        return event


class RequestSession(ServerSession):
    """The session of one request. Its connection is made when a handler first looks at it, which few do."""

    _made: RequestConnection | None = None

    def __init__(self, request: RequestContext, caller: Caller) -> None:
        self._request_outbound = request
        self._caller = caller
        self._log_is_request_scoped = caller.log_is_request_scoped
        self._allowed_log_levels = caller.allowed_log_levels

    @property
    def _connection(self) -> RequestConnection:  # type: ignore[override]
        if self._made is None:
            self._made = RequestConnection(self._caller.connection)
        return self._made

    @property
    def used_connection(self) -> RequestConnection | None:
        """The connection, where there is something to clean up at its end."""
        return self._made if self._made is not None and self._made.was_used else None


class RequestContext:
    """What a handler can do towards the client while it works. In the modern protocol: tell, not ask."""

    transport = _NO_REQUESTS
    can_send_request = False
    message_metadata = None
    _cancel_requested: anyio.Event | None = None

    def __init__(self, pair: Pair, progress: ProgressFnT | None) -> None:
        self.request_id = pair.next_id()
        self._pair = pair
        self._progress = progress

    @property
    def cancel_requested(self) -> anyio.Event:
        if self._cancel_requested is None:
            self._cancel_requested = anyio.Event()
        return self._cancel_requested

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,  # noqa: ARG002
        opts: CallOptions | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,  # noqa: ARG002
    ) -> None:
        await self._pair.tell(method, params)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._progress is not None:
            try:
                await self._progress(progress, total, message)
            except Exception:
                logger.exception("progress callback raised")
