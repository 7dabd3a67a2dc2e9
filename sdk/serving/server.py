"""Running the endpoint: a socket that is ours before the model is loaded, and a thread that ends when told to."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn

from mcp_bridge.extras import require_extra

from ..errors import ConfigError, ModelError, ToolbakeError
from ..policies.models import DEFAULT_SAMPLING
from ..policies.protocol import LOWEST_TEMPERATURE, Sampling
from ..policies.tool_prompt import TOOL_PROMPTS, shown_by_default
from ..records import PROMPT_NAMES, ToolPrompt

log = logging.getLogger(__name__)

_GRACE_S = 5
"""How long requests in flight may take when the server closes; then they are cancelled."""

_ENGINE_RESTARTS = 3
"""How often in all the engine goes on after a failure; then `/health` says that it cannot answer."""


class Server:
    """A running endpoint. Use it as a context manager, or `close()` it.

    Example::

        with sdk.serve("runs/helpdesk/model", port=0) as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        model_name: str,
        tool_prompt: ToolPrompt = "full",
        defaults: Sampling = DEFAULT_SAMPLING,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Serve `app` on a bound socket. `on_close` runs once after the last request."""
        self.model_name = model_name
        self.tool_prompt = tool_prompt
        """How much of a request's tools the prompt shows."""
        self.defaults = defaults
        """The sampling where a request sets no temperature, top_p or limit."""
        self._on_close = on_close
        host, port = listener.getsockname()[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        """Where the server is, for example `http://127.0.0.1:8000`. Clients of OpenAI's API want `{url}/v1`."""
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_GRACE_S
        )
        self._uvicorn = _Uvicorn(config)
        self._listener = listener
        self._failure: BaseException | None = None
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop taking requests, let those in flight finish for some seconds, and let go of the port. Safe to repeat."""
        self._uvicorn.should_exit = True
        self._thread.join()
        self._listener.close()
        with self._closing:
            first, self._closed = not self._closed, True
        if first and self._on_close is not None:
            self._on_close()

    def wait(self) -> None:
        """Block until the server stops or Ctrl-C is pressed, then close it. Raises what ended it, if anything did."""
        try:
            self._thread.join()
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


class _Uvicorn(uvicorn.Server):
    """uvicorn's server that says when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.settled.set()


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
    cases, where the request has tools.

    Raises `ConfigError` for an address that cannot be used, before the model is loaded, and `ModelError` for a
    model that cannot be.
    """
    require_extra("serve", "sdk.serve", ConfigError)
    if default_max_tokens is not None and default_max_tokens < 1:
        raise ConfigError(f"default_max_tokens is {default_max_tokens}; it must be 1 or more")
    if temperature is not None and not 0 <= temperature <= 2:
        raise ConfigError(f"temperature is {temperature}; it must be from 0 (the most likely token) to 2")
    if tool_prompt is not None and tool_prompt not in TOOL_PROMPTS:
        raise ConfigError(f"tool_prompt is {tool_prompt!r}; give one of {', '.join(TOOL_PROMPTS)}")
    model_dir = _model_of(model_dir)
    listener = bind(host, port, api_key)
    with ExitStack() as on_failure:
        on_failure.callback(listener.close)
        from ..policies.models import load_model

        loaded = load_model(model_dir)  # before torch is imported for the engine: a wrong folder is found at once

        from ..policies.embedded import EmbeddedEngine
        from ..policies.grammar import GrammarTokenizer
        from ..policies.rendering import make_renderer
        from ..policies.rendering.reply_grammar import ReplyGrammars
        from ..policies.tool_prompt import render_less
        from .openai_api import build_app

        shown = tool_prompt or shown_by_default(loaded.tool_prompt)
        renderer = render_less(make_renderer(loaded.tokenizer, family=family or loaded.family), shown)
        engine = on_failure.enter_context(EmbeddedEngine(loaded.model, max_restarts=_ENGINE_RESTARTS))
        name = model_name or _served_name(model_dir, loaded.name)
        defaults = _defaults(loaded.sampling, temperature, default_max_tokens)
        try:
            tokenizer = GrammarTokenizer.of(
                loaded.tokenizer, vocabulary=engine.vocabulary, stop_token_ids=renderer.stop_token_ids
            )
            grammars = ReplyGrammars(renderer, tokenizer)
        except ModelError as error:
            grammars = None
            log.warning("%s: response_format and tool_choice are refused: %s", name, error)
        app = build_app(engine, renderer, name, api_key, grammars=grammars, defaults=defaults, tool_prompt=shown)
        server = Server(app, listener, model_name=name, tool_prompt=shown, defaults=defaults, on_close=engine.close)
        on_failure.pop_all()
        for setting in ("top_k", "min_p", "repetition_penalty"):
            value = getattr(loaded.model.generation_config, setting, None)
            if value not in (None, 0, 1.0):
                log.warning(
                    "%s: its generation_config.json asks for %s %s, which this endpoint does not do",
                    name,
                    setting,
                    value,
                )
        if tool_prompt is None and shown != "full":
            log.warning(
                "%s: its prompts show %s of clients' tools, as in its training; tool_prompt says otherwise",
                name,
                PROMPT_NAMES[shown],
            )
        return server


def _defaults(of_model: Sampling, temperature: float | None, max_tokens: int | None) -> Sampling:
    chosen = of_model.temperature if temperature is None else temperature
    return replace(
        of_model,
        temperature=0 if chosen < LOWEST_TEMPERATURE else chosen,
        max_tokens=of_model.max_tokens if max_tokens is None else max_tokens,
    )


def bind(host: str, port: int, api_key: str | None) -> socket.socket:
    """A socket bound to an address. Raises `ConfigError` when that must not or cannot be."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigError(f"port is {port!r}; give a number from 0 (any free one) to 65535")
    if api_key is not None and not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise ConfigError(
            "api_key is empty or holds blanks, line ends or characters that no client can send in a header; give "
            "another key, or None for a server that only this machine reaches"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"host is {host!r}, which is no address of this machine: {error}") from error
    if api_key is None and not ipaddress.ip_address(address[0]).is_loopback:
        raise ConfigError(
            f"host is {host!r}, which other machines can reach, and there is no api_key; "
            "give an api_key, or host='127.0.0.1' for this machine only"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # lets a port be taken again right after its server has ended
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(0)  # claims the port: two sockets may be bound to one port as long as none listens
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is in use by another program; stop it, choose another port, or port=0 for any"
            ) from error
        raise ConfigError(f"cannot listen on port {port} of {host}: {error.strerror}") from error
    return listener


def _served_name(model_dir: str | os.PathLike[str] | None, loaded_name: str) -> str:
    if model_dir is None or not Path(model_dir).is_dir():
        return loaded_name
    folder = Path(model_dir).resolve()
    # `model` is the name of the folder in every run: models are told apart by their runs.
    return folder.parent.name if folder.name == "model" and (folder.parent / "run.json").is_file() else folder.name


def _model_of(place: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """The model's folder where `place` is the folder of a finished run; anything else as it is."""
    if place is None:
        return None
    folder = Path(place).expanduser()
    return folder / "model" if (folder / "run.json").is_file() and (folder / "model").is_dir() else place
