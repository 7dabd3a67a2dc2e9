"""The endpoint as an ASGI application."""

from __future__ import annotations

import hmac
import time
from dataclasses import asdict

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..policies.models import DEFAULT_SAMPLING
from ..policies.protocol import Sampling, StreamingPolicy
from ..policies.rendering import ChatRenderer
from ..policies.rendering.reply_grammar import ReplyGrammars
from ..records import ToolPrompt
from .api_errors import ApiError, as_api_error, shown
from .chat_request import read_request
from .generation import Generator
from .hosts import names_this_machine
from .replies import StreamedReply, unless_disconnected, whole_reply

_MOST_BYTES = 16 * 2**20
_CLIENT_CLOSED = 499


def build_app(
    policy: StreamingPolicy,
    renderer: ChatRenderer,
    model_name: str,
    api_key: str | None = None,
    *,
    grammars: ReplyGrammars | None = None,
    defaults: Sampling = DEFAULT_SAMPLING,
    tool_prompt: ToolPrompt = "full",
) -> Starlette:
    """`/v1/chat/completions`, `/v1/models` and `/health` over a policy.

    `api_key`: what clients must send (`Authorization: Bearer ...`) for everything but `/health`; None asks for
    nothing. `grammars`: make answers that must be calls or JSON; without them such requests are refused. `defaults`:
    the sampling where a request sets no temperature, top_p or limit; `/v1/models` shows it. `tool_prompt`: how much of
    a request's tools `renderer` shows, for the answers and `/v1/models` to say.

    A stream says what of the answer will not change any more, some tokens behind the policy; calls when they are
    complete.
    """
    return _Endpoint(policy, renderer, model_name, api_key, grammars, defaults, tool_prompt).app()


class _Endpoint:
    def __init__(
        self,
        policy: StreamingPolicy,
        renderer: ChatRenderer,
        model_name: str,
        api_key: str | None,
        grammars: ReplyGrammars | None,
        defaults: Sampling,
        tool_prompt: ToolPrompt,
    ) -> None:
        self._generator = Generator(policy, renderer, grammars, defaults=defaults)
        self._defaults = defaults
        self._model_name = model_name
        self._api_key = api_key
        self._tool_prompt = tool_prompt
        self._created = int(time.time())

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.one_model),
            Route("/health", self.health),
        ]
        handlers = {ApiError: _api_error, HTTPException: _http_error, Exception: _server_error}
        return Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]

    async def health(self, request: Request) -> Response:
        self._check_host(request)
        if not self._generator.alive:
            return JSONResponse({"status": "the engine failed", "model": self._model_name}, status_code=503)
        return JSONResponse({"status": "ok", "model": self._model_name})

    async def models(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        self._authorize(request)
        self._check_model(request.path_params["model"])
        return JSONResponse(self._model())

    async def chat(self, request: Request) -> Response:
        self._authorize(request)
        body = await _body(request)
        chat = await anyio.to_thread.run_sync(read_request, body)  # megabytes take seconds
        self._check_model(chat.model)
        if chat.stream:
            return StreamedReply(self._generator, chat, self._model_name)
        generated = await unless_disconnected(request.receive, lambda: self._generator.generate(chat))
        if generated is None:
            return Response(status_code=_CLIENT_CLOSED)
        return JSONResponse(whole_reply(generated, self._model_name, self._tool_prompt))

    def _authorize(self, request: Request) -> None:
        if self._api_key is None:
            self._check_host(request)
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._api_key.encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                kind="authentication_error",
            )

    def _check_host(self, request: Request) -> None:
        if self._api_key is None and not names_this_machine(request):
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

    def _model(self) -> dict[str, object]:
        said = {"id": self._model_name, "object": "model", "created": self._created, "owned_by": "toolbake"}
        return {**said, "tool_prompt": self._tool_prompt, "default_sampling": asdict(self._defaults)}


async def _body(request: Request) -> bytes:
    """The body. Only JSON's own media type: a page in a browser cannot send that to another site unasked."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(415, f"the content type is {media_type or 'missing'}; send application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ApiError(413, f"the body has more than {_MOST_BYTES} bytes; send a shorter conversation")
    return bytes(body)


async def _api_error(_: Request, error: ApiError) -> Response:
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
    return JSONResponse(error.body, status_code=error.status, headers=headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}: {error.detail.lower()}"
    there = "POST /v1/chat/completions, GET /v1/models and GET /health"
    body = ApiError(error.status_code, f"{what}; there are {there}").body
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _server_error(_: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=_CLIENT_CLOSED)
    return JSONResponse(as_api_error(error).body, status_code=500)
