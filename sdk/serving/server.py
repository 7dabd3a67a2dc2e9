"""Running the endpoint. Its socket is ours before the model is loaded, and its thread ends when told to. Clients have a
limited time to send a request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import os
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import uvicorn
from starlette.types import ASGIApp

from mcp_bridge.errors import SourceError
from mcp_bridge.extras import require_extra
from mcp_bridge.publishing.listener import KEPT_OPEN_S, listen

from ..errors import ConfigError, ToolbakeError
from ..policies.models import DEFAULT_SAMPLING
from ..policies.protocol import Sampling
from ..policies.tool_prompt import TOOL_PROMPTS
from ..policies.vllm.vllm_options import DTYPES, Dtype
from ..records import ToolPrompt
from .requests import MOST_WAITING, RequestQueue

if TYPE_CHECKING:
    from .backend import Backend

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

DRAIN_S = 30.0
"""How long requests in flight may take when the server closes; Kubernetes gives a pod as long."""
_GRACE_S = 5
"""How long their last words may take after that; then they are cancelled."""


class Server:
    """A running endpoint. Use it as a context manager, or `close()` it.

    Example::

        with sdk.serve("runs/helpdesk/model", port=0) as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        *,
        model_name: str,
        tool_prompt: ToolPrompt = "full",
        defaults: Sampling = DEFAULT_SAMPLING,
        queue: RequestQueue | None = None,
        drain_seconds: float = DRAIN_S,
        on_close: Callable[[], None] | None = None,
        load: Callable[[], Backend] | None = None,
    ) -> None:
        """Serve `app` on a bound socket. `queue`: of the app, where it has one, which is waited for when the server
        closes. `drain_seconds`: see `close`. `on_close` runs once after the last request. `load`: of an `Endpoint`, see
        `reload`."""
        self.model_name = model_name
        self.tool_prompt = tool_prompt
        """How much of a request's tools the prompt shows."""
        self.defaults = defaults
        """The sampling where a request sets no temperature, top_p or limit."""
        self._app, self._load = app, load
        self._reloading = threading.Lock()
        self._on_close = on_close
        self.url = address_of(listener)
        """Where the server is, for example `http://127.0.0.1:8000`. Clients of OpenAI's API want `{url}/v1`."""
        config = uvicorn.Config(
            app,
            http=TimedConnection,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEPT_OPEN_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._uvicorn = _Uvicorn(config, queue or RequestQueue(), drain_seconds)
        self._listener = listener
        self._failure: BaseException | None = None
        # Python before 3.13 takes a thread for ended once a signal has interrupted its join.
        self._ended = threading.Event()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="toolbake-serve", daemon=True)
        self._thread.start()
        self._uvicorn.settled.wait()
        if not self._uvicorn.started:
            self.close()
            raise ToolbakeError(f"the server at {self.url} did not start: {self._failure}") from self._failure

    def __repr__(self) -> str:
        return f"Server({self.url!r}, model_name={self.model_name!r}{', closed' if self._closed else ''})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop taking requests, let those in flight finish for `drain_seconds`, and let go of the port. Safe to repeat.

        Until then the port is open: `/ready` and new requests get 503. Those in flight that take longer end with that
        error, too; so do all where Ctrl-C is pressed meanwhile.
        """
        self._uvicorn.should_exit = True
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            self._uvicorn.end_requests()
            self._ended.wait()
            self._let_go()
            raise
        self._let_go()

    def _let_go(self) -> None:
        self._thread.join()
        self._listener.close()
        with self._closing:
            first, self._closed = not self._closed, True
        if first and self._on_close is not None:
            self._on_close()

    def reload(self) -> None:
        """Load the model again from where it came, and answer with it from the next request on; requests under way end
        with the one that they began with. Until the last of these, both are in memory.

        Its name for clients stays. `defaults`, `tool_prompt` and the fingerprint are those of the new one. Blocks.
        Raises what loading it raises, `ModelError` where its folder is not whole, and then serves on as before.
        """
        from .openai_api import Endpoint

        if self._load is None or not isinstance(self._app, Endpoint):
            raise ToolbakeError(f"the server at {self.url} was not made by sdk.serve; it has no model to load again")
        with self._reloading:
            if self._closed:
                raise self._was_closed()
            backend = self._load()
            with self._closing:
                closed = self._closed
                if not closed:
                    self._app.exchange(backend)
            if closed:
                backend.close()
                raise self._was_closed()
            self.tool_prompt, self.defaults = backend.tool_prompt, backend.defaults
        log.info("%s was loaded again: %s", self.model_name, backend.fingerprint or "its weights have no fingerprint")

    def _was_closed(self) -> ToolbakeError:
        return ToolbakeError(f"the server at {self.url} was closed; no model is loaded for it")

    def wait(self) -> None:
        """Block until the server stops or Ctrl-C is pressed, then close it. Raises what ended it, if anything did."""
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            return
        finally:
            self.close()
        if self._failure is not None:
            raise ToolbakeError(f"the server at {self.url} failed: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            self._uvicorn.run(sockets=[self._listener])
        except BaseException as error:  # uvicorn leaves by SystemExit, too; `wait` and the constructor report it
            self._failure = error
        finally:
            self._uvicorn.settled.set()
            self._ended.set()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server that says when it has started, and lets requests finish before it closes the port."""

    def __init__(self, config: uvicorn.Config, queue: RequestQueue, drain_seconds: float) -> None:
        super().__init__(config)
        self.settled = threading.Event()
        self._queue, self._drain_seconds = queue, drain_seconds
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        self.settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn's own period begins with closing the port: nobody could ask /ready any more.
        await self._queue.drain(self._drain_seconds)
        await super().shutdown(sockets=sockets)

    def end_requests(self) -> None:
        """From another thread: give those under way no more time."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.end)


def serve(
    model_dir: str | os.PathLike[str] | None,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    *,
    model_name: str | None = None,
    temperature: float | None = None,
    default_max_tokens: int | None = None,
    family: str | None = None,
    tool_prompt: ToolPrompt | None = None,
    strict_tools: bool | None = None,
    dtype: Dtype = "auto",
    max_waiting: int = MOST_WAITING,
    drain_seconds: float = DRAIN_S,
) -> Server:
    """Load a model and serve it behind an OpenAI-compatible endpoint in a thread of its own.

    `model_dir`: a folder as `sdk.train` writes it or that of its run, a hub name, or None for the embedded model.
    `host`: anything but this machine needs an `api_key`. `port`: 0 takes any free one; see `Server.url`. `model_name`:
    what clients ask for; where not given the name of the run, or of the folder of another model. `temperature` and
    `default_max_tokens` (the most new tokens of an answer) count where a request sets none; where not given they are
    those of the folder's `generation_config.json`, which for a model of `sdk.train` are those of its measurement, and
    1.0 and 1,024 for what that leaves open.
    `family`: how messages become tokens, see `make_renderer`; a folder's own chat template where not given.
    `tool_prompt`: how much of a request's tools the prompt shows, `full`, `names` or `none`; where not given as much as
    the model was trained with, as its folder says, with a warning in the log where that is less. Calls are read in all
    cases, where the request has tools. `strict_tools`: calls are held to the tools and their schemas, also of tools
    that are not `strict: true`; where not given if the model was measured so, as its folder says. `dtype`: the number
    format to compute in; `auto` takes float32 on a CPU and bfloat16 on a GPU. `max_waiting`: so many answers may be
    without a first token; a request beyond that gets 429.
    `drain_seconds`: how long requests in flight may take when the server closes.

    Raises `ConfigError` for an address that cannot be used, before the model is loaded, and `ModelError` for a
    model that cannot be.
    """
    require_extra("serve", "sdk.serve", ConfigError)
    if default_max_tokens is not None and default_max_tokens < 1:
        raise ConfigError(f"default_max_tokens is {default_max_tokens}; it must be 1 or more")
    if temperature is not None and not 0 <= temperature <= 2:
        raise ConfigError(f"temperature is {temperature}; it must be from 0 (the most likely token) to 2")
    if max_waiting < 1:
        raise ConfigError(f"max_waiting is {max_waiting}; it must be 1 or more")
    check_drain(drain_seconds)
    if tool_prompt is not None and tool_prompt not in TOOL_PROMPTS:
        raise ConfigError(f"tool_prompt is {tool_prompt!r}; give one of {', '.join(TOOL_PROMPTS)}")
    check_dtype(dtype)
    listener = bind(host, port, api_key)
    with ExitStack() as on_failure:
        on_failure.callback(listener.close)
        from .backend import load_backend
        from .openai_api import Endpoint
        from .replies import KEEP_ALIVE_S

        queue = RequestQueue(max_waiting)

        def load() -> Backend:
            return load_backend(
                model_dir,
                queue,
                family=family,
                tool_prompt=tool_prompt,
                strict_tools=strict_tools,
                dtype=dtype,
                temperature=temperature,
                default_max_tokens=default_max_tokens,
                named=lambda loaded: model_name or served_name(model_dir, loaded),
            )

        backend = load()
        on_failure.callback(backend.close)
        endpoint = Endpoint(backend, backend.name, api_key, KEEP_ALIVE_S)
        server = Server(
            endpoint,
            listener,
            model_name=backend.name,
            tool_prompt=backend.tool_prompt,
            defaults=backend.defaults,
            queue=queue,
            drain_seconds=drain_seconds,
            on_close=endpoint.close,
            load=load,
        )
        on_failure.pop_all()
        return server


def check_dtype(dtype: Dtype) -> None:
    """Raises `ConfigError` for a number format that no engine computes in."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}")


def check_drain(seconds: float) -> None:
    """Raises `ConfigError` for a time that requests in flight cannot have."""
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"drain_seconds is {seconds}; it must be 0 or more")


def bind(host: str, port: int, api_key: str | None) -> socket.socket:
    """A socket bound to an address. Raises `ConfigError` when that must not or cannot be."""
    try:
        return listen(host, port, api_key, key_name="api_key")
    except SourceError as error:
        raise ConfigError(str(error)) from error


def address_of(listener: socket.socket) -> str:
    """The URL at which this machine reaches a bound socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def served_name(model_dir: str | os.PathLike[str] | None, loaded_name: str) -> str:
    """What clients ask for where nobody names the model."""
    if model_dir is None or not Path(model_dir).is_dir():
        return loaded_name
    folder = Path(model_dir).resolve()
    # `model` is the name of the folder in every run: models are told apart by their runs.
    return folder.parent.name if folder.name == "model" and (folder.parent / "run.json").is_file() else folder.name


# ---------------------------------------------------------------------------------------------------------------------

REQUEST_S = 60.0
"""How long a client may take to send all of a request, in seconds, from its connection or its first byte on. Clients
that send nothing, or a byte now and then, would hold connections until there are none left, before a key is asked."""
SEND_S = 60.0
"""How long a client may read nothing of an answer for which the connection has no room left, in seconds."""
_INCOMPLETE = ("IDLE", "SEND_BODY")
"""What h11 calls a client that has not sent all of its request."""


class TimedConnection(H11Protocol):
    """uvicorn's HTTP/1.1, which ends a connection whose request does not come to its end in time, or whose client does
    not read its answer: it would keep its place, its tokens and the model of before a reload."""

    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()
        self._is_read()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(SEND_S, self._give_up, self._left())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def _left(self) -> int:
        size: int = self.transport.get_write_buffer_size()
        return size

    def _give_up(self, before: int) -> None:
        """The client is given up unless it has read something of what was `before` to be sent."""
        if (left := self._left()) < before:
            self._unread = self.loop.call_later(SEND_S, self._give_up, left)
        else:
            self.transport.abort()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look(self) -> None:
        if self.conn.their_state.__name__ not in _INCOMPLETE:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
