"""`toolbake serve`: a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ...errors import ConfigError, ToolbakeError
from ..options import CallParser, ClientsKey, Host, arg, opt

if TYPE_CHECKING:
    from ...serving import Server
    from ...serving.vllm_server import VllmServer

log = logging.getLogger(__name__)

_MAX_WAITING = 256
_DRAIN_S = 30.0

ShownTools = Annotated[
    str | None,
    opt(
        "--tool-prompt full|names|none",
        "How much of the tools that clients send the model's prompt shows: full schemas, names only, or nothing. "
        "Tools that it was not trained on need full.",
        default="as the model was trained",
    ),
]


StrictTools = Annotated[
    bool | None,
    opt(
        "--strict-tools/--no-strict-tools",
        "Hold calls to the tools and their schemas, also of clients that do not set strict: true.",
        default="as the model was measured",
    ),
]
Temperature = Annotated[
    float | None,
    opt(
        "--temperature",
        "The temperature where a request sets none; 0 takes the most likely token.",
        default="as the model was measured, else 1.0",
        min=0.0,
        max=2.0,
    ),
]
MaxTokens = Annotated[
    int | None,
    opt(
        "--default-max-tokens",
        "The most new tokens of an answer where a request sets no limit.",
        default="as the model was measured, else 1024",
        min=1,
    ),
]
MaxWaiting = Annotated[
    int,
    opt(
        "--max-waiting",
        "How many answers may be without a first token at once; a request beyond that gets 429 with Retry-After.",
        min=1,
    ),
]
DrainSeconds = Annotated[
    float,
    opt(
        "--drain-seconds",
        "How long requests in flight may take after SIGTERM or Ctrl-C; /ready says 503 meanwhile.",
        min=0.0,
    ),
]
LogFormatName = Annotated[
    str, opt("--log-format text|json", "How requests, warnings and errors are logged, on stderr.")
]
NumberFormat = Annotated[
    str,
    opt(
        "--dtype auto|float32|bfloat16",
        "The number format to compute in. auto takes float32 on a CPU, where bfloat16 needs half the memory and, on "
        "processors with instructions for it, less time; on a GPU it takes bfloat16.",
    ),
]
EngineName = Annotated[
    str | None,
    opt(
        "--engine vllm|embedded",
        "What computes the answers. vLLM is taken from the environment whose Python TOOLBAKE_VLLM_PYTHON names, or "
        "from this one.",
        default="vllm where there is a GPU and vLLM, else embedded",
    ),
]

VllmArguments = Annotated[
    list[str] | None,
    opt(
        "--vllm-arg --NAME=VALUE",
        "An argument to hand on to `vllm serve`, such as --vllm-arg=--tensor-parallel-size=2. Repeat it for more.",
    ),
]


def serve(
    model_dir: Annotated[
        str | None,
        arg(
            "RUN|MODEL_DIR",
            "The folder of a run of train, a model folder, or a name on the hub.",
            default="the embedded SmolLM2-135M-Instruct",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, opt("--port", "The port; 0 takes any free one.", min=0, max=65535)] = 8000,
    api_key_env: ClientsKey = None,
    tool_prompt: ShownTools = None,
    strict_tools: StrictTools = None,
    temperature: Temperature = None,
    default_max_tokens: MaxTokens = None,
    max_waiting: MaxWaiting = _MAX_WAITING,
    drain_seconds: DrainSeconds = _DRAIN_S,
    log_format: LogFormatName = "text",
    engine: EngineName = None,
    dtype: NumberFormat = "auto",
    call_parser: CallParser = None,
    vllm_arg: VllmArguments = None,
) -> None:
    """Serve a model over HTTP, for anything that speaks OpenAI's API.

    It offers /v1/chat/completions and /v1/responses with tools and streaming, /v1/models, /metrics, /health and /ready.
    Your application keeps calling the tools; the model decides which. Ctrl-C lets requests in flight finish, a second
    one ends them. SIGHUP loads the model again, without losing a request.

    Examples:
      toolbake serve runs/desk
      toolbake serve runs/desk --engine vllm
      DESK_KEY=... toolbake serve runs/desk --host 0.0.0.0 --port 8080 --api-key-env DESK_KEY
    """
    from ...process import keep_loaded_objects
    from ...progress import Console
    from ...serving import serve
    from ...serving.request_log import LOG_FORMATS, logging_to_stderr
    from ...serving.vllm_server import ENGINES, default_engine, serve_with_vllm
    from ..sources import key_from

    if log_format not in LOG_FORMATS:
        raise ConfigError(f"--log-format is {log_format!r}; give one of {', '.join(LOG_FORMATS)}")
    if engine is not None and engine not in ENGINES:
        raise ConfigError(f"--engine is {engine!r}; give one of {', '.join(ENGINES)}")
    key = key_from(api_key_env)
    progress = Console()
    progress.say(f"loading {model_dir or 'the embedded SmolLM2-135M-Instruct'}")
    how: dict[str, Any] = {"temperature": temperature, "default_max_tokens": default_max_tokens}
    how |= {"tool_prompt": tool_prompt, "strict_tools": strict_tools, "dtype": dtype, "drain_seconds": drain_seconds}
    start: Callable[..., Server | VllmServer] = serve
    if (engine or default_engine()) == "vllm":
        if max_waiting != _MAX_WAITING or log_format != "text":
            option = "--max-waiting" if max_waiting != _MAX_WAITING else "--log-format"
            raise ConfigError(f"{option} does nothing for vLLM; take it out, or add --engine embedded")
        start, how["call_parser"], how["progress"] = serve_with_vllm, call_parser, progress
        how["arguments"], how["shows_log"] = tuple(vllm_arg or ()), True
    elif call_parser is not None or vllm_arg:
        option = "--tool-call-parser" if call_parser is not None else "--vllm-arg"
        raise ConfigError(f"{option} does nothing for the embedded engine; take it out")
    else:
        how["max_waiting"] = max_waiting
    with (
        logging_to_stderr(cast(Any, log_format)),
        start(model_dir, host=host, port=port, api_key=key, **how) as server,
        _reloaded_by_sighup(server),
    ):
        keep_loaded_objects()
        used = server.defaults
        typer.echo(f"{server.model_name} is served at {server.url}/v1 (Ctrl-C ends it). Try it:\n")
        typer.echo(curl_example(server.url, server.model_name, api_key_env if key else None, used.temperature))
        held = " Calls are held to the tools and their schemas." if used.strict_tools else ""
        typer.echo(
            f"\nA request that does not set them gets temperature {used.temperature:g}, top_p {used.top_p:g} and "
            f"at most {used.max_tokens} new tokens.{held}"
        )
        server.wait()
    progress.say("stopped")


@contextmanager
def _reloaded_by_sighup(server: Server | VllmServer) -> Iterator[None]:
    """Inside, SIGHUP loads the model again, as operators know it of services.

    A terminal that closes sends it, too: then it ends the command, as others. One that the parent ignores (`nohup`)
    stays ignored, and vLLM does not load again.
    """
    from ...serving import Server

    number = getattr(signal, "SIGHUP", None)
    before = None if number is None else signal.getsignal(number)
    if number is None or not callable(before) or not isinstance(server, Server):
        yield
        return
    on_terminal = os.isatty(0)
    loading: list[threading.Thread] = []
    closing = threading.Event()

    def hear(received: int, frame: FrameType | None) -> None:
        if on_terminal and not os.isatty(0):
            before(received, frame)
        else:
            loading.append(
                threading.Thread(target=_reload, args=(server, closing), name="toolbake-reload", daemon=True)
            )
            loading[-1].start()

    signal.signal(number, hear)
    try:
        yield
    finally:
        signal.signal(number, before)
        closing.set()
        for thread in loading:  # one in the midst of native code would abort the process at its end
            thread.join()


def _reload(server: Server, closing: threading.Event) -> None:

    try:
        server.reload()
        gc.unfreeze()  # the old model is garbage once its last request has ended, which may be later
    except Exception as error:  # whatever is wrong with the new model, the old one is there
        if closing.is_set():
            return
        told = isinstance(error, ToolbakeError)
        log.error("%s is served as before; loading it again failed: %s", server.model_name, error, exc_info=not told)


def curl_example(url: str, model_name: str, key_variable: str | None, temperature: float) -> str:
    """A request to copy, with the temperature that it would get without one. The key stays in its variable."""
    request = {"model": model_name, "messages": [{"role": "user", "content": "Hello!"}], "temperature": temperature}
    body = json.dumps(request).replace("'", "'\\''")
    key = f' \\\n  -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n  -d '{body}'"
