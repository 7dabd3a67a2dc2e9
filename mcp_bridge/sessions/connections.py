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
from dataclasses import dataclass

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

_ENDING_S = 1.0
"""How long a server may take to end a stream of events after its last one."""

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


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """The transport of one client; closing it leaves the connections open. A request may be sent ahead of the client
    that makes it: see `post_ahead`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._outcomes: dict[str, Outcome] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        outcome = self._outcomes.pop(request.headers.pop(_AHEAD, ""), None)
        if outcome is not None:
            return outcome.response(request)
        limits = request.extensions.get("timeout", {})
        with _as_httpx_errors(request):
            response = await self._connections.session.request(
                request.method,
                URL(str(request.url), encoded=True),
                data=await request.aread() or None,
                headers=headers_of(request),
                allow_redirects=False,
                timeout=_timeout(limits.get("connect"), limits.get("read")),
            )
        return _as_httpx(response, request)

    async def post_ahead(
        self, url: URL, headers: CIMultiDict[str], body: bytes, *, connect_timeout_s: float | None, most_bytes: int
    ) -> Outcome:
        """What comes of a request: its answer with what has been read of it, which is all of a JSON text of at most
        `most_bytes`, and the first bytes of a stream of events."""
        try:
            response = await self._connections.session.post(
                url, data=body, headers=headers, allow_redirects=False, timeout=_timeout(connect_timeout_s, None)
            )
        except _NETWORK_ERRORS as error:
            return Outcome(error=error)
        try:
            return Outcome(response, await _begin(response, most_bytes))
        except BaseException as error:
            response.close()
            if not isinstance(error, _NETWORK_ERRORS):
                raise
            return Outcome(error=error)

    def keep(self, outcome: Outcome, name: str) -> dict[str, str]:
        """The headers of a request that has this outcome and is not sent again. `name`: no other one's of this client
        now."""
        self._outcomes[name] = outcome
        return {_AHEAD: name}

    def drop_kept(self) -> None:
        """Close what no request asked for."""
        while self._outcomes:
            _, outcome = self._outcomes.popitem()
            if outcome.answer is not None:
                outcome.answer.close()


_AHEAD = "toolbake-sent-ahead"
"""A header between the client and its transport; it is never sent."""


@dataclass(frozen=True)
class Outcome:
    """What came of a request that was sent ahead."""

    answer: aiohttp.ClientResponse | None = None
    begin: bytes = b""
    """What has been read of it."""
    error: BaseException | None = None

    def response(self, request: httpx2.Request) -> httpx2.Response:
        """As the transport gives it back. Raises httpx2's errors."""
        if self.error is not None or self.answer is None:
            with _as_httpx_errors(request):
                raise self.error or aiohttp.ServerDisconnectedError
        return _as_httpx(self.answer, request, self.begin)

    @property
    def has_ended(self) -> bool:
        """Whether all of an answer has come: its connection then serves other requests already."""
        return self.answer is not None and self.answer.content.at_eof()

    async def give_back(self) -> None:
        """Wait for the end of an answer of which nothing more is wanted, so that its connection serves again."""
        response = self.answer
        assert response is not None
        try:
            with anyio.move_on_after(_ENDING_S), contextlib.suppress(*_NETWORK_ERRORS):
                while await response.content.readany():
                    pass
        finally:
            _leave(response)


async def _begin(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    if response.status == 200 and "Set-Cookie" not in response.headers:
        size = response.content_length
        if response.content_type == "text/event-stream":
            return await response.content.readany()
        if response.content_type == "application/json" and size is not None and size <= most_bytes:
            return await response.read()
    return b""


def _leave(response: aiohttp.ClientResponse) -> None:
    if response.content.at_eof():
        response.release()
    else:
        response.close()


def headers_of(request: httpx2.Request) -> CIMultiDict[str]:
    return CIMultiDict([(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw])


def _as_httpx(response: aiohttp.ClientResponse, request: httpx2.Request, begin: bytes = b"") -> httpx2.Response:
    return httpx2.Response(
        response.status,
        headers=list(response.raw_headers),
        stream=_Body(response, request, begin),
        extensions={"reason_phrase": (response.reason or "").encode("latin-1"), "http_version": b"HTTP/1.1"},
        request=request,
    )


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse, request: httpx2.Request, begin: bytes) -> None:
        self._response = response
        self._request = request
        self._begin = begin

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._begin:
            yield self._begin
        with _as_httpx_errors(self._request):
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        _leave(self._response)


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
