"""A session with a server object of this process: a call runs the server's handler in the caller's task.

The SDK's automatic mode does the same with the modern revision of the protocol, through eight conversions between
records and JSON. A plain call and a plain result come out of those unchanged, so here they take none.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import mcp_types as types
from mcp.client.session import _clamp_inbound_ttl
from mcp.server import Server
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import ServerRunner, _dump_result, aclose_shielded, modern_on_request
from mcp.server.session import ServerSession
from mcp.shared.direct_dispatcher import DIRECT_TRANSPORT_KIND, DirectDispatcher
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types import methods
from pydantic import ValidationError

from ..event_loop import on_asyncio
from ..toolsets.plain import NotPlain, plain_copy
from .session import CallAnswer, LightSession, PlainAnswer
from .sharing import Listing, Shared
from .tracing import is_traced

logger = logging.getLogger(__name__)

_CALL, _LIST = "tools/call", "tools/list"
_PARAMS = {_CALL: types.CallToolRequestParams, _LIST: types.PaginatedRequestParams}
_KNOWN_MIDDLEWARE = frozenset({OpenTelemetryMiddleware, RequestStateBoundary})
"""What the SDK itself puts before handlers: the one does nothing untraced, the other nothing to a final result."""

_DIRECT = TransportContext(kind=DIRECT_TRANSPORT_KIND, can_send_request=True)
_NO_REQUESTS = TransportContext(kind=DIRECT_TRANSPORT_KIND, can_send_request=False)


class Pair:
    """The two ends of a connection in this process, ready without a task for either."""

    def __init__(self, server: Server[Any], lifespan: Any) -> None:
        self.client, self.server = _End(_DIRECT), _End(_DIRECT)
        self.client.connect_to(self.server)
        self.server.connect_to(self.client)
        self.server.start(modern_on_request(server, lifespan), _drop, None)

    def attach(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        intercept: OnNotifyIntercept,
        group: anyio.abc.TaskGroup,  # noqa: ARG002 - all work is done in the callers' tasks
    ) -> None:
        self.client.start(on_request, on_notify, intercept)

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def next_id(self) -> int:
        """The number of the next request, counted together with those of the SDK's way."""
        self.server._next_id += 1
        return self.server._next_id

    def require_open(self) -> None:
        if self.client._closed or self.server._closed:
            raise MCPError(code=types.CONNECTION_CLOSED, message="Connection closed")


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


class InProcessSession(LightSession):
    """A light session with a server object."""

    def __init__(
        self,
        *,
        server: Server[Any],
        lifespan: Any,
        pair: Pair,
        shared: Shared,
        on_discovered: Callable[[types.DiscoverResult], None] | None,
        **options: Any,
    ) -> None:
        super().__init__(dispatcher=pair.client, attached=pair, shared=shared, **options)
        self._pair = pair
        self._server = server
        self._lifespan = lifespan
        self._on_discovered = on_discovered
        # There it is the same as anyio's checkpoint, which finds out for each what runs the task.
        self._is_on_asyncio = on_asyncio()
        self._envelope: dict[str, Any] = {}
        self._template: Connection | None = None
        self._server_info, self._info_is_flat = shared.server_info(server)

    def adopt(self, result: types.InitializeResult | types.DiscoverResult) -> None:
        """As `ClientSession.adopt`; also keeps what every request of this session says of the client."""
        super().adopt(result)
        self._template = None
        if not isinstance(result, types.DiscoverResult):
            return
        if self._on_discovered is not None:
            self._on_discovered(result)
        data: dict[str, Any] = {"method": _LIST, "params": {}}
        self._stamp(data, {})
        self._envelope = data["params"]["_meta"]
        self._template = self._shared.template(self._envelope)

    async def list_tools(self, *, params: types.PaginatedRequestParams | None = None) -> types.ListToolsResult:
        """As `ClientSession.list_tools`. A listing that is equal to the last one is not read again."""
        if (params is not None and (params.cursor is not None or params.meta)) or not self._is_plain_server(_LIST):
            return await super().list_tools(params=params)
        kept = self._shared.listing
        try:
            given, context = await self._handled(_LIST, {"_meta": dict(self._envelope)}, None)
            if kept is not None and isinstance(given, types.ListToolsResult) and given == kept.given:
                return self._adopt_listing(kept)
            sent = await self._as_sent(given, context)
        except Exception as problem:
            raise _on_the_wire(problem) from _shown_cause(problem)
        read = types.ListToolsResult.model_validate(self._received(_LIST, sent), by_name=False)
        complete = read.next_cursor is None
        read = self._absorb_tool_listing(read, complete=complete)
        if complete and isinstance(given, types.ListToolsResult):
            # A copy: the handler may hold on to its record and change it.
            self._quick = {}
            self._shared.listing = Listing(
                given.model_copy(deep=True),
                read,
                dict(self._x_mcp_header_maps),
                dict(self._tool_output_schemas),
                self._quick,
            )
        return read

    def _adopt_listing(self, listing: Listing) -> types.ListToolsResult:
        self._x_mcp_header_maps = dict(listing.header_maps)
        self._tool_output_schemas = dict(listing.output_schemas)
        self._tool_output_validators = {}
        self._quick = listing.quick
        # The tools are the same records for all sessions, the list is each one's own.
        return listing.read.model_copy(update={"tools": list(listing.read.tools)})

    def _can_be_short(self) -> bool:
        return self._is_plain_server(_CALL) and super()._can_be_short()

    def _is_plain_server(self, method: str) -> bool:
        """Whether nothing of the user's stands between a request and its handler."""
        server = self._server
        entry = server.get_request_handler(method)
        if entry is None or entry.params_type is not _PARAMS[method] or self._template is None:
            return False
        for one in server.middleware:
            if type(one) not in _KNOWN_MIDDLEWARE:
                return False
        return method not in server.cache_hints and not is_traced()

    async def _call(self, params: dict[str, Any], progress: ProgressFnT | None) -> PlainAnswer | CallAnswer:
        # The caller's own entries have no key that is in the envelope.
        params["_meta"] = {**self._envelope, **params.get("_meta", {})}
        try:
            given, context = await self._handled(_CALL, params, progress)
            plain = self._plain_result(given)
            sent = await self._as_sent(given, context) if plain is None else plain
        except Exception as problem:
            raise _on_the_wire(problem) from _shown_cause(problem)
        if plain is not None:
            return plain
        received = self._received(_CALL, sent)
        answer: CallAnswer = self._call_tool_adapter.validate_python(received, by_name=False)  # type: ignore[assignment]
        return answer

    async def _handled(
        self, method: str, params: dict[str, Any], progress: ProgressFnT | None
    ) -> tuple[Any, ServerRequestContext[Any, Any]]:
        """What the server's handler gives. The steps are those of `ServerRunner`, without middleware."""
        pair, template = self._pair, self._template
        entry = self._server.get_request_handler(method)
        assert template is not None
        assert entry is not None
        pair.require_open()
        # Before the call: others get their turn, and one cancelled here has not called anything.
        await (asyncio.sleep(0) if self._is_on_asyncio else anyio.lowlevel.checkpoint())
        connection = _RequestConnection(template)
        typed = entry.params_type.model_validate(params, by_name=False)
        meta = typed.meta  # type: ignore[attr-defined]
        request = _RequestContext(pair, progress)
        context: ServerRequestContext[Any, Any] = ServerRequestContext(
            session=ServerSession(request, connection, request_meta=meta),
            lifespan_context=self._lifespan,
            method=method,
            params=params,
            request_id=request.request_id,
            meta=meta,
            protocol_version=connection.protocol_version,
        )
        try:
            result = await entry.handler(context, typed)
        finally:
            if connection.was_used:
                await aclose_shielded(connection)
        if isinstance(result, types.ErrorData):
            raise MCPError.from_error_data(result)
        return result, context

    def _plain_result(self, given: Any) -> dict[str, Any] | None:
        """The wire form of a result of plain text and JSON, or `None` where that takes a conversion."""
        if type(given) is not types.CallToolResult or given.meta is not None or given.result_type != "complete":
            return None
        if type(given.is_error) is not bool or type(given.content) is not list:
            return None
        try:
            content = [{"type": "text", "text": _plain_text(block)} for block in given.content]
            wire = {"content": content, "isError": given.is_error, "resultType": "complete"}
            if given.structured_content is not None:
                wire["structuredContent"] = plain_copy(given.structured_content)
        except NotPlain:
            return None
        info = dict(self._server_info) if self._info_is_flat else copy.deepcopy(self._server_info)
        wire["_meta"] = {types.SERVER_INFO_META_KEY: info}
        return wire

    async def _as_sent(self, given: Any, context: ServerRequestContext[Any, Any]) -> dict[str, Any]:
        """The server's half of the way out, as the SDK goes it."""
        assert self._template is not None
        runner = ServerRunner(self._server, self._template, self._lifespan)
        sent = runner._serialize(context.method, context.protocol_version, given)

        async def answered(_: ServerRequestContext[Any, Any]) -> dict[str, Any]:
            return sent

        for middleware in reversed(self._server.middleware):
            if type(middleware) is RequestStateBoundary:
                sent = _dump_result(await middleware(context, answered))
        return sent

    def _received(self, method: str, sent: dict[str, Any]) -> dict[str, Any]:
        """The client's half of the way back, as `ClientSession.send_request` goes it."""
        assert self._template is not None
        _clamp_inbound_ttl(sent)
        with contextlib.suppress(KeyError):
            methods.validate_server_result(method, self._template.protocol_version, sent)
        return sent


class _RequestConnection(Connection):
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


class _RequestContext:
    """What a handler can do towards the client while it works. In the modern protocol: tell, not ask."""

    transport = _NO_REQUESTS
    can_send_request = False
    message_metadata = None

    def __init__(self, pair: Pair, progress: ProgressFnT | None) -> None:
        self.request_id = pair.next_id()
        self._pair = pair
        self._progress = progress
        self._cancel_requested: anyio.Event | None = None

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
        await self._pair.client._dispatch_notify(method, params)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._progress is not None:
            try:
                await self._progress(progress, total, message)
            except Exception:
                logger.exception("progress callback raised")


def _plain_text(block: Any) -> str:
    if type(block) is not types.TextContent or block.annotations is not None or block.meta is not None:
        raise NotPlain
    if block.type != "text" or type(block.text) is not str:
        raise NotPlain
    return plain_copy(block.text)  # type: ignore[no-any-return]


def _on_the_wire(problem: Exception) -> MCPError:
    """What a client is told of an exception in a server, as `DirectDispatcher` has it."""
    if isinstance(problem, MCPError):
        return problem
    if isinstance(problem, ValidationError):
        return MCPError(code=types.INVALID_PARAMS, message="Invalid request parameters", data="")
    logger.error("request handler raised", exc_info=problem)
    return MCPError(code=types.INTERNAL_ERROR, message="Internal server error")


def _shown_cause(problem: Exception) -> BaseException | None:
    if isinstance(problem, MCPError):
        return problem.__cause__
    return problem if isinstance(problem, ValidationError) else None
