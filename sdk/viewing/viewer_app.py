"""The page and what it asks for, as an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio.to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..errors import RunFolderError
from ..traces.json_text import dump_json
from .access import Access, small_body
from .details import SHOWN_CHARS, cut_texts, detail, text_at
from .evidence import Announced
from .index import Place, RunIndex
from .labels import Label, Labels
from .page_files import TYPES, page_file
from .run_summary import facts_version, metrics_of, run_facts
from .summaries import FIELDS
from .token_view import token_rows

log = logging.getLogger(__name__)
_FIRST_ROWS, _MOST_ROWS = 300, 20_000
"""In one answer; the page asks again for more. The first is short, so that there is something to see at once."""


def build_app(index: RunIndex, api_key: str | None = None) -> Starlette:
    """The page over runs that are being indexed. `api_key`: see `access.Access`."""
    return _Page(index).app(api_key)


class _Page:
    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._labels = [Labels(run) for run in index.runs]
        self._evidence = [Announced(run.path) for run in index.runs]

    def app(self, api_key: str | None) -> Starlette:
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
        ]
        handlers: dict[Any, Any] = {LookupError: _gone, KeyError: _gone, RunFolderError: _damaged, Exception: _failed}
        return Starlette(routes=routes, exception_handlers=handlers, middleware=[Middleware(Access, api_key=api_key)])

    async def page(self, _: Request) -> Response:
        return Response(page_file("index.html"), media_type=TYPES["html"])

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        return Response(page_file(name), media_type=TYPES[name.rpartition(".")[2]])

    async def runs(self, _: Request) -> Response:
        return await _json(lambda: [run_facts(run) for run in self._index.runs])

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
        at = [int(step) if step.isdigit() else step for step in request.query_params.getlist("at")]
        start = _number(request, "start")
        return await _json(lambda: text_at(self._detail(request), at)[start : start + 10 * SHOWN_CHARS])

    async def search(self, request: Request) -> Response:
        wanted = request.query_params.get("text", "")
        return await _json(lambda: self._index.containing(_number(request, "generation"), wanted))

    async def labels(self, _: Request) -> Response:
        def found() -> Any:
            return [
                {"run": number, **label.model_dump()}
                for number, labels in enumerate(self._labels)
                for label in labels.read().values()
            ]

        return await _json(found)

    async def label(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "send application/json")
        try:
            label = Label.model_validate_json(await small_body(request))
        except (ValidationError, ValueError) as error:
            raise HTTPException(400, f"that is no label: {error}") from error
        place, line, _ = await anyio.to_thread.run_sync(self._line, request)
        if (place.stage, line["id"]) != (label.stage, label.rollout):
            raise HTTPException(409, f"rollout {label.rollout!r} is not number {request.query_params.get('n')}")
        return await _json(lambda: self._labels[place.run].write(label).model_dump())

    async def examples(self, _: Request) -> Response:
        """The labelled rollouts of all runs, see `Labels.examples`."""
        lines = await anyio.to_thread.run_sync(
            lambda: b"".join(dump_json(one) + b"\n" for labels in self._labels for one in labels.examples())
        )
        headers = {"content-disposition": 'attachment; filename="labels.jsonl"'}
        return Response(lines, media_type="application/jsonl", headers=headers)

    def _line(self, request: Request) -> tuple[Place, dict[str, Any], bytes]:
        return self._index.line(_number(request, "generation"), _number(request, "n"))

    def _detail(self, request: Request) -> dict[str, Any]:
        place, line, raw = self._line(request)
        status = self._evidence[place.run].status(place.stage, place.id, raw)
        return {"run": place.run, "stage": place.stage, "evidence": status, **detail(line)}


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise HTTPException(400, f"{name} is {text!r}; give a whole number")
    return int(text)


async def _json(found: Callable[[], Any]) -> Response:
    """What `found` returns, worked out in a thread: files are read in it."""
    body = await anyio.to_thread.run_sync(lambda: dump_json(found()))
    return Response(body, media_type="application/json")


async def _gone(_: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 404)


async def _damaged(_: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 500)


async def _failed(_: Request, error: Exception) -> Response:
    log.error("the page's server failed", exc_info=error)
    return PlainTextResponse(f"the server failed: {type(error).__name__}; its log says more", 500)
