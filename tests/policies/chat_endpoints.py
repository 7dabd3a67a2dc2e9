"""Real local endpoints for the tests of `EndpointAgent`."""

from __future__ import annotations

import threading
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class ChatServer:
    """A real HTTP server for `/v1/chat/completions`: plays `answers` in order and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[Response] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])
        config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._socket = config.bind_socket()
        self._socket.listen()  # who comes before the server has begun waits for it
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def will(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.bodies.clear()
        self.headers.clear()

    async def _answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        return self.answers.pop(0)


def says(content: str | None = None, *, finish: str = "stop", **message: Any) -> JSONResponse:
    """A completion as OpenAI writes it."""
    return JSONResponse(
        {
            "id": "chatcmpl-1",
            "model": "small-1",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish,
                    "message": {"role": "assistant", "content": content, **message},
                }
            ],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        }
    )
