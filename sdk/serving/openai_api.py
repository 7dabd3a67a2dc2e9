"""The endpoint as an ASGI application."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from mcp_bridge.publishing.listener import names_this_machine, sends_key

from .backend import Backend
from .chat_request import ChatRequest, read_request
from .generation import Answering, Generated
from .metrics import ServingMetrics
from .replies import (
    CLIENT_CLOSED,
    ReplyEvents,
    ReplyStream,
    StreamedReply,
    WholeReply,
    note_client_left,
    unless_disconnected,
    whole_reply,
)
from .request_log import log_request
from .requests import REQUEST_ID, ApiError, as_api_error, current_record, recorded, shown
from .responses_api import ResponseStream, read_responses_request, whole_response

_MOST_BYTES = 16 * 2**20
_BACKEND = "toolbake.backend"
"""Where a request's scope has its `Backend`."""


class Endpoint:
    """The paths of `docs/serving.md`, as an ASGI application. Streams hold back what of an answer may still change."""

    def __init__(
        self,
        backend: Backend,
        model_name: str,
        api_key: str | None,
        keep_alive_s: float,
    ) -> None:
        self._backends = [backend]
        """The last one takes requests; the others have some under way."""
        self._exchanging = threading.Lock()
        self.queue = backend.generator.queue
        self._metrics = ServingMetrics(model_name, self.queue)
        self._model_name = model_name
        self._api_key = api_key
        self._keep_alive_s = keep_alive_s
        self._created = int(time.time())
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.one_model),
            Route("/metrics", self.metrics),
            Route("/health", self.health),
            Route("/ready", self.ready),
        ]
        handlers = {
            ApiError: _failed,
            HTTPException: _http_error,
            ClientDisconnect: _client_left,
            Exception: _failed,  # starlette raises it again, for the log
        }
        self._app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
        self._paths: dict[Any, str] = {route.endpoint: route.path for route in routes}

    def exchange(self, backend: Backend) -> None:
        """Answer requests from now on with another model, which has the same queue. From any thread."""
        with self._exchanging:
            old = self._backends[-1]
            self._backends.append(backend)
        self._let_go(old)

    def close(self) -> None:
        """Close all that answer. Nothing may be under way."""
        for backend in self._backends:
            backend.close()

    def _let_go(self, backend: Backend) -> None:
        """Close one that has been exchanged, and whose last request is answered."""
        with self._exchanging:
            unused = backend is not self._backends[-1] and not backend.requests
            if unused:
                self._backends.remove(backend)
        if unused:
            backend.close()

    @contextmanager
    def _taking_part(self) -> Iterator[Backend]:
        """The model of a request, which is not closed inside."""
        with self._exchanging:
            backend = self._backends[-1]
            backend.requests += 1
        try:
            yield backend
        finally:
            with self._exchanging:
                backend.requests -= 1
            self._let_go(backend)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and record it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        with recorded(Headers(scope=scope).get(REQUEST_ID)) as record, self._taking_part() as backend:
            scope[_BACKEND] = backend

            async def send_with_id(message: Message) -> None:
                if message["type"] == "http.response.start":
                    record.status = record.status or message["status"]
                    MutableHeaders(scope=message)[REQUEST_ID] = record.id
                await send(message)

            try:
                await self._app(scope, receive, send_with_id)
            finally:
                record.status = record.status or CLIENT_CLOSED
                path = self._paths.get(scope.get("endpoint"))
                self._metrics.observe(record, path or "other")
                probe = path in ("/health", "/ready", "/metrics") and record.status == 200
                log_request(record, scope["method"], scope["path"], probe=probe)

    async def metrics(self, request: Request) -> Response:
        self._authorize(request)
        return Response(self._metrics.text(), media_type=self._metrics.media_type)

    async def ready(self, request: Request) -> Response:
        """Whether another request would be taken. That there are weights is sure: without them nothing listens."""
        self._check_host(request)
        backend: Backend = request.scope[_BACKEND]
        problem = (
            "the engine failed"
            if not backend.generator.alive
            else "shutting down"
            if self.queue.draining
            else "the queue is full"
            if self.queue.full
            else None
        )
        said = {"status": problem or "ready", "model": self._model_name, "waiting": self.queue.waiting}
        return JSONResponse(said, status_code=200 if problem is None else 503)

    async def health(self, request: Request) -> Response:
        self._check_host(request)
        if not request.scope[_BACKEND].generator.alive:
            return JSONResponse({"status": "the engine failed", "model": self._model_name}, status_code=503)
        return JSONResponse({"status": "ok", "model": self._model_name})

    async def models(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._model(request.scope[_BACKEND])]})

    async def one_model(self, request: Request) -> Response:
        self._authorize(request)
        self._check_model(request.path_params["model"])
        return JSONResponse(self._model(request.scope[_BACKEND]))

    async def chat(self, request: Request) -> Response:
        self._authorize(request)
        body = await _body(request)
        # Beside the event loop: megabytes take seconds.
        chat = await anyio.to_thread.run_sync(read_request, body)
        self._check_model(chat.model)
        backend: Backend = request.scope[_BACKEND]
        usage = bool(chat.stream_options and chat.stream_options.include_usage)
        return await self._reply(
            request,
            chat,
            lambda generated: whole_reply(generated, self._model_name, backend.fingerprint, backend.tool_prompt),
            lambda send: ReplyStream(self._model_name, backend.fingerprint, include_usage=usage, send=send),
        )

    async def responses(self, request: Request) -> Response:
        self._authorize(request)
        body = await _body(request)
        asked = await anyio.to_thread.run_sync(read_responses_request, body)
        self._check_model(asked.model)
        chat = await anyio.to_thread.run_sync(asked.as_chat)
        backend: Backend = request.scope[_BACKEND]
        return await self._reply(
            request,
            chat,
            lambda generated: whole_response(asked, generated, backend.fingerprint, backend.tool_prompt),
            lambda send: ResponseStream(asked, backend.fingerprint, backend.tool_prompt, send),
        )

    async def _reply(
        self,
        request: Request,
        chat: ChatRequest,
        whole: Callable[[Generated], dict[str, Any]],
        events: Callable[[Callable[[bytes], None]], ReplyEvents],
    ) -> Response:
        """The answer in the form that was asked for: as `whole`, or as a stream of `events`."""
        generator: Answering = request.scope[_BACKEND].generator
        if chat.stream:
            return StreamedReply(partial(generator.generate, chat), events, self._keep_alive_s)
        generated = await unless_disconnected(request.receive, lambda: generator.generate(chat))
        if generated is None:
            note_client_left()
            return Response(status_code=CLIENT_CLOSED)
        return WholeReply(whole(generated))

    def _authorize(self, request: Request) -> None:
        if self._api_key is None:
            self._check_host(request)
            return
        if not sends_key(request.scope, self._api_key):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it once, as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )

    def _check_host(self, request: Request) -> None:
        if self._api_key is None and not names_this_machine(request.headers):
            host = shown(request.headers.get("host", ""))
            raise ApiError(
                421,
                f"the host {host!r} is not this machine, and this endpoint has no key; "
                "send requests to http://127.0.0.1:PORT, or start it with an api_key",
            )

    def _check_model(self, name: str) -> None:
        if name != self._model_name:
            raise ApiError(
                404,
                f"the model {shown(repr(name))} does not exist; this endpoint serves {self._model_name!r}",
                param="model",
                code="model_not_found",
            )

    def _model(self, backend: Backend) -> dict[str, object]:
        said = {"id": self._model_name, "object": "model", "created": self._created, "owned_by": "toolbake"}
        return {
            **said,
            "system_fingerprint": backend.fingerprint,
            "max_model_len": backend.generator.context_tokens,
            "tool_prompt": backend.tool_prompt,
            "default_sampling": {
                name: getattr(backend.defaults, name) for name in ("temperature", "top_p", "max_tokens", "strict_tools")
            },
        }


async def _body(request: Request) -> bytes:
    """The body, as it is. Only JSON's own media type: a page in a browser cannot send that to another site unasked."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(415, f"the content type is {media_type or 'missing'}; send application/json")
    if (coding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        problem = f"the content encoding is {shown(coding)}; send the body as it is"
        raise ApiError(415, problem, headers={"accept-encoding": "identity"})
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        # A proxy that goes by the other one sees another end, and the next request elsewhere (RFC 9112, 6.1).
        problem = "content-length and transfer-encoding both tell where the body ends; send one of them"
        raise ApiError(400, problem, headers={"connection": "close"})
    too_long = ApiError(413, f"the body has more than {_MOST_BYTES} bytes; send a shorter conversation")
    if int(request.headers.get("content-length", 0)) > _MOST_BYTES:
        raise too_long  # before a client that waits for leave sends it
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise too_long
    return bytes(body)


async def _failed(_: Request, error: Exception) -> Response:
    failed = as_api_error(error)
    if (record := current_record()) is not None:
        record.note(failed.status, failed.kind)
    return JSONResponse(failed.body, status_code=failed.status, headers=failed.headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}: {error.detail.lower()}"
    there = "POST /v1/chat/completions and /v1/responses, GET /v1/models, GET /metrics, GET /health and GET /ready"
    body = ApiError(error.status_code, f"{what}; there are {there}").body
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _client_left(_: Request, __: ClientDisconnect) -> Response:
    """It went away before all of its request had come."""
    note_client_left()
    return Response(status_code=CLIENT_CLOSED)
