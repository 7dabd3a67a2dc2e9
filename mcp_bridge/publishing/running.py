"""Published tools on standard input and output, or on a port."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ..errors import SourceError
from ..records import LeftOut
from ..sessions.handlers import Handlers
from ..sources.connecting import FaultInjection, connect
from ..toolsets.toolset import Toolset
from ..world import WorldSource
from .server import IDLE_S, MAX_WORLDS, publish

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_WHOLE = 100_000_000
"""Characters of a result's text: what a model may read is for the client to say."""


async def serve_tools(
    source: Any,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    key: str | None = None,
    name: str = "toolbake",
    control: bool | None = None,
    max_worlds: int = MAX_WORLDS,
    idle_s: float = IDLE_S,
    call_timeout_s: float = 30.0,
    connect_timeout_s: float = 20.0,
    handlers: Handlers | None = None,
    inject_faults: FaultInjection | None = None,
    ready: Callable[[Toolset | WorldSource, Sequence[LeftOut]], None] = lambda *_: None,
) -> None:
    """Serve tools over standard input and output, or with `port` over streamable HTTP at `http://HOST:PORT/mcp`, until
    the client hangs up or it is cancelled.

    `source`: whatever `connect` takes, or a connected toolset. `host`: an address that other machines reach needs a
    `key`, which clients send as `Authorization: Bearer KEY`. A session without requests for `idle_s` seconds ends, and
    its world with it. `ready`: hears what is served and what is left out, once clients may connect. The rest is as for
    `publish` and `connect`; texts of results are not cut.

    Raises `SourceError` where the source cannot be used, the key is missing or the port is taken.
    """
    if port is None and (key is not None or host != "127.0.0.1"):
        raise SourceError("host and key do nothing over standard input and output; give a port as well")
    async with AsyncExitStack() as stack:
        served = source
        if not isinstance(source, Toolset):
            connecting = connect(
                source,
                call_timeout_s=call_timeout_s,
                connect_timeout_s=connect_timeout_s,
                max_result_chars=_WHOLE,
                handlers=handlers,
                inject_faults=inject_faults,
            )
            served = await stack.enter_async_context(connecting)
        server = publish(served, name=name, control=control, max_worlds=max_worlds, idle_s=idle_s)
        told = functools.partial(ready, served, served.left_out)
        if port is None:
            await _serve_stdio(server, told)
        else:
            from .listening import serve_app

            app = server.streamable_http_app(host=host, session_idle_timeout=idle_s, max_sessions=max_worlds)
            await serve_app(app, port=port, host=host, key=key, listening=told)


async def _serve_stdio(server: Server[Any], ready: Callable[[], None]) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        ready()
        await server.run(read, write, server.create_initialization_options())
