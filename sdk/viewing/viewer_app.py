"""The viewer as an ASGI application on a server: who may read and write, the page, and what the page asks for."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_bridge.publishing.listener import names_this_machine, sends_key

from ..errors import ConfigError, ToolbakeError
from ..serving.server import Server, bind
from ..traces.json_text import dump_json
from .index import Announced, Place, RunIndex, facts_version, find_runs, metrics_of
from .labels import Label, Labels, digest_of, facts_of, labels_of
from .page_files import TYPES, page_file
from .rollout_view import FIELDS, SHOWN_CHARS, cut_texts, detail, text_at, token_rows
from .row_file import RowChange, RowFile, RowFileChanged, is_row_file

log = logging.getLogger(__name__)

_COOKIE = "toolbake_view"
_KEY_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>toolbake</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/page/base.css">
<main class="ask-key"><h1>toolbake</h1><form method="post" action="/key"><label>Key
<input type="password" name="key" autofocus autocomplete="current-password"></label><button>Open</button></form>
"""
_KEY_OR_LABEL_BYTES = 64 * 1024
_CHANGE_BYTES = 4 * 1024 * 1024
"""A line has at most 1 MiB, and JSON within JSON is longer."""

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
        if self._api_key is None and not names_this_machine(request.headers):
            return PlainTextResponse("This page is for this machine; open it as http://127.0.0.1:PORT.", 421)
        if request.method not in ("GET", "HEAD") and not same_origin(request):
            return PlainTextResponse("Requests that write must come from the page itself.", 403)
        if self._api_key is None or request.url.path == "/page/base.css" or self._is_known(request):
            return None
        return await self._ask_for_key(request)

    def _is_known(self, request: Request) -> bool:
        assert self._api_key is not None
        return sends_key(request.scope, self._api_key) or _equal(request.cookies.get(_COOKIE, ""), self._session)

    async def _ask_for_key(self, request: Request) -> Response:
        assert self._api_key is not None
        if (request.method, request.url.path) == ("POST", "/key"):
            given = parse_qs((await small_body(request, _KEY_OR_LABEL_BYTES)).decode(errors="replace")).get(
                "key", [""]
            )[0]
            if _equal(given, self._api_key):
                welcome = RedirectResponse("/", status_code=303)
                welcome.set_cookie(_COOKIE, self._session, httponly=True, samesite="strict")
                return welcome
        policy = CONTENT_SECURITY_POLICY.replace("form-action 'none'", "form-action 'self'")
        headers = {"content-security-policy": policy, "www-authenticate": "Bearer"}
        # With no-referrer, a browser sends "origin: null" with a form, which is refused.
        headers["referrer-policy"] = "same-origin"
        return HTMLResponse(_KEY_PAGE, status_code=401, headers=headers)


def same_origin(connection: HTTPConnection) -> bool:
    """Whether a page of this server sent the request, as the browser reports it, or a program that is not a browser."""
    if connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


async def small_body(request: Request, most_bytes: int) -> bytes:
    """The body of a request. Raises `ValueError` where it is larger."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise ValueError(f"the body has more than {most_bytes} bytes")
    return bytes(body)


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


_FIRST_ROWS, _MOST_ROWS = 300, 20_000
"""In one answer; the page asks again for more. The first is short, so that there is something to see at once."""


class _Page:
    """The page over runs that are being indexed."""

    def __init__(self, index: RunIndex, files: Sequence[RowFile]) -> None:
        self._index = index
        self._files = files
        self._labels = [Labels(run) for run in index.runs]
        self._evidence = [Announced(run.path) for run in index.runs]

    def app(self, api_key: str | None) -> Starlette:
        """`api_key`: see `Access`."""
        routes = [
            Route("/", self.page),
            Route("/page/{name}", self.file),
            Route("/api/runs", self.runs),
            Route("/api/rows", self.rows),
            Route("/api/metrics", self.metrics),
            Route("/api/rollout", self.rollout),
            Route("/api/tokens", self.tokens),
            Route("/api/text", self.text),
            Route("/api/search", self.search),
            Route("/api/labels", self.labels),
            Route("/api/labels", self.label, methods=["POST"]),
            Route("/api/labels.jsonl", self.examples),
            Route("/api/lines", self.lines),
            Route("/api/line", self.line),
            Route("/api/line", self.change, methods=["POST"]),
        ]
        codes = {LookupError: 404, KeyError: 404, ToolbakeError: 500, ConfigError: 400, RowFileChanged: 409}
        handlers: dict[Any, Any] = {kind: partial(_told, code) for kind, code in codes.items()}
        handlers[Exception] = _failed
        return Starlette(routes=routes, exception_handlers=handlers, middleware=[Middleware(Access, api_key=api_key)])

    async def page(self, _: Request) -> Response:
        return Response(page_file("index.html"), media_type=TYPES["html"])

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        return Response(page_file(name), media_type=TYPES[name.rpartition(".")[2]])

    async def runs(self, _: Request) -> Response:
        return await _json(lambda: facts_of(self._index.runs, self._labels))

    async def rows(self, request: Request) -> Response:
        """Rows from `start` on, or from 0 where `generation` is over; `whole` once nothing more is to be read.

        `facts` is another text once the runs' facts or metrics are to be asked for again.
        """
        content = self._index.content
        whole = content.whole  # before the rows are counted: they may grow in between
        start = _number(request, "start") if _number(request, "generation") == content.generation else 0
        end = min(len(content.rows), start + (_MOST_ROWS if start else _FIRST_ROWS))
        head = {
            "generation": content.generation,
            "fields": FIELDS,
            "start": start,
            "whole": whole and end == len(content.rows),
            "files": [file.path.name for file in self._files],
            "facts": await anyio.to_thread.run_sync(facts_version, self._index.runs),
            "unread": content.unread,
            "problems": content.problems,
        }
        body = dump_json(head)[:-1] + b',"rows":[' + b",".join(content.rows[start:end]) + b"]}"
        return Response(body, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        return await _json(lambda: [metrics_of(run) for run in self._index.runs])

    async def rollout(self, request: Request) -> Response:
        return await _json(lambda: cut_texts(self._detail(request)))

    async def tokens(self, request: Request) -> Response:
        def found() -> Any:
            place, line, _ = self._line(request)
            return token_rows(line, self._index.runs[place.run])

        return await _json(found)

    async def text(self, request: Request) -> Response:
        """A piece of a text that was cut: characters from `start` on, as many as were shown first, ten times."""
        at = [int(step) if _WHOLE.fullmatch(step) else step for step in request.query_params.getlist("at")]
        start = _number(request, "start")
        return await _json(lambda: text_at(self._detail(request), at)[start : start + 10 * SHOWN_CHARS])

    async def search(self, request: Request) -> Response:
        wanted = request.query_params.get("text", "")
        return await _json(lambda: self._index.containing(_number(request, "generation"), wanted))

    async def labels(self, _: Request) -> Response:
        return await _json(lambda: labels_of(self._labels, self._index))

    async def label(self, request: Request) -> Response:
        label = await _sent(request, Label, _KEY_OR_LABEL_BYTES)
        place, line, _ = await anyio.to_thread.run_sync(self._line, request)
        if (place.stage, line["id"]) != (label.stage, label.rollout):
            raise HTTPException(409, f"rollout {label.rollout!r} is not number {request.query_params.get('n')}")
        label = label.model_copy(update={"said": digest_of(line)})
        return await _json(lambda: self._labels[place.run].write(label).model_dump())

    async def examples(self, _: Request) -> Response:
        """The labelled rollouts of all runs, see `Labels.examples`."""
        lines = await anyio.to_thread.run_sync(
            lambda: b"".join(dump_json(one) + b"\n" for labels in self._labels for one in labels.examples())
        )
        headers = {"content-disposition": 'attachment; filename="labels.jsonl"'}
        return Response(lines, media_type="application/jsonl", headers=headers)

    async def lines(self, request: Request) -> Response:
        return await _json(lambda: self._file(request).lines())

    async def line(self, request: Request) -> Response:
        return await _json(lambda: self._file(request).line(_number(request, "line")))

    async def change(self, request: Request) -> Response:
        change = await _sent(request, RowChange, _CHANGE_BYTES)
        return await _json(lambda: self._file(request).change(_number(request, "line"), change))

    def _file(self, request: Request) -> RowFile:
        number = _number(request, "file")
        if number >= len(self._files):
            raise LookupError(f"there is no file {number}; there are {len(self._files)}")
        return self._files[number]

    def _line(self, request: Request) -> tuple[Place, dict[str, Any], bytes]:
        return self._index.line(_number(request, "generation"), _number(request, "n"))

    def _detail(self, request: Request) -> dict[str, Any]:
        place, line, raw = self._line(request)
        return detail(line, place, self._evidence[place.run].status(place.stage, place.id, raw))


_WHOLE = re.compile("[0-9]{1,15}")


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if _WHOLE.fullmatch(text) is None:
        raise HTTPException(400, f"{name} is {text[:40]!r}; give a whole number of at most 15 digits")
    return int(text)


async def _json(found: Callable[[], Any]) -> Response:
    """What `found` returns, worked out in a thread: files are read in it."""
    body = await anyio.to_thread.run_sync(lambda: dump_json(found()))
    return Response(body, media_type="application/json")


_Sent = TypeVar("_Sent", bound=BaseModel)


async def _sent(request: Request, kind: type[_Sent], most_bytes: int) -> _Sent:
    """What the page sends. A form of another page cannot have this type."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send application/json")
    try:
        return kind.model_validate_json(await small_body(request, most_bytes))
    except ValueError as error:
        raise HTTPException(400, f"that is not a {kind.__name__.lower()}: {error}") from error


async def _told(code: int, _: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), code)


async def _failed(_: Request, error: Exception) -> Response:
    log.error("the page's server failed", exc_info=error)
    return PlainTextResponse(f"the server failed: {type(error).__name__}; see its log", 500)


def view(
    paths: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 8300,
    api_key: str | None = None,
    *,
    look_every_s: float = 1.0,
) -> Server:
    """Serve the page of runs, also while they are being written, and of files of rows, in a thread of its own.

    `paths`: run folders, folders of runs, and `.jsonl` files of tasks or labelled rows, which the page can change.
    `host`: anything but this machine needs an `api_key`, for which the page asks. `port`: 0 takes any free one; see
    `Server.url`. `look_every_s`: how often new rollouts are looked for, in seconds. The rollouts are read in the
    background: the page shows those that have been read so far.

    Raises `RunFolderError` where there is no run, and `ConfigError` for an address or a file that cannot be used.
    """
    files = [RowFile(path) for path in paths if is_row_file(path)]
    index = RunIndex(find_runs([path for path in paths if not is_row_file(path)]))
    listener = bind(host, port, api_key)
    reader = threading.Thread(target=index.follow, args=(look_every_s,), name="toolbake-view", daemon=True)

    def stop() -> None:
        index.stop()
        reader.join()

    reader.start()
    name = ", ".join(path.name for path in [*(run.path for run in index.runs), *(file.path for file in files)])
    return Server(_Page(index, files).app(api_key), listener, model_name=name, on_close=stop)
