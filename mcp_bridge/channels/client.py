"""The SDK's client on light sessions."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import httpx2
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.lowlevel.server import lifespan as no_lifespan
from mcp.server.mcpserver import MCPServer
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, CallToolResult, DiscoverResult, InputRequiredResult, InputResponses, Result
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError

from .http import HttpDispatcher, HttpSession
from .in_process import InProcessSession
from .pair import Pair
from .session import CallAnswer, LightSession, PlainAnswer
from .sharing import Shared

if TYPE_CHECKING:
    from .engine import Connections

CallPlain = Callable[
    [str, dict[str, Any], ProgressFnT | None, dict[str, str]], Awaitable[PlainAnswer | CallAnswer | None]
]
BuildSession = Callable[[Client, AsyncExitStack], Awaitable[ClientSession]]

logger = logging.getLogger(__name__)

_WRITTEN_FOR = ("2.3.",)
"""The releases of `mcp` whose inside the light sessions were written for and tested with."""


def in_process_client(server: Any, shared: Shared, **options: Any) -> Client:
    """A client for a server object, not entered yet: a light one where possible, else the SDK's own.

    `shared`: what the sessions with this server have in common. `options`: as for `Client`.
    """
    mode = options.get("mode", "auto")
    if not is_known_release() or mode == "legacy" or options.get("extensions"):
        logger.debug("the SDK's own client for an in-process server: mode %r, mcp %s", mode, version("mcp"))
        return Client(server, **options)
    if mode == "auto" and shared.discovered is not None and shared.discovered[0] is server:
        options |= {"mode": LATEST_MODERN_VERSION, "prior_discover": shared.discovered[1]}

    async def build(client: Client, exit_stack: AsyncExitStack) -> ClientSession:
        lowlevel = _lowlevel(server)
        lifespan = await exit_stack.enter_async_context(lowlevel.lifespan(lowlevel))
        on_discovered = functools.partial(shared.keep_discovered, server) if mode == "auto" else None
        session = _in_process_session(client, lowlevel, lifespan, shared, on_discovered)
        exit_stack.callback(session.close_here)
        return session

    # Without the response cache: every listing is the server's present one, and a copy of it costs more than asking.
    return LightClient(server, build, **{"cache": None, **options})


def opened_client(server: Any, shared: Shared, **options: Any) -> LightClient | None:
    """As `in_process_client`, open already: it is not entered, and `end_here` ends it. None where it takes entering.

    It does not where the server was asked before what it speaks (`mode` is `auto` then), and has no lifespan of its
    own, whose scopes would have to be left in the task that entered them. Such a client cannot `listen`.
    """
    known = shared.discovered
    if known is None or known[0] is not server or options.get("mode", "auto") != "auto":
        return None
    lowlevel = _lowlevel(server)
    if not is_known_release() or options.get("extensions") or lowlevel.lifespan is not no_lifespan:
        return None
    template = shared.template
    if not isinstance(template, LightClient) or template.server is not server:
        template = shared.template = LightClient(server, _entered_alone, cache=None, mode=LATEST_MODERN_VERSION)
    client = template.another({**options, "mode": LATEST_MODERN_VERSION, "prior_discover": known[1]})
    session = _in_process_session(client, lowlevel, {}, shared, None)
    session.open_here()
    session.adopt(known[1])
    client._entered, client._session = True, session
    return client


async def _entered_alone(*_: Any) -> ClientSession:
    raise RuntimeError("this client is open already")


def _lowlevel(server: Any) -> Server[Any]:
    return server._lowlevel_server if isinstance(server, MCPServer) else server


def _in_process_session(
    client: Client,
    server: Server[Any],
    lifespan: Any,
    shared: Shared,
    on_discovered: Callable[[DiscoverResult], None] | None,
) -> InProcessSession:
    return InProcessSession(
        server=server,
        lifespan=lifespan,
        pair=Pair(server, lifespan),
        shared=shared,
        on_discovered=on_discovered,
        **_session_options(client),
    )


@functools.cache
def is_known_release() -> bool:
    """Whether the installed `mcp` is one whose inside the light sessions know."""
    return version("mcp").startswith(_WRITTEN_FOR)


def http_client(
    url: str,
    http: httpx2.AsyncClient,
    shared: Shared,
    *,
    connections: Connections | None = None,
    max_answer_bytes: int = sys.maxsize,
    **options: Any,
) -> Client:
    """A client for a streamable HTTP server, not entered yet: a light one where possible, else the SDK's own.

    `http`: sends the requests; not closed by the client. `connections`: those of its transport, to send plain requests
    over directly. `max_answer_bytes`: longer answers are left to `http`. `max_sse_event_size` and other `options`: as
    for `streamable_http_client` and `Client`.
    """
    size = options.pop("max_sse_event_size", None)
    transport = streamable_http_client(url, http_client=http, max_sse_event_size=size)
    if not is_known_release() or options.get("extensions"):
        logger.debug("the SDK's own client for an HTTP server: mcp %s", version("mcp"))
        return Client(transport, **options)

    async def build(client: Client, exit_stack: AsyncExitStack) -> ClientSession:
        quick = None
        if connections is not None:
            from .engine import QuickPost  # loads aiohttp, which other servers do without

            quick = QuickPost(url, http, connections, max_answer_bytes=max_answer_bytes)
        dispatcher = HttpDispatcher(url, http, max_sse_event_size=size, quick=quick)
        exit_stack.push_async_callback(dispatcher.end_session)
        return HttpSession(dispatcher=dispatcher, shared=shared, **_session_options(client))

    return LightClient(transport, build, **{"cache": None, **options})


class LightClient(Client):
    """A `Client` with a session of ours. Made by `in_process_client` and `http_client`."""

    def __init__(self, server: Any, build: BuildSession, **options: Any) -> None:
        super().__init__(server, **options)
        self._build = build

    def another(self, options: dict[str, Any]) -> LightClient:
        """A client of the same server with other options, not entered either. What `Client` makes of the server, which
        takes longer than all the rest, is that of this one."""
        made = LightClient.__new__(LightClient)
        made.__dict__ = {**self.__dict__, **options}
        return made

    async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
        return await self._build(self, exit_stack)

    @property
    def call_plain(self) -> CallPlain | None:
        """As `call_tool`, with a plain result as it is on the wire. None where the session is the SDK's own.

        It gives None where the call is not plain; it was not made then. An answer that asks for something goes to
        `answered`. A call that raises `HEADER_MISMATCH` was not made either, and `call_tool` knows what to do.
        """
        session = self._session
        return session.call_plain if isinstance(session, LightSession) else None

    def end_here(self) -> None:
        """End a client that `opened_client` made."""
        session, self._session = self._session, None
        if isinstance(session, InProcessSession):
            session.close_here()

    async def answered(
        self,
        first: InputRequiredResult,
        name: str,
        arguments: dict[str, Any],
        progress: ProgressFnT | None,
        meta: Any,
    ) -> CallToolResult:
        """Answer what a tool asked for in the middle of a plain call, until it has its result."""
        session = self.session

        async def again(
            responses: InputResponses | None, state: str | None
        ) -> CallToolResult | InputRequiredResult | Result:
            async def send() -> CallToolResult | InputRequiredResult | Result:
                return await session.call_tool(
                    name,
                    arguments,
                    progress_callback=progress,
                    input_responses=responses,
                    request_state=state,
                    meta=meta,
                    allow_input_required=True,
                )

            try:
                return await send()
            except MCPError as mismatch:
                if mismatch.code != HEADER_MISMATCH:
                    raise
                try:
                    await self._relist_tool(name)
                except (MCPError, ValidationError) as error:
                    raise mismatch from error
                return await send()

        result = await self._drive_input_required(first, again)
        assert isinstance(result, CallToolResult)
        return result


def _session_options(client: Client) -> dict[str, Any]:
    """What `Client` hands to its session."""
    return {
        "read_timeout_seconds": client.read_timeout_seconds,
        "sampling_callback": client.sampling_callback,
        "sampling_capabilities": client.sampling_capabilities,
        "list_roots_callback": client.list_roots_callback,
        "logging_callback": client.logging_callback,
        "log_level": client.log_level,
        "message_handler": client.message_handler,
        "client_info": client.client_info,
        "elicitation_callback": client.elicitation_callback,
    }
