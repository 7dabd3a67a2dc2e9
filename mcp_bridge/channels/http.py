"""A session over streamable HTTP: a request is one POST, sent and read in the task of whoever calls.

What is sent, and how an answer is read (statuses, redirects, JSON, server-sent events, resumption), is the SDK's own
transport. Left out are the queues and tasks through which the SDK's client takes every message to it and back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.lowlevel
import httpx2
import mcp_types as types
from mcp.client.session import ClientSession, _clamp_inbound_ttl, _later_revision_fields
from mcp.client.streamable_http import RequestContext, StreamableHTTPTransport
from mcp.shared._otel import inject_trace_context, otel_span
from mcp.shared._request_clock import request_clock
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnRequest,
    ProgressFnT,
    coerce_request_id,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.jsonrpc_dispatcher import _ABANDON_WRITE_TIMEOUT, JSONRPCDispatcher, _Pending, _plan_outbound
from mcp.shared.message import ClientMessageMetadata, MessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.trace import SpanKind, StatusCode
from pydantic_core import PydanticSerializationError, from_json

from .session import CallAnswer, LightSession, PlainAnswer
from .sharing import Shared
from .tracing import is_traced

if TYPE_CHECKING:
    from .engine import QuickPost

logger = logging.getLogger(__name__)

_CALL = "tools/call"
Outcome = dict[str, Any] | types.ErrorData


class HttpDispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher, its messages handed to the SDK's transport and back without queues between them.

    An error of the network comes out of the request that met it, as httpx2 raises it; other requests go on.
    """

    def __init__(
        self, url: str, http: httpx2.AsyncClient, *, max_sse_event_size: int | None, quick: QuickPost | None = None
    ) -> None:
        """`quick`: sends plain requests where it can; `http` sends all others."""
        # Without streams: what reads and writes them is overridden below.
        super().__init__(None, None)  # type: ignore[arg-type]
        self._transport = StreamableHTTPTransport(url, max_sse_event_size=max_sse_event_size)
        self._http = http
        self._quick = quick
        self._on_request: OnRequest | None = None
        self._on_notify: OnNotify | None = None

    def attach(self, session: ClientSession, group: anyio.abc.TaskGroup) -> None:
        """See `Attached`."""
        self._on_request, self._on_notify = session._on_request, session._on_notify
        self._on_notify_intercept = session._intercept_notification
        self._tg = group
        self._running = True

    def close(self) -> None:
        self._running, self._closed = False, True
        self._fan_out_closed()

    async def end_session(self) -> None:
        """Tell a server that keeps something for this session that it is over."""
        if self._transport.session_id is not None:
            await self._transport.terminate_session(self._http)

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: types.RequestId | None = None,
    ) -> dict[str, Any]:
        """As `JSONRPCDispatcher.send_raw_request`. Also raises `httpx2.HTTPError`."""
        if self._closed:
            raise MCPError(code=types.CONNECTION_CLOSED, message="Connection closed")
        if not self._running:
            raise RuntimeError("HttpDispatcher.send_raw_request called before attach()")
        opts = opts or {}
        request_id, key = self._request_id(opts.get("request_id"))
        out = dict(params) if params is not None else {}
        meta = dict(out.get("_meta") or {})
        on_progress = opts.get("on_progress")
        if on_progress is not None:
            meta["progressToken"] = request_id
        slot = _Slot()
        self._pending[key] = _Pending(slot, slot, on_progress)  # type: ignore[arg-type]
        plan = _plan_outbound(_related_request_id, opts)
        incoming = _Incoming(self, slot, key)
        try:
            with slot.waiting, contextlib.ExitStack() as around:
                if is_traced():
                    around.enter_context(_traced(method, out, request_id, meta, slot))
                if opts.get("timeout") is not None:
                    around.enter_context(request_clock(opts["timeout"])).start()
                if meta:
                    out["_meta"] = meta
                else:
                    out.pop("_meta", None)
                await self._ask(method, request_id, out, plan.metadata, incoming)
        except TimeoutError:
            if plan.cancel_on_abandon:
                await self._abandon(request_id, f"timed out after {opts.get('timeout')}s", shield=False)
            raise MCPError(code=types.REQUEST_TIMEOUT, message=f"Request {method!r} timed out") from None
        except anyio.get_cancelled_exc_class():
            if plan.cancel_on_abandon:
                await self._abandon(request_id, "caller cancelled", shield=True)
            raise
        finally:
            self._pending.pop(key, None)
        outcome = slot.outcome
        if isinstance(outcome, types.ErrorData):
            raise MCPError(code=outcome.code, message=outcome.message, data=outcome.data)
        if outcome is None:
            raise MCPError(
                code=types.INVALID_REQUEST, message="The server sent something else than the answer to this request"
            )
        return outcome

    def _request_id(self, supplied: types.RequestId | None) -> tuple[types.RequestId, types.RequestId]:
        if supplied is None:
            minted = self._allocate_id()
            while minted in self._pending:
                minted = self._allocate_id()
            return minted, minted
        key = coerce_request_id(supplied)
        if key in self._pending:
            raise ValueError(f"request id {supplied!r} is already in flight")
        return supplied, key

    async def _abandon(self, request_id: types.RequestId, reason: str, *, shield: bool) -> None:
        # In the modern protocol the end of the POST has said it; the transport swallows the message then.
        with anyio.move_on_after(_ABANDON_WRITE_TIMEOUT, shield=shield):
            await self._cancel_outbound(request_id, reason, None)

    async def _write(self, message: types.JSONRPCMessage, metadata: MessageMetadata = None) -> None:
        try:
            await self._exchange(SessionMessage(message, metadata), _Incoming(self, None, None), self._http)
        except httpx2.HTTPError as error:
            # What the SDK's dispatcher takes for a connection that cannot carry this message.
            raise anyio.BrokenResourceError from error

    async def _ask(
        self,
        method: str,
        request_id: types.RequestId,
        params: dict[str, Any],
        metadata: MessageMetadata,
        incoming: _Incoming,
    ) -> None:
        try:
            await self._post(method, request_id, params, metadata, incoming)
        except (UnicodeEncodeError, PydanticSerializationError) as error:
            # The SDK's client would not survive it. What cannot be written was the caller's mistake.
            message = f"the parameters of {method} hold text that is not Unicode (a lone surrogate); nothing was sent"
            raise MCPError(code=types.INVALID_PARAMS, message=message) from error

    async def _post(
        self,
        method: str,
        request_id: types.RequestId,
        params: dict[str, Any],
        metadata: MessageMetadata,
        incoming: _Incoming,
    ) -> None:
        http: Any = self._http
        hints = metadata if isinstance(metadata, ClientMessageMetadata) else None
        fields: dict[str, Any] = {"params": params} if params else {}
        if (
            self._quick is not None
            and method not in ("initialize", "tools/list")
            and not (hints and hints.resumption_token)
        ):
            self._keep_version(hints)
            headers = self._transport._prepare_headers() | dict((hints.headers if hints else None) or {})
            body = {"jsonrpc": "2.0", "id": request_id, "method": method, **fields}
            answer = await self._quick.post(body, headers)
            if isinstance(answer, bytes) and incoming.take(answer):
                return
            if isinstance(answer, bytes):
                answer = httpx2.Response(200, headers={"content-type": "application/json"}, content=answer)
            if answer is not None:
                http = _Answered(http, answer)
        message = types.JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, **fields)
        await self._exchange(SessionMessage(message, metadata), incoming, http)

    async def _exchange(self, sent: SessionMessage, incoming: _Incoming, http: Any) -> None:
        """One message to the server, and all that it sends back on the same response."""
        transport, message = self._transport, sent.message
        if transport._consume_modern_cancellation(sent):
            return
        hints = sent.metadata if isinstance(sent.metadata, ClientMessageMetadata) else None
        writer: Any = incoming
        if transport._is_initialized_notification(message):
            assert self._tg is not None
            listening: Any = _Incoming(self, None, None)
            self._tg.start_soon(transport.handle_get_stream, self._http, listening)
        if transport._is_initialization_request(message):
            transport._protocol_version_header = None
        else:
            self._keep_version(hints)
        context = RequestContext(http, transport.session_id, sent, hints, writer)
        if hints is not None and hints.resumption_token:
            await transport._handle_resumption_request(context)
        else:
            await transport._handle_post_request(context)

    def _keep_version(self, hints: ClientMessageMetadata | None) -> None:
        version = (hints.headers or {}).get(MCP_PROTOCOL_VERSION_HEADER) if hints is not None else None
        if version is not None:
            self._transport._protocol_version_header = version

    async def received(self, item: SessionMessage | Exception) -> None:
        """Hand on what is no answer to the request on whose response it came."""
        assert self._on_request is not None
        assert self._on_notify is not None
        await self._dispatch(item, self._on_request, self._on_notify, None)
        # What came before the answer is heard before it: the tasks just started get their turn.
        await anyio.lowlevel.checkpoint()


class _Slot:
    """Where the one outcome of a request is left. In the SDK's dispatcher a stream with a buffer of one."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.waiting = anyio.CancelScope()

    def send_nowait(self, outcome: Outcome) -> None:
        """From another response than the request's own, or at the end of the session: wakes the caller."""
        if self.outcome is not None:
            raise anyio.WouldBlock
        self.outcome = outcome
        self.waiting.cancel()


class _Incoming:
    """Takes what the SDK's transport reads off one response, in place of the stream that it would write to."""

    def __init__(self, dispatcher: HttpDispatcher, slot: _Slot | None, key: types.RequestId | None) -> None:
        self._dispatcher = dispatcher
        self._slot = slot
        self._key = key

    def take(self, body: bytes) -> bool:
        """Take a body that is the plain result of the request; false where it is anything else."""
        try:
            found = from_json(body)
        except ValueError:
            return False
        if type(found) is not dict or found.keys() != _RESULT_KEYS or found["jsonrpc"] != "2.0":
            return False
        given, result = found["id"], found["result"]
        if self._slot is None or type(given) is not type(self._key) or given != self._key or type(result) is not dict:
            return False
        self._slot.outcome = result
        return True

    async def send(self, item: SessionMessage | Exception) -> None:
        message = item.message if isinstance(item, SessionMessage) else None
        slot = self._slot
        if (
            slot is not None
            and isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
            and message.id is not None
            and coerce_request_id(message.id) == self._key
        ):
            if slot.outcome is None:
                slot.outcome = message.result if isinstance(message, types.JSONRPCResponse) else message.error
            return
        await self._dispatcher.received(item)


class _Answered:
    """Stands for the HTTP client towards the SDK's transport where the first response is there already."""

    def __init__(self, http: httpx2.AsyncClient, response: httpx2.Response) -> None:
        self._http = http
        self._response: httpx2.Response | None = response
        self.max_redirects = http.max_redirects

    def build_request(self, *arguments: Any, **options: Any) -> httpx2.Request:
        return self._http.build_request(*arguments, **options)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response, self._response = self._response, None
        if response is None:
            return await self._http.send(request, **options)
        response.request = request
        if response.has_redirect_location:
            response.next_request = self._http._build_redirect_request(request, response)
        return response


@contextlib.contextmanager
def _traced(
    method: str, params: dict[str, Any], request_id: types.RequestId, meta: dict[str, Any], slot: _Slot
) -> Iterator[None]:
    """The SDK's span around a request."""
    target = params.get("name")
    name = f"MCP send {method}{f' {target}' if isinstance(target, str) else ''}"
    attributes = {"mcp.method.name": method, "jsonrpc.request.id": str(request_id)}
    with otel_span(name, kind=SpanKind.CLIENT, attributes=attributes) as span:
        inject_trace_context(meta)
        yield
        if isinstance(slot.outcome, types.ErrorData):
            code = str(slot.outcome.code)
            span.set_attributes({"error.type": code, "rpc.response.status_code": code})
            span.set_status(StatusCode.ERROR, slot.outcome.message)


class HttpSession(LightSession):
    """A light session over streamable HTTP."""

    def __init__(self, *, dispatcher: HttpDispatcher, shared: Shared, **options: Any) -> None:
        super().__init__(dispatcher=dispatcher, attached=dispatcher, shared=shared, **options)
        self._http_dispatcher = dispatcher

    async def _call(self, params: dict[str, Any], progress: ProgressFnT | None) -> PlainAnswer | CallAnswer:
        data = {"method": _CALL, "params": params}
        opts: CallOptions = {}
        self._stamp(data, opts)
        if progress is not None:
            opts["on_progress"] = progress
        raw = await self._http_dispatcher.send_raw_request(_CALL, params, opts)
        version = self._negotiated_version
        assert version is not None
        if _is_plain_answer(raw, version):
            return raw
        return self._read(raw, version)

    def _read(self, raw: dict[str, Any], version: str) -> CallAnswer:
        """An answer of any form, as `ClientSession.send_request` reads it."""
        _clamp_inbound_ttl(raw)
        with contextlib.suppress(KeyError):
            methods.validate_server_result(_CALL, version, raw)
        foreign = _later_revision_fields(_CALL, version)
        kept = {key: value for key, value in raw.items() if key not in foreign}
        answer: CallAnswer = self._call_tool_adapter.validate_python(kept, by_name=False)  # type: ignore[assignment]
        return answer


def _is_plain_answer(raw: dict[str, Any], version: str) -> bool:
    """Whether an answer is one of text and structured content that every check of the SDK lets through unchanged."""
    if version not in MODERN_PROTOCOL_VERSIONS or raw.keys() - _PLAIN_KEYS or raw.get("resultType") != "complete":
        return False
    content, meta = raw.get("content"), raw.get("_meta")
    if type(content) is not list or type(raw.get("isError", False)) is not bool or type(meta) not in {dict, type(None)}:
        return False
    return all(
        type(block) is dict and block.keys() == _TEXT_KEYS and block["type"] == "text" and type(block["text"]) is str
        for block in content
    )


_RESULT_KEYS = frozenset({"jsonrpc", "id", "result"})
_PLAIN_KEYS = frozenset({"content", "structuredContent", "isError", "resultType", "_meta"})
_TEXT_KEYS = frozenset({"type", "text"})
