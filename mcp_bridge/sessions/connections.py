"""A transport for httpx2 over aiohttp's connections, shared by all sessions with one server.

httpx2 looks through all connections of its pool for every request, and parses HTTP in Python. Above the transport
everything stays httpx2's: authentication, cookies, hooks, decoding. The errors are mapped here and not by the package
`httpx-aiohttp`, which reports a connection that the server closed after the request as one that was never made
(`ConnectTimeout`): the call would be made again.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import anyio
import anyio.lowlevel
import httpx2
from multidict import CIMultiDict
from yarl import URL

_KEEP_ALIVE_S = 4.0
"""Below the five seconds after which common servers close an idle connection: a request on one of those is lost."""

_TURNS_TO_CLOSE = 100
"""Turns of the event loop in which a socket that was shut down is closed; it takes about four."""

_OWN_HEADERS = frozenset({"User-Agent", "Accept", "Accept-Encoding", "Content-Type"})


class Connections:
    """The connections to one server, for all sessions with it. They are closed when the last session has gone."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._users = 0

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keep the connections while the block runs. In asyncio only."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            session = self._session
            if self._users == 0 and session is not None:
                self._session = None
                with anyio.CancelScope(shield=True):
                    await session.close()
                    await self._close_sockets()

    async def _close_sockets(self) -> None:
        """Do not leave behind those that still say goodbye.

        Where a request failed or was left, aiohttp closes its TLS connection gently and forgets it: until the server
        has answered up to thirty seconds pass, and by then the event loop may have ended.
        """
        for _ in range(_TURNS_TO_CLOSE):
            still_open = [sock for sock in self._sockets if sock.fileno() != -1]
            if not still_open:
                return
            for sock in still_open:
                with contextlib.suppress(OSError):  # the server was faster
                    sock.shutdown(socket.SHUT_RDWR)
            await anyio.lowlevel.checkpoint()

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        self._sockets.add(sock)
        return sock

    def transport(self) -> httpx2.AsyncBaseTransport:
        """A transport over these connections, for an `httpx2.AsyncClient`; closing it leaves them open."""
        return _Transport(self)

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Without limits: how many calls there are at once is for the guard to say.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, ssl=self._tls, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=self._new_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=_OWN_HEADERS,
                requote_redirect_url=False,
            )
        return self._session


def uses_proxy(url: str) -> bool:
    """Whether the environment names a proxy for `url`: that is left to httpx2's own connections."""
    split = urlsplit(url)
    proxies = getproxies()
    return bool(proxies.get(split.scheme) or proxies.get("all")) and not proxy_bypass(split.hostname or "")


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        headers = CIMultiDict([(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw])
        limits = request.extensions.get("timeout", {})
        with _as_httpx_errors(request):
            response = await self._connections.session.request(
                request.method,
                URL(str(request.url), encoded=True),
                data=body or None,
                headers=headers,
                allow_redirects=False,
                timeout=_timeout(limits.get("connect"), limits.get("read")),
            )
        return _as_httpx(response, request)


def _as_httpx(response: aiohttp.ClientResponse, request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(
        response.status,
        headers=list(response.raw_headers),
        stream=_Body(response, request),
        extensions={"reason_phrase": (response.reason or "").encode("latin-1"), "http_version": b"HTTP/1.1"},
        request=request,
    )


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx_errors(self._request):
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


@functools.lru_cache(maxsize=64)
def _timeout(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    """Without limits on the whole, on writing, and on waiting for a connection, which does not arise."""
    return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)


_NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


@contextlib.contextmanager
def _as_httpx_errors(request: httpx2.Request) -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx2.ConnectTimeout(str(error), request=request) from error
    except (TimeoutError, aiohttp.ServerTimeoutError) as error:
        raise httpx2.ReadTimeout(str(error), request=request) from error
    except (aiohttp.ClientConnectorError, aiohttp.ClientSSLError) as error:
        raise httpx2.ConnectError(str(error), request=request) from error
    except aiohttp.InvalidURL as error:
        raise httpx2.UnsupportedProtocol(str(error), request=request) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
        raise httpx2.RemoteProtocolError(str(error) or "the server closed the connection", request=request) from error
    except (aiohttp.ClientError, OSError) as error:
        raise httpx2.ReadError(str(error), request=request) from error
