"""Listeners for clients: standard input and output, or a port on the loopback address or on any address with a key.

Without a key only a client that means this machine may send requests.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

import anyio

from ..daemon_threads import call_in_daemon_thread
from ..errors import SourceError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

App = Callable[[Any, Any, Any], Awaitable[None]]

KEPT_OPEN_S = 120
"""Seconds for which a connection without a request is kept: longer than clients keep one. httpx keeps it for 5 s, and
so does uvicorn by default: a request that is sent just when the server closes is lost."""


async def serve_stdio(server: Server[Any], listening: Callable[[], None] = lambda: None) -> None:
    """Serve one client over standard input and output until it hangs up or this is cancelled."""
    async with stdio_streams() as (read, write):
        listening()
        await server.run(read, write, server.create_initialization_options())


@asynccontextmanager
async def stdio_streams() -> AsyncIterator[Any]:
    """`stdio_server` of the SDK, which can be cancelled: its own reading of standard input cannot, and Ctrl-C would be
    heard only with the client's next line."""
    from mcp.server.stdio import stdio_server

    with _own_standard_input() as file:
        try:
            async with stdio_server(stdin=cast("anyio.AsyncFile[str]", _lines(file))) as streams:
                yield streams
        except BaseExceptionGroup as group:
            # Cancelled while it hands a message on, the SDK raises what its own stream raised.
            task = asyncio.current_task()
            if task is None or not task.cancelling() or group.split(anyio.BrokenResourceError)[1] is not None:
                raise
            raise asyncio.CancelledError from group


@contextmanager
def _own_standard_input() -> Iterator[TextIO]:
    """Standard input, which is empty for everybody else meanwhile, as the SDK has it: a child must not read from it."""
    client = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        # Never closed: after a cancellation the thread still reads from it.
        yield os.fdopen(client, encoding="utf-8", errors="replace", closefd=False)
    finally:
        os.dup2(client, 0)


async def _lines(file: TextIO) -> AsyncIterator[str]:
    while line := await call_in_daemon_thread(file.readline, name="toolbake-stdin"):
        yield line


async def serve_app(
    app: App,
    *,
    port: int,
    host: str = "127.0.0.1",
    key: str | None = None,
    listening: Callable[[], None] = lambda: None,
) -> None:
    """Serve until cancelled or interrupted. `listening` is called when clients may connect.

    `key`: what clients must send as `Authorization: Bearer KEY`; needed where other machines reach `host`. Without one,
    only requests that mean this machine are answered. Raises `SourceError` where it is missing or empty, or the port is
    taken.
    """
    import uvicorn

    key = None if key is None else key.strip()
    listener = listen(host, port, key)
    guarded = for_this_machine(app, host) if key is None else with_key(app, key)

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


def listen(host: str, port: int, key: str | None, *, key_name: str = "key") -> socket.socket:
    """A bound socket. Raises `SourceError` as `serve_app` does; `key_name`: what it calls the key."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise SourceError(f"port is {port!r}; give a number from 0 (any free one) to 65535")
    if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise SourceError(
            f"the {key_name} is empty or holds blanks, line ends or characters that no client can send in a header; "
            "give another key, or None for a server that only this machine reaches"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise SourceError(f"host is {host!r}, which is not an address of this machine: {error}") from error
    if key is None and not ipaddress.ip_address(address[0]).is_loopback:
        raise SourceError(
            f"`host` is {host!r}, which other machines can reach, and there is no key; give `{key_name}`, or "
            "`host='127.0.0.1'` for this machine only"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # lets a port be taken again right after its server has ended
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(0)  # claims the port: two sockets may be bound to one port as long as none listens
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SourceError(
                f"port {port} of {host} is in use by another program; stop it, choose another port, or `port=0` for any"
            ) from error
        raise SourceError(f"cannot listen on port {port} of {host}: {error.strerror}") from error
    return listener


def with_key(app: App, key: str) -> App:
    """`app` for clients that send the key. All others are answered 401, without a word of what they sent."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and sends_key(scope, key)):
            await app(scope, receive, send)
            return
        if scope["type"] == "http":
            body = b'{"error": "the key is missing or wrong; send it as Authorization: Bearer KEY"}'
            await _refuse(send, 401, body, (b"www-authenticate", b"Bearer"))

    return guarded


_HOST = re.compile(r"(?:\[(?P<ip>[^\]]*)\]|(?P<name>[\w.-]+))(?::\d*)?", re.ASCII)
"""A host and maybe a port, and nothing else that a URL may have: no user, no path."""


def names_this_machine(headers: Mapping[str, str], *, also: str = "localhost") -> bool:
    """Whether `Host` is a loopback address, localhost or `also`. Another site's name that was made to lead here (DNS
    rebinding) is none of them: a page of that site could send requests that browsers take for its own."""
    return _is_this_machine(headers.get("host", ""), also)


def comes_from_this_machine(headers: Mapping[str, str], *, also: str = "localhost") -> bool:
    """Whether the page that sends the request, where one does (`Origin`), is of such a host."""
    origin = headers.get("origin")
    return origin is None or _is_this_machine(origin.partition("://")[2], also)


def _is_this_machine(place: str, also: str) -> bool:
    found = _HOST.fullmatch(place)
    if found is None:
        return False
    host = (found["ip"] or found["name"] or "").lower()
    try:
        return host in ("localhost", also.lower()) or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def for_this_machine(app: App, host: str) -> App:
    """`app` for requests that mean this machine, by `host` or a name of its own, and are of no other site's page."""
    from starlette.datastructures import Headers

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        if headers is not None and not names_this_machine(headers, also=host):
            await _refuse(send, 421, b'{"error": "the Host is not this machine, and this server has no key"}')
        elif headers is not None and not comes_from_this_machine(headers, also=host):
            await _refuse(send, 403, b'{"error": "the Origin is not this machine, and this server has no key"}')
        else:
            await app(scope, receive, send)

    return guarded


async def _refuse(send: Any, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    told = [(b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


def sends_key(scope: Mapping[str, Any], key: str) -> bool:
    """Whether a request has this key."""
    given = sent_key(scope)
    return given is not None and hmac.compare_digest(given, key.encode())


def sent_key(scope: Mapping[str, Any]) -> bytes | None:
    """What follows `Authorization: Bearer`, where it comes once: of two, a proxy may have checked the other one."""
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None
