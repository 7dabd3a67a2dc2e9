"""Listeners for clients: standard input and output, or a port on the loopback address or on any address with a key."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from ..errors import SourceError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

App = Callable[[Any, Any, Any], Awaitable[None]]

KEPT_OPEN_S = 120
"""Seconds for which a connection without a request is kept: longer than clients keep one. httpx keeps it for 5 s, and
so does uvicorn by default: a request that is sent just when the server closes is lost."""


async def serve_stdio(server: Server[Any], listening: Callable[[], None] = lambda: None) -> None:
    """Serve one client over standard input and output until it hangs up."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        listening()
        await server.run(read, write, server.create_initialization_options())


async def serve_app(
    app: App,
    *,
    port: int,
    host: str = "127.0.0.1",
    key: str | None = None,
    listening: Callable[[], None] = lambda: None,
) -> None:
    """Serve until cancelled or interrupted. `listening` is called when clients may connect.

    `key`: what clients must send as `Authorization: Bearer KEY`; needed where other machines reach `host`. Raises
    `SourceError` where it is missing or empty, or the port is taken.
    """
    import uvicorn

    listener = listen(host, port, key)
    guarded = app if key is None else with_key(app, key)

    async def ended(scope: Any, receive: Any, send: Any) -> None:
        """Ends the answers that are still under way when the server stops, so that no traceback tells of them."""
        answer = ""

        async def noted(message: Any) -> None:
            nonlocal answer
            answer = "complete" if message["type"].endswith(".body") and not message.get("more_body") else "begun"
            await send(message)

        try:
            await guarded(scope, receive, noted)
        except anyio.get_cancelled_exc_class():
            if scope["type"] != "http" or not server.should_exit:
                raise
        if scope["type"] == "http" and server.should_exit and answer != "complete":
            if not answer:
                await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(ended, log_level="warning", timeout_keep_alive=KEPT_OPEN_S, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    with listener:
        listener.listen()
        listening()
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                # Shielded: uvicorn leaves its sockets open when it is cancelled, but not when it is told to stop.
                with anyio.CancelScope(shield=True):
                    await server.serve(sockets=[listener])
                group.cancel_scope.cancel()

            group.start_soon(serve)
            try:
                await anyio.sleep_forever()
            finally:
                server.should_exit = True


def listen(host: str, port: int, key: str | None) -> socket.socket:
    """A bound socket. Raises `SourceError` as `serve_app` does."""
    if key is not None and not key.strip():
        raise SourceError("the key is empty; give one, or None for a server that only this machine reaches")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise SourceError(f"port {port} on {host!r} cannot be used ({error}); choose another one") from error
    if key is None and not ipaddress.ip_address(address[0]).is_loopback:
        raise SourceError(
            f"host is {host!r}, which other machines reach, and there is no key; give one, or serve on 127.0.0.1"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        raise SourceError(f"port {port} on {host} cannot be used ({error}); choose another one") from error
    return listener


def with_key(app: App, key: str) -> App:
    """`app` for clients that send the key. All others are answered 401, without a word of what they sent."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and sends_key(scope, key.strip())):
            await app(scope, receive, send)
            return
        if scope["type"] == "http":
            body = b'{"error": "the key is missing or wrong; send it as Authorization: Bearer KEY"}'
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return guarded


def sends_key(scope: Mapping[str, Any], key: str) -> bool:
    """Whether a request has this key."""
    given = sent_key(scope)
    return given is not None and hmac.compare_digest(given, key.encode())


def sent_key(scope: Mapping[str, Any]) -> bytes | None:
    """What follows `Authorization: Bearer`, where it comes once: of two, a proxy may have checked the other one."""
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None
