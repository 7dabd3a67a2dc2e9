"""The host of a user's agent: one port of this machine, behind which each key leads to one rollout."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_bridge.errors import SourceError
from mcp_bridge.publishing.listener import KEPT_OPEN_S, sent_key
from mcp_bridge.publishing.server import publish_found

from ..errors import AgentFailure, plain_errors
from ..policies.protocol import Agent
from ..rollouts.episode import Episode
from ..serving.api_errors import ApiError
from ..serving.backend import Backend
from ..serving.openai_api import Endpoint
from ..serving.replies import KEEP_ALIVE_S
from ..serving.server import bind
from .agent_programs import AgentEndpoint, AgentProgram, told_task
from .hosted_rollout import HostedRollout

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_GRACE_S = 1
_MOST_BODY = 16 * 2**20


@dataclass(frozen=True)
class _Served:
    rollout: HostedRollout
    chat: ASGIApp


class Host:
    """Plays rollouts with one program. An `AgentHost`. Made by `open_host`."""

    boundary: Literal["policy", "agent"] = "agent"

    def __init__(self, program: AgentProgram) -> None:
        self.program = program
        self.url = ""
        self._served: dict[bytes | None, _Served] = {}
        self._told: set[str] = set()
        server = publish_found(self._found)
        self._mcp = server.streamable_http_app(host=_HOST, stateless_http=True, max_request_body_size=_MOST_BODY)

    async def play(self, episode: Episode, agent: Agent) -> None:
        """See `AgentHost.play`."""
        rollout = HostedRollout(episode, agent)
        key = secrets.token_urlsafe(32)
        backend = Backend(rollout, episode.sampling, episode.rollout.tool_prompt)
        chat = Endpoint(backend, agent.name, key, KEEP_ALIVE_S)
        self._served[key.encode()] = _Served(rollout, chat)
        episode.rollout.messages = episode.rollout.task.opening()
        endpoint = AgentEndpoint(f"{self.url}/v1", key, agent.name, f"{self.url}/mcp")

        async def run() -> None:
            task = told_task(episode.rollout.task)
            try:
                while (heard := await rollout.hear_user(await self.program.play(task, endpoint))) is not None:
                    task = task.model_copy(update={"prompt": heard})
            except AgentFailure as error:
                rollout.fail(error)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await rollout.over.wait()
                group.cancel_scope.cancel()
        finally:
            del self._served[key.encode()]
            with anyio.CancelScope(shield=True):
                await rollout.close()
            self._warn_of(rollout.overruled)
        if rollout.error is not None:
            raise rollout.error

    def _warn_of(self, overruled: set[str]) -> None:
        """Once for each: the agent may ask so in every request."""
        for setting in sorted(overruled - self._told):
            self._told.add(setting)
            log.warning(
                "the agent %s asks for %s; what is sampled in rollouts is set by the training or measurement",
                self.program.name,
                setting,
            )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Both URLs of all rollouts: the key says whose."""
        if scope["type"] == "lifespan":
            await self._mcp(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        served = self._served.get(sent_key(scope))
        try:
            if served is None:
                raise ApiError(
                    401,
                    "this key is of no rollout, or its rollout has ended; send endpoint.api_key, in the header "
                    "Authorization after the word Bearer",
                    code="invalid_api_key",
                    kind="authentication_error",
                )
            served.rollout.count_request()
        except ApiError as error:
            await JSONResponse(error.body, status_code=error.status)(scope, receive, send)
            return
        if scope["path"].rstrip("/") == "/mcp":
            await self._mcp(scope, receive, send)
        else:
            await served.chat(scope, receive, _noting(served.rollout, send))

    def _found(self, request: Any) -> HostedRollout:
        """The rollout of a request to the tools' URL. Raises `SourceError` where it has ended meanwhile."""
        served = self._served.get(sent_key(request.scope))
        if served is None:
            raise SourceError("the rollout of this key has ended")
        return served.rollout


def _noting(rollout: HostedRollout, send: Send) -> Send:
    """Sends, and tells the rollout why a request was refused, also where it was none that could be read."""
    status = 0

    async def noted(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        if status >= 400 and message.get("body"):
            rollout.refused = json.loads(message["body"])["error"]["message"]
        await send(message)

    return noted


@asynccontextmanager
async def open_host(program: AgentProgram) -> AsyncIterator[Host]:
    """A host that listens on this machine alone while this is open."""
    host = Host(program)
    async with program.running(), _listening(host):
        yield host


class _Uvicorn(uvicorn.Server):
    """uvicorn's server inside an event loop that is not its own, which says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets=sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C is for whoever owns the loop."""
        yield


@asynccontextmanager
async def _listening(host: Host) -> AsyncIterator[None]:
    listener: socket.socket = bind(_HOST, 0, None)
    host.url = f"http://{_HOST}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        host.app,
        interface="asgi3",
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEPT_OPEN_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Uvicorn(config)
    with contextlib.closing(listener), plain_errors():
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                # Shielded: uvicorn leaves its sockets open when it is cancelled, but not when it is told to stop.
                with anyio.CancelScope(shield=True):
                    await server.serve(sockets=[listener])

            group.start_soon(serve)
            await server.listens.wait()
            try:
                yield
            finally:
                server.should_exit = True
