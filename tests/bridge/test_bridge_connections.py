"""The connections that all sessions with one server share, as a transport of httpx2."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest

from mcp_bridge.sessions.connections import AiohttpTransport, Connections


async def answer_http(stream: Any, reply: bytes) -> None:
    """Read one request and reply, as a server of a test's own."""
    async with stream:
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive()
        await stream.send(reply)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", httpx2.RemoteProtocolError),
        (b"no HTTP at all\r\n\r\n", httpx2.RemoteProtocolError),
        (None, httpx2.ConnectError),
    ],
)
def test_errors_of_the_network_are_httpx2s(reply: bytes | None, error: type[Exception]) -> None:
    async def post() -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        connections = Connections(httpx2.create_ssl_context())
        async with listener, anyio.create_task_group() as group, connections.used():
            if reply is None:
                await listener.aclose()
            else:
                group.start_soon(listener.serve, lambda stream: answer_http(stream, reply))
            async with httpx2.AsyncClient(transport=AiohttpTransport(connections), timeout=10) as http:
                with pytest.raises(error):
                    await http.post(f"http://127.0.0.1:{port}/", content=b"x")
            group.cancel_scope.cancel()

    anyio.run(post)


def test_each_client_has_its_own_cookies_on_shared_connections() -> None:
    async def post() -> None:
        got: list[bytes] = []

        async def serve(stream: Any) -> None:
            async with stream:
                with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        got.append(await stream.receive())
                        cookie = b"Set-Cookie: who=%d\r\n" % len(got)
                        await stream.send(b"HTTP/1.1 200 OK\r\n" + cookie + b"Content-Length: 0\r\n\r\n")

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        # By name: cookies of bare addresses are dropped by some.
        url = f"http://localhost:{listener.extra(anyio.abc.SocketAttribute.local_port)}/"
        connections = Connections(httpx2.create_ssl_context())
        async with listener, anyio.create_task_group() as group, connections.used():
            group.start_soon(listener.serve, serve)
            async with (
                httpx2.AsyncClient(transport=AiohttpTransport(connections)) as one,
                httpx2.AsyncClient(transport=AiohttpTransport(connections)) as two,
            ):
                for client in (one, two, one, two):
                    await client.get(url)
            group.cancel_scope.cancel()
        assert [b"who=" in request for request in got] == [False, False, True, True]
        assert b"who=1" in got[2]
        assert b"who=2" in got[3]

    anyio.run(post)
