"""Who may read the page and write labels: this machine, or whoever has the key; and no page of another site."""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import parse_qs, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..serving.hosts import names_this_machine

_COOKIE = "toolbake_view"
_KEY_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>toolbake</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/page/base.css">
<main class="ask-key"><h1>toolbake</h1><form method="post" action="/key"><label>Key
<input type="password" name="key" autofocus autocomplete="current-password"></label><button>Open</button></form>
"""
_MOST_BYTES = 64 * 1024

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Access:
    """Middleware: each request is checked, and each answer carries `HEADERS`."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        """`api_key`: None where only this machine can connect."""
        self._app = app
        self._api_key = api_key
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        refusal = await self._refusal(request)
        answer: ASGIApp = refusal or self._app

        async def send_with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                given = message.setdefault("headers", [])
                assert isinstance(given, list)
                names = {name for name, _ in given}
                given += [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
            await send(message)

        await answer(scope, receive, send_with_headers)  # type: ignore[arg-type]

    async def _refusal(self, request: Request) -> Response | None:
        if self._api_key is None and not names_this_machine(request):
            return PlainTextResponse("This page is for this machine; open it as http://127.0.0.1:PORT.", 421)
        if request.method not in ("GET", "HEAD") and not same_origin(request):
            return PlainTextResponse("Requests that write must come from the page itself.", 403)
        if self._api_key is None or request.url.path == "/page/base.css" or self._is_known(request):
            return None
        return await self._ask_for_key(request)

    def _is_known(self, request: Request) -> bool:
        assert self._api_key is not None
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(given.strip(), self._api_key):
            return True
        return _equal(request.cookies.get(_COOKIE, ""), self._session)

    async def _ask_for_key(self, request: Request) -> Response:
        assert self._api_key is not None
        if (request.method, request.url.path) == ("POST", "/key"):
            given = parse_qs((await small_body(request)).decode(errors="replace")).get("key", [""])[0]
            if _equal(given, self._api_key):
                welcome = RedirectResponse("/", status_code=303)
                welcome.set_cookie(_COOKIE, self._session, httponly=True, samesite="strict")
                return welcome
        policy = CONTENT_SECURITY_POLICY.replace("form-action 'none'", "form-action 'self'")
        headers = {"content-security-policy": policy, "www-authenticate": "Bearer"}
        # With no-referrer, a browser says of a form that it comes from nowhere ("origin: null"), which is refused.
        headers["referrer-policy"] = "same-origin"
        return HTMLResponse(_KEY_PAGE, status_code=401, headers=headers)


def same_origin(connection: HTTPConnection) -> bool:
    """Whether a browser says that a page of this very server sent the request, or no browser did."""
    if connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


async def small_body(request: Request) -> bytes:
    """The body of a request. Raises `ValueError` where it is larger than any label."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ValueError(f"the body has more than {_MOST_BYTES} bytes")
    return bytes(body)


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
