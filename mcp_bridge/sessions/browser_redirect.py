"""`log_in`: a user's login with a server behind a URL, by the user's browser. Imports `mcp`: load it late."""

from __future__ import annotations

import contextlib
import secrets
import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
from mcp.shared.auth import AuthorizationCodeResult

from ..access.logins import BrowserLogin, LoginFailed, read_tokens, store_key, write_tokens
from ..access.redaction import public_url
from ..access.settings import LoginSettings, is_safe
from ..errors import SourceError
from ..sources.specs import HttpSpec
from .session import CannotOpen, open_session
from .transports import Transport

_WAIT_S = 300.0
"""How long the user may take to log in."""
_PATH = "/callback"
_MOST_HEAD_BYTES = 65_536
_LONGEST_ERROR = 80
_OTHER = "This has a wrong state: it answers another login, and is refused. Log in at the address in the terminal."
_DONE = "You can close this window. The terminal tells whether you are logged in."


async def log_in(spec: HttpSpec, say: Callable[[str], None]) -> str | None:
    """Open a session with the server, let the user log in where it asks for that, and keep the tokens.

    `say` hears the address where the user logs in, which is also opened in a browser. Gives where the tokens are kept,
    in words; None where the server asks for no login. Raises `SourceError` where no login comes of it.
    """
    settings = spec.access.login
    if not spec.may_have_kept_login or isinstance(settings, LoginSettings) or (settings and settings.refresh_token):
        raise SourceError(f"{spec.label} has a login of its own (headers, auth or a URL with a user); remove it first")
    key = store_key(spec.url, settings)
    former = await anyio.to_thread.run_sync(read_tokens, key)
    failure: CannotOpen | None = None
    redirect = await _Redirect.opened(settings.redirect_uri if settings is not None else None, say)
    async with redirect.listener, anyio.create_task_group() as group:
        group.start_soon(redirect.listener.serve, redirect.handle)
        login = BrowserLogin(
            spec.url,
            settings,
            spec.learn,
            redirect_uri=redirect.uri,
            show=redirect.show,
            answered=redirect.answered,
            wanted_scope=former.wanted_scope if former is not None else None,
        )
        try:
            session = await open_session(Transport(spec, connect_timeout_s=2 * _WAIT_S, login=login), group)
        except CannotOpen as error:
            failure = error
        else:
            await session.close()
        group.cancel_scope.cancel()
    if failure is not None:
        raise SourceError(str(failure)) from None
    kept = login.kept()
    return None if kept is None else await anyio.to_thread.run_sync(write_tokens, key, kept)


class _Redirect:
    """Where the browser comes back to, on this machine alone (RFC 8252, section 7.3)."""

    def __init__(
        self, listener: anyio.abc.Listener[anyio.abc.SocketStream], uri: str, say: Callable[[str], None]
    ) -> None:
        self.uri = uri
        self._path = urlsplit(uri).path or "/"
        self.listener = listener
        self._say = say
        self._state = ""
        self._query: dict[str, str] = {}
        self._came = anyio.Event()

    @classmethod
    async def opened(cls, uri: str | None, say: Callable[[str], None]) -> _Redirect:
        """`uri`: by default on a free port. Raises `SourceError` where its port is taken."""
        where = urlsplit(uri or "http://127.0.0.1")
        try:
            listener = await anyio.create_tcp_listener(local_host=where.hostname, local_port=where.port or 0)
        except OSError as error:
            raise SourceError(
                f"the browser cannot come back to auth.redirect_uri {uri!r} ({error.strerror or error}); end the "
                "program that listens there, or register another port"
            ) from error
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        return cls(listener, uri or f"http://127.0.0.1:{port}{_PATH}", say)

    async def show(self, address: str) -> None:
        """Send the user to the address of a login."""
        if not is_safe(address):
            raise LoginFailed(f"{public_url(address)} is not an https:// URL; nobody logs in there")
        # A server may ask twice, where its authorization server changes meanwhile.
        self._query, self._came = {}, anyio.Event()
        self._state = _first(parse_qs(urlsplit(address).query)).get("state", "")
        self._say(f"log in at this address, which your browser now opens: {address}")
        with contextlib.suppress(webbrowser.Error):
            await anyio.to_thread.run_sync(webbrowser.open, address, abandon_on_cancel=True)

    async def answered(self) -> AuthorizationCodeResult:
        """What the browser came back with. Raises `LoginFailed` for a refusal, and where nobody logs in."""
        with anyio.move_on_after(_WAIT_S):
            await self._came.wait()
        query = self._query
        if not query:
            raise LoginFailed(f"nobody logged in within {_WAIT_S:g} s")
        if "error" in query:
            raise LoginFailed(f"the login was refused with {query['error'][:_LONGEST_ERROR]!r}")
        return AuthorizationCodeResult(code=query.get("code", ""), state=query["state"], iss=query.get("iss"))

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        """Answer a browser."""
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.send(self._answer(await _head(stream)))

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.decode("latin-1").partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        query = _first(parse_qs(target.query, keep_blank_values=True))
        if method != "GET" or target.path != self._path or not {"code", "error"} & query.keys():
            return _page(HTTPStatus.NOT_FOUND, "This is not where a login comes back to.")
        if not secrets.compare_digest(query.get("state", "").encode(), self._state.encode()):
            return _page(HTTPStatus.BAD_REQUEST, _OTHER)  # any page can send the browser here: the login goes on
        if not self._came.is_set():
            self._query = query
            self._came.set()
        return _page(HTTPStatus.OK, _DONE)


async def _head(stream: anyio.abc.SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MOST_HEAD_BYTES:
        head += await stream.receive()
    return head


def _first(query: dict[str, list[str]]) -> dict[str, str]:
    return {name: values[0] for name, values in query.items()}


def _page(status: HTTPStatus, text: str) -> bytes:
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    # The address holds the code: it goes to no other site and into no cache.
    head += "Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()
