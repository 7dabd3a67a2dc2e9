"""The SDK's client on light sessions."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

import httpx2
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, CallToolResult, InputRequiredResult, InputResponses, Result
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError

from .engine import Connections, QuickPost
from .http import HttpDispatcher, HttpSession
from .in_process import InProcessSession, Pair
from .session import LightSession, PlainAnswer
from .sharing import Shared

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
        lowlevel: Server[Any] = server._lowlevel_server if isinstance(server, MCPServer) else server
        lifespan = await exit_stack.enter_async_context(lowlevel.lifespan(lowlevel))
        pair = Pair(lowlevel, lifespan)
        exit_stack.callback(pair.close)
        return InProcessSession(
            server=lowlevel,
            lifespan=lifespan,
            pair=pair,
            shared=shared,
            on_discovered=functools.partial(shared.keep_discovered, server) if mode == "auto" else None,
            **_session_options(client),
        )

    # Without the response cache: every listing is the server's present one, and a copy of it costs more than asking.
    return LightClient(server, build, **{"cache": None, **options})


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

    async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
        return await self._build(self, exit_stack)

    async def call_plain(
        self, name: str, arguments: dict[str, Any], progress: ProgressFnT | None, meta: Any
    ) -> PlainAnswer | CallToolResult | None:
        """As `call_tool`, with a plain result as it is on the wire. None where it takes `call_tool`.

        That is where the call is not plain, and where the server refused it over its headers: in neither case was it
        made, and the SDK knows what to do.
        """
        session = self._session
        if not isinstance(session, LightSession):
            return None
        try:
            answer = await session.call_plain(name, arguments, progress, meta)
        except MCPError as error:
            if error.code == HEADER_MISMATCH:
                return None
            raise
        if not isinstance(answer, InputRequiredResult):
            return answer

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

        result = await self._drive_input_required(answer, again)
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
