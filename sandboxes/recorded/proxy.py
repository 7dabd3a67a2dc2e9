"""A recorder between an MCP client and a real MCP server: to the client it is the server, to the server a client.

Tools, resources, prompts and completions are passed on as they are; calls of tools are written into the cassette.
What the server asks of its client meanwhile (sampling, elicitation, roots) is passed on, and the server is told that
of these it can ask which its client answers. Tools that the server wants called as tasks look like any other: the
recorder waits for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from mcp_bridge.control import CONTROL_ENV, CONTROL_META, FAILURE_META, FORK_WORLD, OPEN_WORLD, WORLD_META
from mcp_bridge.errors import BridgeError
from mcp_bridge.exception_groups import ungrouped
from mcp_bridge.records import ToolResult

from .asking import answered_by
from .cassette_writer import CassetteWriter
from .passing_on import call_tool, speak_as, without_discovery
from .scrubbing import Scrubber
from .upstream import Upstream, Upstreams, as_tools, only_server

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client
    from mcp.server.lowlevel import Server

_SESSION_HEADER = "mcp-session-id"


async def serve_recorder(
    source: Any,
    path: str | os.PathLike[str],
    *,
    port: int | None = None,
    server: str | None = None,
    secrets: tuple[str, ...] = (),
    scrub: tuple[str, ...] = (),
    connect_timeout_s: float = 60.0,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the recorder over standard input and output, or with `port` at `http://127.0.0.1:PORT/mcp`, until the
    client hangs up or it is cancelled.

    `source`: one MCP server, as `mcp_bridge.connect` takes it: an `mcp.json` (`server`: which of its servers, where
    it has several), a URL, a command as a list, a server object. `path`, `secrets` and `scrub`: see `record`. `say`:
    hears what was done. Raises `SourceError` where the server cannot be used or the cassette cannot be written.
    """
    spec = only_server(source, server)
    scrubber = Scrubber((*secrets, *spec.secrets), scrub)
    with ungrouped():
        async with anyio.create_task_group() as group:
            upstreams = Upstreams(spec, group, connect_timeout_s=connect_timeout_s)
            session = (await upstreams.get(_FIRST)).session
            listed, told = session.listed, session.client.server_info
            writer = CassetteWriter(
                path,
                as_tools(listed),
                source=spec.label,
                server={"name": told.name, "version": told.version} if told is not None else {},
                scrubber=scrubber,
            )
            recorder = _Recorder(upstreams, writer, _control_verbs(listed), is_http=port is not None)
            app = recorder.make_server(session.client)
            where = f" at http://127.0.0.1:{port}/mcp" if port is not None else ""
            begun = f"recording {writer.scrubber.text(spec.label)} to {writer.path}{where}"
            try:
                await _serve(app, recorder, port, session.protocol_version, lambda: say(begun))
            finally:
                say(f"recorded {writer.calls} calls; secrets were replaced in {writer.scrubber.count} places")
                with anyio.CancelScope(shield=True):
                    await upstreams.aclose()


_FIRST = ""
"""The session that the recorder opens to see what the server has; a client over stdio goes on in it."""


async def _serve(
    app: Server[Any], recorder: _Recorder, port: int | None, protocol: str, begun: Callable[[], None]
) -> None:
    if port is None:
        from mcp.server.stdio import stdio_server

        begun()
        async with stdio_server() as (read, write):
            async with without_discovery(read, write, protocol) as asked:
                await app.run(asked, write, app.create_initialization_options())
        return
    from ..serving import serve_app

    web = app.streamable_http_app(host="127.0.0.1")

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        await web(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "DELETE":
            ended = dict(scope["headers"]).get(_SESSION_HEADER.encode())
            if ended:
                await recorder.end(ended.decode("latin-1"))

    await serve_app(watched, port=port, listening=begun)


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
        import mcp_types as types
        from mcp.server.lowlevel import Server

        has = first.server_capabilities
        told = first.server_info
        on: dict[str, Any] = {}
        if has.resources is not None:
            on["on_list_resources"] = self._forward(types.ListResourcesRequest, types.ListResourcesResult)
            on["on_list_resource_templates"] = self._forward(
                types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult
            )
            on["on_read_resource"] = self._forward(types.ReadResourceRequest, types.ReadResourceResult)
        if has.prompts is not None:
            on["on_list_prompts"] = self._forward(types.ListPromptsRequest, types.ListPromptsResult)
            on["on_get_prompt"] = self._forward(types.GetPromptRequest, types.GetPromptResult)
        if has.completions is not None:
            on["on_completion"] = self._forward(types.CompleteRequest, types.CompleteResult)
        server: Server[Any] = Server(
            told.name if told is not None else "recorded",
            version=told.version if told is not None else "",
            instructions=first.instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            **on,
        )
        speak_as(server, first.protocol_version)
        return server

    async def end(self, http_session: str) -> None:
        """A client over HTTP has ended its session."""
        await self._upstreams.close(http_session)

    async def _list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        client = (await self._upstream(ctx)).session.client
        page = await client.list_tools(cursor=params.cursor if params is not None else None, cache_mode="refresh")
        # A session of a cassette has its calls from the beginning, so that no world may begin in the middle of another.
        hidden = {name for name, verb in self._verbs.items() if verb == FORK_WORLD or not self._offers_control}
        shown = [tool.model_copy(update={"execution": None}) for tool in page.tools if tool.name not in hidden]
        return page.model_copy(update={"tools": shown})

    def _forward(self, request: Any, result: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(ctx: Any, params: Any) -> Any:
            upstream = await self._upstream(ctx)
            with upstream.questions.during(ctx):
                return await upstream.session.client.session.send_request(request(params=_passed_on(params)), result)

        return handle

    async def _call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        import mcp_types as types
        from mcp.shared.exceptions import MCPError

        from mcp_bridge.sessions.listing import from_mcp

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
            began = time.perf_counter()  # opening a session is no part of the call
            with upstream.questions.during(ctx):
                found = await call_tool(upstream.session, _passed_on(params), ctx)
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
        import mcp_types as types
        from mcp.shared.exceptions import MCPError

        try:
            upstream = await self._upstreams.get(self._key(ctx), answered_by(ctx))
            if upstream.learned is not upstream.session.listed:
                upstream.learned = upstream.session.listed
                self._writer.learn(as_tools(upstream.session.listed))
            return upstream
        except BridgeError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error), {FAILURE_META: True}) from error

    def _key(self, ctx: Any) -> str:
        """Which of our sessions with the server a request belongs to: each session of a client has its own."""
        if not self._is_http:
            return _FIRST
        headers = getattr(ctx.request, "headers", {})
        world = "" if self._verbs else str((ctx.meta or {}).get(WORLD_META, ""))
        # Clients since 2026-07-28 have no sessions over HTTP.
        return str(headers.get(_SESSION_HEADER) or world or _FIRST)


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


def _passed_on(params: Any) -> Any:
    """The parameters of a request for another connection: what `_meta` says of this one is left out."""
    if params is None or params.meta is None:
        return params
    own = {"progressToken", "progress_token"}
    meta = {
        key: value
        for key, value in params.meta.items()
        if key not in own and not key.startswith("io.modelcontextprotocol/")
    }
    return params.model_copy(update={"meta": meta or None})
