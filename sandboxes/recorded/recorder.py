"""A recorder between an MCP client and a real MCP server: to the client it is the server, to the server a client.

Tools, resources, subscriptions, prompts and completions are passed on as they are; calls of tools are written into the
cassette. What the server asks of its client meanwhile (sampling, elicitation, roots) is passed on, and the server is
told that of these it can ask which its client answers; so are its log, its progress and what it tells of changes.
Tools that the server wants called as tasks look like any other: the recorder waits for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp import Client
from mcp.client import ClientRequestContext, InputRequiredRoundsExceededError
from mcp.client.subscriptions import SubscriptionLost
from mcp.server.connection import allowed_log_levels
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY, event_to_notification
from pydantic import TypeAdapter

from mcp_bridge.control_tools import CONTROL_ENV, CONTROL_META, FAILURE_META, FORK_WORLD, OPEN_WORLD, WORLD_META
from mcp_bridge.errors import BridgeError, SourceError, ungrouped
from mcp_bridge.guard import choose, reason_against, with_users_word
from mcp_bridge.publishing.listener import listen, serve_app, stdio_streams
from mcp_bridge.publishing.server import IDLE_S
from mcp_bridge.publishing.translation import progress_of, tool_from_mcp
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.sessions.handlers import Handlers
from mcp_bridge.sessions.listing import from_mcp
from mcp_bridge.sessions.messages import is_closed
from mcp_bridge.sessions.protocol_version import is_handshake
from mcp_bridge.sessions.session import CannotOpen, Session, open_session
from mcp_bridge.sessions.tasks import TaskCalls, TaskInterrupted, wants_task
from mcp_bridge.sessions.transports import Transport
from mcp_bridge.sources.connecting import identify
from mcp_bridge.sources.specs import HttpSpec, ServerObjectSpec, ServerOptions, ServerSpec, StdioSpec

from .cassette import CassetteWriter
from .scrubber import Scrubber

_ASK_AGAIN_S = 0.25
ASKED = ("elicitation", "sampling", "roots")
"""What a server may ask for, as the capabilities of clients name it."""

_CHANGES = (
    types.ResourceUpdatedNotification,
    types.ResourceListChangedNotification,
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
)
"""What a server tells without being asked, up to 2025-11-25. Later revisions tell it in subscriptions."""


def answered_by(ctx: Any) -> frozenset[str]:
    """Which of `ASKED` the client of a request answers, by its capabilities."""
    told = ctx.session.client_capabilities
    return frozenset(name for name in ASKED if told is not None and getattr(told, name) is not None)


class Upstream:
    """A session with the real server, for one client."""

    def __init__(self, session: Session, answered: frozenset[str] | None) -> None:
        self.session = session
        self.answered = answered
        """What its client answers of what the server asks; None before a client has said so."""
        self.lost = False
        """Whether a request found that the server has gone."""
        self.used = time.monotonic()
        """When a request last came."""
        self.learned: Sequence[types.Tool] | None = None
        """The tools, as they were when the cassette heard of them."""
        self._calls: list[Any] = []
        self._last: Any = None
        self._log_level: types.LoggingLevel | None = None
        self._telling = anyio.Lock()
        session.client.session.dispatch_input_request = self._answer  # type: ignore[method-assign,assignment]
        session.notes.listener = self._pass_back

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._calls)

    async def list_tools(self, ctx: Any, cursor: str | None) -> types.ListToolsResult:
        """A page of the server's tools, as they are now. Raises `MCPError`."""
        async with self._during(ctx):
            return await self.session.client.list_tools(cursor=cursor, cache_mode="refresh")

    async def forward(self, ctx: Any, request: Any, result: Any) -> Any:
        """What the server answers to a request, which is of the type `result`. Raises `MCPError`."""
        async with self._during(ctx):
            return await self._send(ctx, request, result)

    async def ask(self, ctx: Any, request: Any, result: Any) -> Any:
        """The same where the server may ask before it answers: clients that understand it get what it has to know
        first, and others are asked here."""
        async with self._during(ctx):
            found = await self._send(ctx, request, TypeAdapter[Any](result | types.InputRequiredResult))
            if isinstance(found, types.InputRequiredResult) and is_handshake(ctx.protocol_version):
                return await self._driven(ctx, request, result, found)
            return found

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        """As `ask`, also where the server wants the tool called as a task. Raises `MCPError`."""
        if not any(tool.name == params.name and wants_task(tool) for tool in self.session.listed):
            return await self.ask(ctx, types.CallToolRequest(params=params), types.CallToolResult)
        params = self._passed_on(params)
        async with self._during(ctx):
            tasks = TaskCalls(self.session.client, "the server")
            try:
                return await tasks.call(
                    params.name, params.arguments or {}, self._progress(ctx), dict(params.meta or {})
                )
            except TaskInterrupted as cut:
                raise MCPError(types.INTERNAL_ERROR, str(cut), {FAILURE_META: True}) from cut

    async def set_log_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """From which level on the client wants to hear the server's log."""
        if is_handshake(self.session.protocol_version):
            await self.forward(ctx, types.SetLevelRequest(params=params), types.EmptyResult)
        self._log_level = params.level
        return types.EmptyResult()

    async def listen(self, ctx: Any, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
        """Tell the client of the changes that it subscribes to, until the server or the client ends it."""
        wanted, meta = params.notifications, {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        try:
            events = self.session.client.listen(
                tools_list_changed=bool(wanted.tools_list_changed),
                prompts_list_changed=bool(wanted.prompts_list_changed),
                resources_list_changed=bool(wanted.resources_list_changed),
                resource_subscriptions=wanted.resource_subscriptions or (),
            )
            async with events as heard:
                begun = types.SubscriptionsAcknowledgedNotificationParams(notifications=heard.honored, _meta=meta)
                told: types.ServerNotification = types.SubscriptionsAcknowledgedNotification(params=begun)
                await ctx.session.send_notification(told, related_request_id=ctx.request_id)
                async for event in heard:
                    told = event_to_notification(event, meta)
                    await ctx.session.send_notification(told, related_request_id=ctx.request_id)
        except (SubscriptionLost, BridgeError) as error:
            raise MCPError(types.INTERNAL_ERROR, str(error), {FAILURE_META: True}) from error
        return types.SubscriptionsListenResult(_meta=meta)

    @contextlib.asynccontextmanager
    async def _during(self, ctx: Any) -> AsyncIterator[None]:
        """While a request of the client is worked on, it can be asked; it hears all that was told before the end."""
        self._calls.append(ctx)
        self._last = ctx
        try:
            yield
            async with self._telling:  # the answer would overtake what is still being sent
                pass
        except BridgeError as error:
            self.lost = True
            raise MCPError(types.INTERNAL_ERROR, str(error), {FAILURE_META: True}) from error
        except MCPError as error:
            self.lost = self.lost or is_closed(error)
            raise
        finally:
            self._calls.remove(ctx)

    async def _send(self, ctx: Any, request: Any, result: Any) -> Any:
        request = request.model_copy(update={"params": self._passed_on(request.params)})
        return await self.session.client.session.send_request(request, result, progress_callback=self._progress(ctx))

    def _passed_on(self, params: Any) -> Any:
        """The parameters of a request for another connection: the fields of `_meta` about this one are left out."""
        if params is None:
            return None
        own = {"progressToken", "progress_token"}
        meta = {
            key: value
            for key, value in (params.meta or {}).items()
            if key not in own and (key == types.LOG_LEVEL_META_KEY or not key.startswith("io.modelcontextprotocol/"))
        }
        if self._log_level is not None and not is_handshake(self.session.protocol_version):
            meta.setdefault(types.LOG_LEVEL_META_KEY, self._log_level)
        return params.model_copy(update={"meta": meta or None})

    async def _driven(self, ctx: Any, request: Any, result: Any, asked: Any) -> Any:
        """Ask the client what the server wants to know, in the way of the older revisions, and send the request again
        with that, until there is a result."""
        client = self.session.client
        for _ in range(client.input_required_max_rounds):
            answers: dict[str, Any] = {}
            for key, question in (asked.input_requests or {}).items():
                meta = question.params.meta if question.params else None
                context = ClientRequestContext(session=client.session, request_id=key, meta=meta)
                answer = await self._answer(context, question)
                if isinstance(answer, types.ErrorData):
                    raise MCPError.from_error_data(answer)
                answers[key] = answer
            if not answers:
                await anyio.sleep(_ASK_AGAIN_S)  # the server only wants to be asked later
            more = {"input_responses": answers or None, "request_state": asked.request_state}
            again = request.model_copy(update={"params": request.params.model_copy(update=more)})
            asked = await self._send(ctx, again, TypeAdapter[Any](result | types.InputRequiredResult))
            if not isinstance(asked, types.InputRequiredResult):
                return asked
        raise InputRequiredRoundsExceededError(client.input_required_max_rounds)

    def _progress(self, ctx: Any) -> Any:
        """How the client hears of progress; None where it does not want to."""
        report = progress_of(ctx)
        if report is None:
            return None

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            async with self._telling:
                await report(progress, total, message)

        return tell

    async def _pass_back(self, told: types.ServerNotification) -> None:
        """What the server tells without being asked."""
        async with self._telling:
            if isinstance(told, types.LoggingMessageNotification):
                level = told.params.level
                hearing = (
                    ctx for ctx in reversed(self._calls) if level in allowed_log_levels(ctx.protocol_version, ctx.meta)
                )
                ctx = next(hearing, None)
                if ctx is not None:
                    await ctx.session.send_notification(told, related_request_id=ctx.request_id)
                elif self._last is not None and is_handshake(self._last.protocol_version):
                    await self._last.session.send_notification(told)
            elif isinstance(told, _CHANGES) and is_handshake(self.session.protocol_version) and self._last is not None:
                await self._last.session.send_notification(told)

    async def _answer(self, _: Any, request: Any) -> Any:
        if not self._calls:
            return types.ErrorData(code=types.INVALID_REQUEST, message="no call is under way that could be asked for")
        # Nothing says to which of several calls a question belongs; they are all of one client.
        ctx = self._calls[-1]
        if isinstance(request, types.ElicitRequest):
            result: Any = types.ElicitResult
        elif isinstance(request, types.ListRootsRequest):
            result = types.ListRootsResult
        else:
            result = types.CreateMessageResultWithTools if request.params.tools else types.CreateMessageResult
        try:
            return await ctx.session.send_request(
                request, result, metadata=ServerMessageMetadata(related_request_id=ctx.request_id)
            )
        except MCPError as error:
            return error.error


logger = logging.getLogger(__name__)


def speak_as(server: Server[Any], protocol: str) -> None:
    """Make clients shake hands with `server` where the real server does, whose questions come in the middle of a call.

    That holds over HTTP; `without_discovery` does it for a pair of streams. Clients that speak the newest revision
    without looking first are served all the same.
    """

    async def unknown(_: Any, __: Any) -> Any:
        raise MCPError.from_error_data(_not_discovered(protocol))

    if is_handshake(protocol):
        server.add_request_handler("server/discover", types.RequestParams, unknown)


def _not_discovered(protocol: str) -> types.ErrorData:
    return types.ErrorData(code=types.METHOD_NOT_FOUND, message=f"the recorded server speaks revision {protocol}")


@contextlib.asynccontextmanager
async def without_discovery(read: Any, write: Any, protocol: str) -> AsyncIterator[Any]:
    """The stream `read` without the question for the newest revision, which is answered on `write`, where the real
    server shakes hands: what a client asks first decides how the SDK's server serves it from then on."""
    if not is_handshake(protocol):
        yield read
        return
    send, receive = anyio.create_memory_object_stream[Any]()

    async def relay() -> None:
        async with send:
            async for item in read:
                asked = getattr(item, "message", None)
                if isinstance(asked, types.JSONRPCRequest) and asked.method == "server/discover":
                    refused = types.JSONRPCError(jsonrpc="2.0", id=asked.id, error=_not_discovered(protocol))
                    await write.send(SessionMessage(refused))
                else:
                    await send.send(item)

    async with anyio.create_task_group() as group:
        group.start_soon(relay)
        yield receive
        group.cancel_scope.cancel()


MOST_SESSIONS = 256
"""At once: over stdio each is a process."""


def only_server(source: Any, server: str | None) -> ServerSpec:
    """The one server behind `source`. Raises `SourceError` where there are several and `server` names none of them."""
    specs = identify(source)
    servers = [spec for spec in specs if isinstance(spec, StdioSpec | HttpSpec | ServerObjectSpec)]
    if len(servers) < len(specs):
        raise SourceError(
            "only an MCP server can be recorded from outside; for functions, OpenAPI files and sandboxes use "
            "sandboxes.recorded.record(toolset, path) in Python"
        )
    names = ", ".join(repr(spec.name) for spec in servers)
    if server is not None:
        servers = [spec for spec in servers if spec.name == server]
        if not servers:
            raise SourceError(f"there is no server {server!r}; the servers are {names}")
    if len(servers) != 1:
        raise SourceError(f"a recorder stands before one server; choose with --server: {names}")
    if servers[0].options.faults is not None:
        raise SourceError(
            f"{servers[0].label} has faults, and a recorder writes what the real server says; remove them"
        )
    renamed = [name for name in ("namespace", "resources", "prompts") if getattr(servers[0].options, name)]
    if renamed:
        raise SourceError(
            f"{servers[0].label} has {', '.join(renamed)}, and a recorder hands on the server's own tools by their own "
            "names; remove that from the entry that is recorded"
        )
    return servers[0]


class Upstreams:
    """Open sessions with the real server, by the key of whoever they are for."""

    def __init__(self, spec: ServerSpec, group: anyio.abc.TaskGroup, *, connect_timeout_s: float) -> None:
        self._spec = spec
        self._connect_timeout_s = connect_timeout_s
        self._transports: dict[tuple[frozenset[str], str | None], Transport] = {}
        self._refused: set[str] = set()
        self._group = group
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._opening = 0
        self._open: dict[str, Upstream] = {}
        self.epitaph = ""
        """How a session ended that the server left; empty while none did."""

    async def get(self, key: str, answered: frozenset[str] | None = None, protocol: str | None = None) -> Upstream:
        """The session of a key, opened when it is first asked for. Raises `SourceError` where that fails.

        `answered`: what the client answers of what the server asks, and `protocol`: the revision that it speaks; None
        where nobody knows it yet. The session that was opened without knowing them is replaced where the client answers
        anything, or speaks another revision: what a server may ask, and when, depends on the revision.
        """
        async with self._locks[key]:
            found = self._open.get(key)
            if found is not None and found.answered is None and protocol is not None:
                found.answered = answered
                if answered or protocol != found.session.protocol_version:
                    del self._open[key]
                    await found.session.close()
                    found = None
            if found is None:
                await self._close_idle()
                if len(self._open) + self._opening >= MOST_SESSIONS:
                    raise SourceError(f"{MOST_SESSIONS} sessions are open; end some, or start another recorder")
                self._opening += 1
                try:
                    found = self._open[key] = await self._opened(answered, protocol)
                finally:
                    self._opening -= 1
            found.used = time.monotonic()
            return found

    async def _close_idle(self) -> None:
        """Over HTTP a client may go away without a word: what nobody used for long ends when another one begins."""
        for key, one in list(self._open.items()):
            if key != _FIRST and not one.is_busy and time.monotonic() - one.used > IDLE_S:
                await self.close(key)

    @property
    def options(self) -> ServerOptions:
        return self._spec.options

    @property
    def secrets(self) -> tuple[str, ...]:
        """Those of the server's entry, and the tokens that its sessions have fetched."""
        known = (self._spec.secrets, *(transport.secrets() for transport in self._transports.values()))
        return tuple(dict.fromkeys(secret for some in known for secret in some))

    async def _opened(self, answered: frozenset[str] | None, protocol: str | None) -> Upstream:
        """In the client's revision where the server speaks it; a revision that the user names comes first."""
        if protocol is None or self._spec.options.protocol is not None:
            return await self._opened_in(self._spec, answered)
        if protocol not in self._refused:
            options = self._spec.options.model_copy(update={"protocol": protocol})
            try:
                return await self._opened_in(replace(self._spec, options=options), answered)
            except SourceError as error:
                logger.info("the server is met in another revision than %s: %s", protocol, error)
                self._refused.add(protocol)
        return await self._opened_in(self._spec, answered)

    async def _opened_in(self, spec: ServerSpec, answered: frozenset[str] | None) -> Upstream:
        known = answered or frozenset()
        kind = (known, spec.options.protocol)
        if kind not in self._transports:
            # That these are answered is what the server is told; `Upstream` answers, not these functions.
            handlers = Handlers(**dict.fromkeys(known, _answered_elsewhere))
            self._transports[kind] = Transport(spec, connect_timeout_s=self._connect_timeout_s, handlers=handlers)
        try:
            session = await open_session(self._transports[kind], self._group)
        except CannotOpen as error:
            raise SourceError(str(error)) from error
        return Upstream(session, answered)

    def is_lost(self, key: str) -> bool:
        """Whether the server of a key's session has gone."""
        return key in self._open and self._open[key].lost

    async def close(self, key: str) -> None:
        """End the session of a key, if there is one."""
        found = self._open.pop(key, None)
        if found is not None:
            self.epitaph = found.session.epitaph if found.lost else self.epitaph
            await found.session.close()

    async def aclose(self) -> None:
        """End all sessions."""
        for key in list(self._open):
            await self.close(key)


def _answered_elsewhere(*_: Any) -> Any:
    raise AssertionError("answered by the recorder's client")


def as_tools(listed: Sequence[types.Tool], options: ServerOptions) -> list[Tool]:
    """The server's tools as records, with the user's word in their annotations; control tools are left out, and those
    that the options leave out."""
    tools = [with_users_word(tool, options) for tool in _not_control(listed)]
    return [tool for tool in tools if reason_against(tool, options) is None]


def _not_control(listed: Sequence[types.Tool]) -> list[Tool]:
    return [tool_from_mcp(tool) for tool in listed if CONTROL_META not in (tool.meta or {})]


_SESSION_HEADER = "mcp-session-id"


async def serve_recorder(
    source: Any,
    path: str | os.PathLike[str],
    *,
    port: int | None = None,
    server: str | None = None,
    scrub: tuple[str, ...] = (),
    connect_timeout_s: float = 120.0,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the recorder over standard input and output, or with `port` at `http://127.0.0.1:PORT/mcp`, until the
    client hangs up or it is cancelled.

    `source`: one MCP server, as `mcp_bridge.connect` takes it: an `mcp.json` (`server`: which of its servers, where
    it has several), a URL, a command as a list, a server object. `path` and `scrub`: see `record`. `say`: hears what
    was done. Raises `SourceError` where the server cannot be used or the cassette cannot be written, and at
    the end where the server went away meanwhile: its client was told of it, and the cassette has what was recorded.
    Also where a call could not be written: its client got the answer, and the cassette has a gap.
    """
    spec = only_server(source, server)
    if port is not None:
        listen("127.0.0.1", port, None).close()  # a port that is taken is told before there is a cassette
    with ungrouped():
        async with anyio.create_task_group() as group:
            upstreams = Upstreams(spec, group, connect_timeout_s=connect_timeout_s)
            scrubber = Scrubber(lambda: upstreams.secrets, scrub)
            session = (await upstreams.get(_FIRST)).session
            listed, told = session.listed, session.client.server_info
            _, left_out = choose(_not_control(listed), spec.options, spec.label)
            writer = CassetteWriter(
                path,
                as_tools(listed, spec.options),
                source=spec.label,
                server={"name": told.name, "version": told.version} if told is not None else {},
                scrubber=scrubber,
            )
            recorder = _Recorder(upstreams, writer, listed, is_http=port is not None)
            app = recorder.make_server(session.client)
            where = f" at http://127.0.0.1:{port}/mcp" if port is not None else ""
            begun = f"recording {writer.scrubber.text(spec.label)} to {writer.path}{where}"
            if left_out:
                begun += "; left out: " + ", ".join(f"{one.tool} ({one.reason})" for one in left_out)
            try:
                await _serve(app, upstreams, port, session.protocol_version, lambda: say(begun))
            finally:
                lost = f"{recorder.lost} calls were made and are not in the cassette; " if recorder.lost else ""
                say(f"recorded {writer.calls} calls; {lost}secrets were replaced in {writer.scrubber.count} places")
                with anyio.CancelScope(shield=True):
                    await upstreams.aclose()
            if recorder.gap:
                raise SourceError(
                    f"the recording has a gap: {recorder.gap}. Make it writable, and record the sessions again"
                )
            if upstreams.epitaph:
                raise SourceError(f"{upstreams.epitaph} {writer.path} has what was recorded until then.")


_FIRST = ""
"""The session that the recorder opens to see what the server has; a client over stdio goes on in it."""


async def _serve(
    app: Server[Any], upstreams: Upstreams, port: int | None, protocol: str, begun: Callable[[], None]
) -> None:
    if port is None:
        begun()
        async with stdio_streams() as (read, write):
            async with without_discovery(read, write, protocol) as asked:
                await app.run(asked, write, app.create_initialization_options())
        return

    web = app.streamable_http_app(host="127.0.0.1")

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        await web(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "DELETE":
            ended = dict(scope["headers"]).get(_SESSION_HEADER.encode())
            if ended:
                await upstreams.close(ended.decode("latin-1"))

    await serve_app(watched, port=port, listening=begun)


class _ShownServer(Server[Any]):
    """Tells clients whose session begins with a handshake which lists it tells changes of, also over HTTP."""

    changes = NotificationOptions()

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *more: Any, **named: Any
    ) -> Any:
        return super().create_initialization_options(notification_options or self.changes, *more, **named)


class _Recorder:
    """Passes requests on and writes calls down."""

    def __init__(
        self, upstreams: Upstreams, writer: CassetteWriter, listed: Sequence[types.Tool], *, is_http: bool
    ) -> None:
        """`listed`: the server's tools at the beginning."""
        self._upstreams = upstreams
        self._writer = writer
        self._listed, verbs = listed, _control_verbs(listed)
        # Who starts a server with this in its environment knows what control tools are for. To others each session has
        # a server of its own, whose world without a name is theirs.
        offers_control = os.environ.get(CONTROL_ENV) == "1"
        self._verbs = verbs if offers_control else {}
        self._names_no_worlds = bool(verbs) and not offers_control
        # A session of a cassette has its calls from the beginning, so that no world may begin in the middle of another.
        self._hidden = {name for name, verb in verbs.items() if verb == FORK_WORLD or not offers_control}
        self._is_http = is_http
        self.lost = 0
        """How many calls could not be written."""
        self.gap = ""
        """Why something could not be written first; empty while all was."""
        self._sessions: dict[tuple[str, str], _Session] = {}

    def make_server(self, first: Client) -> Server[Any]:
        """A server that shows itself as the real one does."""
        has, told = first.server_capabilities, first.server_info
        on: dict[str, Any] = {}
        if has.resources is not None:
            on["on_list_resources"] = self._forward(types.ListResourcesRequest, types.ListResourcesResult)
            on["on_list_resource_templates"] = self._forward(
                types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult
            )
            on["on_read_resource"] = self._ask(types.ReadResourceRequest, types.ReadResourceResult)
            if has.resources.subscribe:
                on["on_subscribe_resource"] = self._forward(types.SubscribeRequest, types.EmptyResult)
                on["on_unsubscribe_resource"] = self._forward(types.UnsubscribeRequest, types.EmptyResult)
        if has.prompts is not None:
            on["on_list_prompts"] = self._forward(types.ListPromptsRequest, types.ListPromptsResult)
            on["on_get_prompt"] = self._ask(types.GetPromptRequest, types.GetPromptResult)
        if has.completions is not None:
            on["on_completion"] = self._forward(types.CompleteRequest, types.CompleteResult)
        tools, resources, prompts = (
            offered is not None and bool(offered.list_changed) for offered in (has.tools, has.resources, has.prompts)
        )
        subscribed = tools or resources or prompts or "on_subscribe_resource" in on
        if subscribed and not is_handshake(first.protocol_version):
            on["on_subscriptions_listen"] = self._by(Upstream.listen)
        shown = ("version", "title", "description", "website_url", "icons")
        server = _ShownServer(
            told.name if told is not None else "recorded",
            instructions=first.instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            **({name: getattr(told, name) for name in shown} if told is not None else {}),
            **on,
        )
        server.changes = NotificationOptions(prompts, resources, tools)
        if has.logging is not None:
            handler = self._by(Upstream.set_log_level)
            server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, handler)
        speak_as(server, first.protocol_version)
        return server

    async def _list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        page = await (await self._upstream(ctx)).list_tools(ctx, params.cursor if params is not None else None)
        shown = [tool for tool in page.tools if self._reason_against(tool.name, tool) is None]
        return page.model_copy(update={"tools": [tool.model_copy(update={"execution": None}) for tool in shown]})

    def _reason_against(self, name: str, tool: types.Tool | None) -> str | None:
        """Why clients do not get a tool; None where they do. One that is not listed is judged by its name alone."""
        if name in self._hidden:
            return "it is a control tool"
        if tool is not None and CONTROL_META in (tool.meta or {}):
            return None
        known = Tool(name=name, description="", input_schema={}) if tool is None else tool_from_mcp(tool)
        options = self._upstreams.options
        return reason_against(with_users_word(known, options), options)

    def _by(self, answer: Callable[[Upstream, Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(ctx: Any, params: Any) -> Any:
            return await answer(await self._upstream(ctx), ctx, params)

        return handle

    def _forward(self, request: Any, result: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        return self._by(lambda upstream, ctx, params: upstream.forward(ctx, request(params=params), result))

    def _ask(self, request: Any, result: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        return self._by(lambda upstream, ctx, params: upstream.ask(ctx, request(params=params), result))

    async def _call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        await self._leave_lost(ctx)
        listed = next((tool for tool in self._listed if tool.name == params.name), None)
        if (reason := self._reason_against(params.name, listed)) is not None:
            raise MCPError(types.INVALID_PARAMS, f"the recorder does not call {params.name!r}: {reason}")
        world = str((ctx.meta or {}).get(WORLD_META, ""))
        if self._names_no_worlds:
            params = params.model_copy(
                update={"meta": {k: v for k, v in (params.meta or {}).items() if k != WORLD_META}}
            )
        verb = self._verbs.get(params.name)
        if verb == OPEN_WORLD:
            given = params.arguments or {}
            # A name may come again: the world before was closed.
            opened = self._sessions[self._key(ctx), str(given.get("world", ""))] = _Session()
            opened.setup = dict(given.get("setup") or {})
        session = self._session(ctx, world) if verb is None else None
        order = session.next_order(params) if session is not None else 0
        began = time.perf_counter()

        def write(outcome: ToolResult | BaseException) -> None:
            if session is not None:
                took = time.perf_counter() - began
                with self._telling_of_gaps(calls=1):
                    name = session.begun(self._writer)
                    self._writer.add_call(name, order, params.name, params.arguments or {}, outcome, took)

        upstream: Upstream | None = None
        try:
            upstream = await self._upstream(ctx)
            began = time.perf_counter()  # opening a session is not a part of the call
            found = await upstream.call_tool(ctx, params)
        except MCPError as error:
            answer = None if upstream is None else upstream.session.answer_in(error)
            write(answer or error)
            if answer is not None:
                raise
            raise MCPError(error.code, error.message, {FAILURE_META: True}) from error
        except BaseException as error:
            write(error)
            raise
        if isinstance(found, types.CallToolResult):
            write(from_mcp(found))
        elif session is not None:
            session.asked.append((params.name, order))
        return found

    @contextlib.contextmanager
    def _telling_of_gaps(self, calls: int = 0) -> Iterator[None]:
        """What the cassette does not take costs the recording, and no client the answer to a call that took effect.

        `calls`: how many are lost with it."""
        try:
            yield
        except SourceError as error:
            self.lost += calls
            if not self.gap:
                self.gap = str(error)
                logger.warning("%s; calls go on without being recorded while that is so", error)

    def _session(self, ctx: Any, world: str) -> _Session:
        return self._sessions.setdefault((self._key(ctx), world), _Session())

    async def _upstream(self, ctx: Any) -> Upstream:
        """The session for a request. Raises `MCPError` where the server cannot be reached any more."""
        await self._leave_lost(ctx)
        try:
            upstream = await self._upstreams.get(self._key(ctx), answered_by(ctx), ctx.protocol_version)
            if upstream.learned is not upstream.session.listed:
                self._listed = upstream.session.listed
                with self._telling_of_gaps():
                    self._writer.learn(as_tools(upstream.session.listed, self._upstreams.options))
                    upstream.learned = upstream.session.listed
            return upstream
        except BridgeError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error), {FAILURE_META: True}) from error

    async def _leave_lost(self, ctx: Any) -> None:
        """Nothing binds a client without a session to a server that has gone: what it asks next begins anew, also in
        the cassette."""
        key = self._key(ctx)
        if self._is_http and not _session_of(ctx) and self._upstreams.is_lost(key):
            self._sessions = {known: one for known, one in self._sessions.items() if known[0] != key}
            await self._upstreams.close(key)

    def _key(self, ctx: Any) -> str:
        """Which of our sessions with the server a request belongs to: each session of a client has its own."""
        if not self._is_http:
            return _FIRST
        if session := _session_of(ctx):
            return session
        # Clients since 2026-07-28 have no sessions over HTTP. Those that answer the same questions share one of ours:
        # which of them the server may ask is said once for a session.
        world = "" if self._verbs else str((ctx.meta or {}).get(WORLD_META, ""))
        return "/".join([world or _FIRST, *sorted(answered_by(ctx))])


def _session_of(ctx: Any) -> str:
    """The client's own session over HTTP; empty where it has none."""
    return str(getattr(ctx.request, "headers", {}).get(_SESSION_HEADER) or "")


class _Session:
    """One session of the cassette; it is begun by its first call."""

    def __init__(self) -> None:
        self.setup: dict[str, Any] = {}
        self.asked: list[tuple[str, int]] = []
        """Calls to which the server asked something and has not answered yet; the client makes them again."""
        self._name: str | None = None
        self._made = 0

    def next_order(self, params: types.CallToolRequestParams) -> int:
        again = params.input_responses is not None or params.request_state is not None
        for name, order in self.asked if again else ():
            if name == params.name:
                self.asked.remove((name, order))
                return order
        self._made += 1
        return self._made - 1

    def begun(self, writer: CassetteWriter) -> str:
        if self._name is None:
            self._name = writer.begin_session(self.setup)
        return self._name


def _control_verbs(listed: Sequence[types.Tool]) -> dict[str, str]:
    return {tool.name: str((tool.meta or {})[CONTROL_META]) for tool in listed if CONTROL_META in (tool.meta or {})}
