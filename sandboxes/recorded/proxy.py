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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp import Client
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from mcp_bridge.control_tools import CONTROL_ENV, CONTROL_META, FAILURE_META, FORK_WORLD, OPEN_WORLD, WORLD_META
from mcp_bridge.errors import BridgeError, SourceError, ungrouped
from mcp_bridge.guard import with_users_word
from mcp_bridge.publishing.listener import listen, serve_app, stdio_streams
from mcp_bridge.publishing.server import IDLE_S
from mcp_bridge.publishing.translation import tool_from_mcp
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.sessions.handlers import Handlers
from mcp_bridge.sessions.listing import from_mcp
from mcp_bridge.sessions.protocol_version import is_handshake
from mcp_bridge.sessions.session import CannotOpen, open_session
from mcp_bridge.sessions.transports import Transport
from mcp_bridge.sources.connecting import identify
from mcp_bridge.sources.server_options import ServerOptions
from mcp_bridge.sources.specs import HttpSpec, ServerObjectSpec, ServerSpec, StdioSpec

from .cassette import CassetteWriter
from .scrubber import Scrubber
from .upstream import Upstream, answered_by

logger = logging.getLogger(__name__)


def speak_as(server: Server[Any], protocol: str) -> None:
    """Make clients shake hands with `server` where the real server does, whose questions come in the middle of a call.

    That holds over HTTP; `without_discovery` does it for a pair of streams. Clients that speak the newest revision
    without looking first are served all the same.
    """

    async def unknown(_: Any, __: Any) -> Any:
        raise MCPError(types.METHOD_NOT_FOUND, f"the recorded server speaks revision {protocol}")

    if is_handshake(protocol):
        server.add_request_handler("server/discover", types.RequestParams, unknown)


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
                    told = types.ErrorData(
                        code=types.METHOD_NOT_FOUND, message=f"the recorded server speaks revision {protocol}"
                    )
                    refused = types.JSONRPCError(jsonrpc="2.0", id=asked.id, error=told)
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
    """The server's tools as records, with the user's word in their annotations; control tools are left out."""
    return [with_users_word(tool_from_mcp(tool), options) for tool in listed if CONTROL_META not in (tool.meta or {})]


_SESSION_HEADER = "mcp-session-id"


async def serve_recorder(
    source: Any,
    path: str | os.PathLike[str],
    *,
    port: int | None = None,
    server: str | None = None,
    secrets: tuple[str, ...] = (),
    scrub: tuple[str, ...] = (),
    connect_timeout_s: float = 120.0,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the recorder over standard input and output, or with `port` at `http://127.0.0.1:PORT/mcp`, until the
    client hangs up or it is cancelled.

    `source`: one MCP server, as `mcp_bridge.connect` takes it: an `mcp.json` (`server`: which of its servers, where
    it has several), a URL, a command as a list, a server object. `path`, `secrets` and `scrub`: see `record`. `say`:
    hears what was done. Raises `SourceError` where the server cannot be used or the cassette cannot be written, and at
    the end where the server went away meanwhile: its client was told of it, and the cassette has what was recorded.
    """
    spec = only_server(source, server)
    if port is not None:
        listen("127.0.0.1", port, None).close()  # a port that is taken is told before there is a cassette
    with ungrouped():
        async with anyio.create_task_group() as group:
            upstreams = Upstreams(spec, group, connect_timeout_s=connect_timeout_s)
            scrubber = Scrubber(lambda: (*secrets, *upstreams.secrets), scrub)
            session = (await upstreams.get(_FIRST)).session
            listed, told = session.listed, session.client.server_info
            writer = CassetteWriter(
                path,
                as_tools(listed, spec.options),
                source=spec.label,
                server={"name": told.name, "version": told.version} if told is not None else {},
                scrubber=scrubber,
            )
            recorder = _Recorder(upstreams, writer, _control_verbs(listed), is_http=port is not None)
            app = recorder.make_server(session.client)
            where = f" at http://127.0.0.1:{port}/mcp" if port is not None else ""
            begun = f"recording {writer.scrubber.text(spec.label)} to {writer.path}{where}"
            try:
                await _serve(app, upstreams, port, session.protocol_version, lambda: say(begun))
            finally:
                say(f"recorded {writer.calls} calls; secrets were replaced in {writer.scrubber.count} places")
                with anyio.CancelScope(shield=True):
                    await upstreams.aclose()
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
        self, upstreams: Upstreams, writer: CassetteWriter, verbs: Mapping[str, str], *, is_http: bool
    ) -> None:
        self._upstreams = upstreams
        self._writer = writer
        self._verbs = verbs
        # Who starts a server with this in its environment knows what control tools are for.
        self._offers_control = os.environ.get(CONTROL_ENV) == "1"
        self._is_http = is_http
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
            on["on_subscriptions_listen"] = self._listen
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
            server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_log_level)
        speak_as(server, first.protocol_version)
        return server

    async def _list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        page = await (await self._upstream(ctx)).list_tools(ctx, params.cursor if params is not None else None)
        # A session of a cassette has its calls from the beginning, so that no world may begin in the middle of another.
        hidden = {name for name, verb in self._verbs.items() if verb == FORK_WORLD or not self._offers_control}
        shown = [tool.model_copy(update={"execution": None}) for tool in page.tools if tool.name not in hidden]
        return page.model_copy(update={"tools": shown})

    def _forward(self, request: Any, result: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(ctx: Any, params: Any) -> Any:
            return await (await self._upstream(ctx)).forward(ctx, request(params=params), result)

        return handle

    def _ask(self, request: Any, result: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(ctx: Any, params: Any) -> Any:
            return await (await self._upstream(ctx)).ask(ctx, request(params=params), result)

        return handle

    async def _set_log_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return await (await self._upstream(ctx)).set_log_level(ctx, params)

    async def _listen(
        self, ctx: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        return await (await self._upstream(ctx)).listen(ctx, params)

    async def _call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        await self._leave_lost(ctx)
        world = str((ctx.meta or {}).get(WORLD_META, ""))
        verb = self._verbs.get(params.name)
        if verb == OPEN_WORLD:
            given = params.arguments or {}
            self._session(ctx, str(given.get("world", ""))).setup = dict(given.get("setup") or {})
        session = self._session(ctx, world) if verb is None else None
        order = session.next_order() if session is not None else 0
        began = time.perf_counter()

        def write(outcome: ToolResult | BaseException) -> None:
            if session is not None:
                took = time.perf_counter() - began
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
        # A server that asks for more before it answers has not answered yet; the client calls again.
        if isinstance(found, types.CallToolResult):
            write(from_mcp(found))
        return found

    def _session(self, ctx: Any, world: str) -> _Session:
        return self._sessions.setdefault((self._key(ctx), world), _Session())

    async def _upstream(self, ctx: Any) -> Upstream:
        """The session for a request. Raises `MCPError` where the server cannot be reached any more."""
        await self._leave_lost(ctx)
        try:
            upstream = await self._upstreams.get(self._key(ctx), answered_by(ctx), ctx.protocol_version)
            if upstream.learned is not upstream.session.listed:
                upstream.learned = upstream.session.listed
                self._writer.learn(as_tools(upstream.session.listed, self._upstreams.options))
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
        self._name: str | None = None
        self._made = 0

    def next_order(self) -> int:
        self._made += 1
        return self._made - 1

    def begun(self, writer: CassetteWriter) -> str:
        if self._name is None:
            self._name = writer.begin_session(self.setup)
        return self._name


def _control_verbs(listed: Sequence[types.Tool]) -> dict[str, str]:
    return {tool.name: str((tool.meta or {})[CONTROL_META]) for tool in listed if CONTROL_META in (tool.meta or {})}
