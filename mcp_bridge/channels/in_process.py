"""A session with a server object of this process: a call runs the server's handler in the caller's task.

The SDK's automatic mode does the same with the modern revision of the protocol, through eight conversions between
records and JSON. A plain call and a plain result come out of those unchanged, so here they take none.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.client.session import (
    _clamp_inbound_ttl,
    _default_elicitation_callback,
    _default_list_roots_callback,
    _default_sampling_callback,
    _make_modern_stamp,
)
from mcp.server import Server
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import ServerRunner, _dump_result, aclose_shielded
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from pydantic import ValidationError

from ..event_loop import own_checkpoint
from ..toolsets.plain import NotPlain, is_plain, plain_copy
from .pair import Pair
from .serving import Caller, RequestContext, RequestSession, call_params
from .session import CallAnswer, LightSession, PlainAnswer
from .sharing import Adopted, Listing, Shared
from .tracing import is_traced

logger = logging.getLogger(__name__)

_CALL, _LIST = "tools/call", "tools/list"
_PARAMS = {_CALL: types.CallToolRequestParams, _LIST: types.PaginatedRequestParams}
_KNOWN_MIDDLEWARE = frozenset({OpenTelemetryMiddleware, RequestStateBoundary})
"""What the SDK itself puts before handlers: the one does nothing untraced, the other nothing to a final result."""
_ADOPTED = (
    "_discover_result",
    "_discover_server_info",
    "_initialize_result",
    "_negotiated_version",
    "_active_claims",
    "_call_tool_adapter",
)
"""What `ClientSession.adopt` sets, but for the stamp."""


class InProcessSession(LightSession):
    """A light session with a server object."""

    _answers_are_plain = True
    _own_stamp: Any = None

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
        super().__init__(dispatcher=pair, attached=pair, shared=shared, **options)
        self._pair = pair
        self._server = server
        self._lifespan = lifespan
        self._on_discovered = on_discovered
        self._checkpoint = own_checkpoint()
        self._envelope: dict[str, Any] = {}
        self._caller: Caller | None = None
        self._server_info, self._info_is_flat = shared.server_info(server)

    def open_here(self) -> None:
        """Open the session without entering it. `close_here` ends it."""
        self._pair.attach(self, None)

    def close_here(self) -> None:
        """End the connection: calls from here on are refused."""
        self._pair.close()

    def adopt(self, result: types.InitializeResult | types.DiscoverResult) -> None:
        """As `ClientSession.adopt`; also keeps what every request of this session says of the client.

        What sessions before this one made of the same result is taken over.
        """
        options = (self._client_info, self._log_level, self._sampling_capabilities, *self._has_callbacks())
        known = self._shared.adopted
        if known is not None and known.result is result and known.options == options:
            for name in _ADOPTED:
                setattr(self, name, known.fields[name])
            self._own_stamp = None
            self._envelope, self._caller = plain_copy(known.envelope), known.caller
            return
        super().adopt(result)
        self._caller = None
        if not isinstance(result, types.DiscoverResult):
            return
        if self._on_discovered is not None:
            self._on_discovered(result)
        data: dict[str, Any] = {"method": _LIST, "params": {}}
        self._stamp(data, {})
        self._envelope = data["params"]["_meta"]
        version = self._envelope[types.PROTOCOL_VERSION_META_KEY]
        info, capabilities = types.CLIENT_INFO_META_KEY, types.CLIENT_CAPABILITIES_META_KEY
        connection = Connection.from_envelope(version, self._envelope[info], self._envelope[capabilities])
        self._caller = Caller(connection, self._envelope)
        if not (self._result_claims or self._notification_bindings) and is_plain(self._envelope):
            fields = {name: getattr(self, name) for name in _ADOPTED}
            self._shared.adopted = Adopted(result, options, fields, plain_copy(self._envelope), self._caller)

    def _has_callbacks(self) -> tuple[bool, bool, bool]:
        """What the session says of itself because somebody answers."""
        return (
            self._sampling_callback is not _default_sampling_callback,
            self._elicitation_callback is not _default_elicitation_callback,
            self._list_roots_callback is not _default_list_roots_callback,
        )

    @property
    def _stamp(self) -> Any:
        """What the SDK writes on every request that goes its way; in a session that took over the rest, made late."""
        if self._own_stamp is None:
            known = self._envelope
            self._own_stamp = _make_modern_stamp(
                known[types.PROTOCOL_VERSION_META_KEY],
                known[types.CLIENT_INFO_META_KEY],
                known[types.CLIENT_CAPABILITIES_META_KEY],
                self._resolve_param_headers,
                log_level=self._log_level,
            )
        return self._own_stamp

    @_stamp.setter
    def _stamp(self, stamp: Any) -> None:
        self._own_stamp = stamp

    async def call_tool(self, *arguments: Any, **options: Any) -> Any:
        """As `ClientSession.call_tool`. Others get their turn before: a handler need not give them one."""
        # Here and not right before the handler: what every call makes on its way would be waiting for its turn too, and
        # the garbage collector goes through all that waits. `call_plain` leaves it to its caller for the same reason.
        await self._checkpoint()
        return await super().call_tool(*arguments, **options)

    async def list_tools(self, *, params: types.PaginatedRequestParams | None = None) -> types.ListToolsResult:
        """As `ClientSession.list_tools`. A listing that is equal to the last one is not read again."""
        if (params is not None and (params.cursor is not None or params.meta)) or not self._is_plain_server(_LIST):
            return await super().list_tools(params=params)
        kept = self._shared.listing
        try:
            given, context = await self._listed()
            if isinstance(given, types.ErrorData):
                raise MCPError.from_error_data(given)
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

    def _is_plain_server(self, method: str) -> bool:
        """Whether nothing of the user's stands between a request and its handler."""
        server = self._server
        entry = server.get_request_handler(method)
        if entry is None or entry.params_type is not _PARAMS[method] or self._caller is None:
            return False
        for middleware in server.middleware:
            if type(middleware) not in _KNOWN_MIDDLEWARE:
                return False
        return method not in server.cache_hints and not is_traced()

    async def _call(self, params: dict[str, Any], progress: ProgressFnT | None) -> PlainAnswer | CallAnswer:
        # The caller's own entries have no key that is in the envelope.
        own = params.get("_meta")
        params["_meta"] = self._envelope.copy() if own is None else {**self._envelope, **own}
        try:
            if self._pair.is_closed:
                self._pair.require_open()
            typed = call_params(params)
            session, context = self._request(_CALL, params, typed, progress)
            try:
                given = await self._handler(_CALL)(context, typed)
            finally:
                if session.used_connection is not None:
                    await aclose_shielded(session.used_connection)
            plain = self._plain_result(given)
            if plain is not None:
                return plain
            if isinstance(given, types.ErrorData):
                raise MCPError.from_error_data(given)
            sent = await self._as_sent(given, context)
        except Exception as problem:
            raise _on_the_wire(problem) from _shown_cause(problem)
        received = self._received(_CALL, sent)
        answer: CallAnswer = self._call_tool_adapter.validate_python(received, by_name=False)  # type: ignore[assignment]
        return answer

    async def _listed(self) -> tuple[Any, ServerRequestContext[Any, Any]]:
        """What the server's handler gives as its tools."""
        self._pair.require_open()
        params = {"_meta": dict(self._envelope)}
        typed = types.PaginatedRequestParams.model_validate(params, by_name=False)
        session, context = self._request(_LIST, params, typed, None)
        try:
            return await self._handler(_LIST)(context, typed), context
        finally:
            if session.used_connection is not None:
                await aclose_shielded(session.used_connection)

    def _handler(self, method: str) -> Callable[..., Awaitable[Any]]:
        entry = self._server.get_request_handler(method)
        assert entry is not None
        return entry.handler

    def _request(
        self, method: str, params: dict[str, Any], typed: types.RequestParams, progress: ProgressFnT | None
    ) -> tuple[RequestSession, ServerRequestContext[Any, Any]]:
        """What a handler gets beside its parameters, as `ServerRunner` makes it."""
        caller = self._caller
        assert caller is not None
        request = RequestContext(self._pair, progress)
        session = RequestSession(request, caller)
        context: ServerRequestContext[Any, Any] = ServerRequestContext(
            session=session,
            lifespan_context=self._lifespan,
            method=method,
            params=params,
            request_id=request.request_id,
            meta=typed.meta,
            protocol_version=caller.connection.protocol_version,
        )
        return session, context

    def _plain_result(self, given: Any) -> dict[str, Any] | None:
        """The wire form of a result of plain text and JSON, or `None` where that takes a conversion."""
        if type(given) is not types.CallToolResult:
            return None
        # By its dict, which is three times as quick as by its attributes.
        fields = given.__dict__
        content, structured, is_error = fields["content"], fields["structured_content"], fields["is_error"]
        if fields["meta"] is not None or fields["result_type"] != "complete":
            return None
        if type(is_error) is not bool or type(content) is not list:
            return None
        try:
            wire = {
                "content": [_plain_block(block) for block in content],
                "isError": is_error,
                "resultType": "complete",
            }
            if structured is not None:
                wire["structuredContent"] = plain_copy(structured)
        except NotPlain:
            return None
        return wire

    def _as_record(self, answer: PlainAnswer) -> types.CallToolResult:
        # What the server says of itself on every answer is left out until somebody looks.
        info = dict(self._server_info) if self._info_is_flat else copy.deepcopy(self._server_info)
        return super()._as_record({**answer, "_meta": {types.SERVER_INFO_META_KEY: info}})

    async def _as_sent(self, given: Any, context: ServerRequestContext[Any, Any]) -> dict[str, Any]:
        """The server's half of the way out, as the SDK goes it."""
        assert self._caller is not None
        runner = ServerRunner(self._server, self._caller.connection, self._lifespan)
        sent = runner._serialize(context.method, context.protocol_version, given)

        async def answered(_: ServerRequestContext[Any, Any]) -> dict[str, Any]:
            return sent

        for middleware in reversed(self._server.middleware):
            if type(middleware) is RequestStateBoundary:
                sent = _dump_result(await middleware(context, answered))
        return sent

    def _received(self, method: str, sent: dict[str, Any]) -> dict[str, Any]:
        """The client's half of the way back, as `ClientSession.send_request` goes it."""
        assert self._caller is not None
        _clamp_inbound_ttl(sent)
        with contextlib.suppress(KeyError):
            methods.validate_server_result(method, self._caller.connection.protocol_version, sent)
        return sent


def _plain_block(block: Any) -> dict[str, Any]:
    if type(block) is not types.TextContent:
        raise NotPlain
    fields = block.__dict__
    text = fields["text"]
    if fields["annotations"] is not None or fields["meta"] is not None or fields["type"] != "text":
        raise NotPlain
    if type(text) is not str:
        raise NotPlain
    return {"type": "text", "text": text if text.isascii() else plain_copy(text)}


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
