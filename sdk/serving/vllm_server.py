"""vLLM as the server of a model. Here is the command line that serves as was measured, which exports print, too.
`toolbake serve` starts a process by it, watches it and stops it."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self, get_args

import anyio
from packaging.version import Version

from ..errors import ConfigError, ModelError, ToolbakeError
from ..policies.model_source import ends_in_vllm
from ..policies.models import load_sampling, load_tokenizer
from ..policies.protocol import Sampling
from ..policies.rendering import family_of, make_renderer
from ..policies.rendering.renderer import ASK, PROBE_TOOL
from ..policies.server_process import ServerProcess, wait_until_ready
from ..policies.tool_prompt import shown_by_default
from ..policies.vllm.in_server import IN_SERVER
from ..policies.vllm.server_command import ON_GPUS, VllmBuild, find_vllm
from ..policies.vllm.vllm_options import Dtype
from ..progress import Progress, Silent
from ..records import PROMPT_NAMES, ToolPrompt
from .backend import fingerprint_of, sampling_defaults
from .server import DRAIN_S, address_of, bind, check_drain, check_dtype, served_name

log = logging.getLogger(__name__)

PARSERS: dict[str, tuple[str, str | None]] = {
    "template": ("hermes", None),
    "qwen3": ("hermes", "qwen3"),
    "prime-qwen3": ("hermes", "qwen3"),
    "qwen3-vl": ("hermes", None),
    "qwen3.5": ("qwen3_coder", "qwen3"),
    "qwen3.6": ("qwen3_coder", "qwen3"),
    "deepseek-v3": ("deepseek_v3", None),
    "gemma4": ("gemma4", "gemma4"),
    "glm-4.5": ("glm45", "glm45"),
    "gpt-oss": ("openai", "openai_gptoss"),
    "kimi-k2": ("kimi_k2", None),
    "llama-3": ("llama3_json", None),
    "minimax-m2": ("minimax_m2", "minimax_m2"),
}
"""Family of our renderers -> vLLM's parsers of calls and of reasoning that read the same form."""


@dataclass(frozen=True)
class ServedModel:
    """What a server must know of a model, to serve it as it was measured."""

    source: str
    """Its folder, or its name on the hub."""
    name: str
    """What clients ask for."""
    sampling: Sampling
    tool_prompt: ToolPrompt
    strict_tools: bool
    """Whether calls are held to their schemas, also of tools that are not `strict: true`: where it was measured so, and
    vLLM can. Tools without their schemas, as clients send them for less than full prompts, would hold all arguments to
    nothing."""
    context_tokens: int | None
    """The most tokens of prompt and answer together; None where its configuration does not have it."""
    held_replies_end: bool
    """Whether replies that follow a grammar end in vLLM, see `ends_in_vllm`."""
    call_parser: str
    reasoning_parser: str | None

    @classmethod
    def read(cls, place: str | os.PathLike[str] | None, *, call_parser: str | None = None) -> ServedModel:
        """`place` as in `sdk.serve`. `call_parser`: vLLM's parser of the model's calls, where the family does not
        tell it. Raises `ModelError` as `load_tokenizer`, and where no parser is known."""
        spoken = load_tokenizer(place)
        shown = shown_by_default(spoken.tool_prompt)
        renderer = make_renderer(spoken.tokenizer, family=spoken.family)
        family = family_of(renderer.family)
        parser, reasoning = PARSERS.get(family, (None, None))
        if call_parser is None:
            call_parser = parser
            problem = f"no tool-call parser of vLLM is known for the family {family!r}" if parser is None else None
            if family == "template":
                problem = _unread_calls(spoken.tokenizer)
            if problem is not None or call_parser is None:
                raise ModelError(
                    f"{spoken.name!r}: {problem}; name vLLM's with --tool-call-parser. Known are the families "
                    f"{', '.join(PARSERS)}"
                )
        ends = ends_in_vllm(renderer, spoken.tokenizer)
        return cls(
            source=spoken.source,
            name=served_name(place, spoken.name),
            sampling=load_sampling(spoken.source, spoken.name),
            tool_prompt=shown,
            strict_tools=spoken.strict_tools and shown == "full" and ends,
            context_tokens=_context(Path(spoken.source)),
            held_replies_end=ends,
            call_parser=call_parser,
            reasoning_parser=reasoning,
        )


def _unread_calls(tokenizer: Any) -> str | None:
    """Why the calls of a model with a template of its own are not in the Hermes form, or None."""
    try:
        make_renderer(tokenizer, family="template").start([ASK], [PROBE_TOOL])
    except ModelError as error:
        return str(error)
    return None


def _context(folder: Path) -> int | None:
    file = folder / "config.json"
    if not file.is_file():
        return None
    config = json.loads(file.read_text())
    found = config.get("text_config", config).get("max_position_embeddings")
    return int(found) if found is not None else None


def vllm_arguments(
    model: ServedModel,
    source: str,
    *,
    host: str,
    port: int,
    build: VllmBuild,
    dtype: Dtype = "auto",
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """What follows `python -m`. `source`: where the model is for the server. `dtype`: as in `sdk.serve`. `defaults`:
    further sampling in place of that in the model's `generation_config.json`, by the names there."""
    arguments = [*build.program, source, "--served-model-name", model.name, "--host", host, "--port", str(port)]
    if model.context_tokens is not None:
        arguments += ["--max-model-len", str(model.context_tokens)]
    arguments += ["--generation-config", "auto", "--enable-auto-tool-choice", "--tool-call-parser", model.call_parser]
    arguments += ["--exclude-tools-when-tool-choice-none"]  # else it writes calls, which come as text
    if model.strict_tools:
        arguments += ["--tool-strict-level", "parameter"]
    if model.reasoning_parser is not None:
        arguments += ["--reasoning-parser", model.reasoning_parser]
    if defaults:
        arguments += ["--override-generation-config", json.dumps(dict(defaults))]
    return [*arguments, *build.computing_in(dtype)]


KEY_FOR_ALL = ("--middleware", "toolbake_key.Key")
"""vLLM's own check of the key covers `/v1` alone. `IN_SERVER` has the file."""


def as_typed(arguments: Sequence[str]) -> list[str]:
    """The command of `vllm_arguments` as one types it in an environment with vLLM."""
    serve = ON_GPUS.program
    if list(arguments[: len(serve)]) == serve:
        return ["vllm", "serve", *arguments[len(serve) :]]
    return ["python", "-m", *arguments]


# ---------------------------------------------------------------------------------------------------------------------
# The process.

Engine = Literal["vllm", "embedded"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
_END_S = 10.0
"""What vLLM may take to end, once its last request is answered."""
_START_S = 1800.0
"""Large models take vLLM minutes to load and to compile."""
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH")
"""What vLLM needs to download a gated model; no server gets secrets of ours otherwise."""


def default_engine() -> Engine:
    """vLLM where there is a GPU and an environment with a vLLM that can use it; see `find_vllm`. Imports torch."""
    if find_spec("torch") is None:
        return "embedded"  # which names the extra that is missing
    import torch

    if not torch.cuda.is_available():
        return "embedded"
    try:
        build = find_vllm(None)
    except ConfigError:
        return "embedded"
    return "embedded" if build.cpu else "vllm"


class VllmServer:
    """A running vLLM. Use it as a context manager, or `close()` it."""

    def __init__(
        self, process: ServerProcess, *, model_name: str, defaults: Sampling, command: list[str], drain_s: float
    ) -> None:
        self._process = process
        self._drain_s = drain_s
        self.url = process.url
        """Where the server is. Clients of OpenAI's API want `{url}/v1`."""
        self.model_name = model_name
        self.defaults = defaults
        """The sampling where a request sets no temperature, top_p or limit."""
        self.command = command
        """As one would type it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End vLLM: SIGTERM, and SIGKILL some seconds after the time that requests in flight have, or at once where
        Ctrl-C is pressed meanwhile. Safe to repeat."""
        try:
            self._process.stop(self._drain_s)
        except KeyboardInterrupt:
            self._process.stop()
            raise

    def wait(self) -> None:
        """Block until vLLM exits or Ctrl-C is pressed. Raises `ToolbakeError` if it exited by itself."""
        try:
            self._process.wait()
            failure = self._process.failure()
        except KeyboardInterrupt:
            return
        finally:
            self.close()
        if failure is not None:
            raise ToolbakeError(failure)


_SETTLED = (
    *("--host", "--port", "--api-key", "--uds", "--grpc", "--grpc-port", "--ssl-cert-reqs"),
    *("--model", "--served-model-name", "--config", "--tool-strict-level"),
)
"""Arguments of `vllm serve` that are not handed on: a second `--host` would replace the one that was checked, and where
clients need certificates we could not ask whether it is ready."""
_TLS = ("--ssl-certfile", "--ssl-keyfile")

_FIRST_STRICT = "0.31"
"""The release of vLLM that brought `--tool-strict-level` (https://github.com/vllm-project/vllm/pull/56268)."""
_FORM = re.compile(r"--[a-z][a-z_-]*(\.[\w.-]+(?==))?(=.*)?", re.IGNORECASE | re.DOTALL)


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raises `ConfigError` for what vLLM could read as another argument, or would take for one that is settled. It
    takes the beginning of a name for the whole."""
    for argument in arguments:
        if _FORM.fullmatch(argument) is None:
            raise ConfigError(f"{argument!r} is not handed on to vLLM; write it as --NAME or --NAME=VALUE")
        name = _name(argument)
        if name not in _TLS and any(other.startswith(name) for other in (*_SETTLED, *_TLS)):
            raise ConfigError(
                f"{argument!r} is not handed on to vLLM: the host, the port, the key, the model and strict_tools are "
                "arguments of their own, TLS is --ssl-certfile=FILE with --ssl-keyfile=FILE, and certificates of "
                "clients are for a reverse proxy"
            )


def _name(argument: str) -> str:
    """As vLLM reads it: with dashes for underscores."""
    return argument.partition("=")[0].replace("_", "-").lower()


def serve_with_vllm(
    model_dir: str | os.PathLike[str] | None,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    *,
    temperature: float | None = None,
    default_max_tokens: int | None = None,
    tool_prompt: ToolPrompt | None = None,
    strict_tools: bool | None = None,
    dtype: Dtype = "auto",
    call_parser: str | None = None,
    arguments: tuple[str, ...] = (),
    drain_seconds: float = DRAIN_S,
    progress: Progress | None = None,
    shows_log: bool = False,
) -> VllmServer:
    """Start vLLM with a model, as `sdk.serve` serves it, and wait until it answers.

    The arguments are those of `sdk.serve`. `call_parser`: vLLM's parser of the model's calls, where toolbake does not
    know it. `arguments`: further ones of `vllm serve`, such as `--tensor-parallel-size=2`; not those that say where it
    listens and who may ask, which are arguments here. `drain_seconds`: how long requests in flight may take when the
    server closes. `shows_log`: standard error gets vLLM's log, which is else a temporary file. The environment with
    vLLM is the one that `TOOLBAKE_VLLM_PYTHON` names, else this one.

    Raises `ConfigError` without vLLM, for an address that cannot be used, and for a tool prompt other than `full`, the
    only one that vLLM has; `ModelError` for a model that cannot be loaded; `PolicyFailure` where vLLM does not start.
    """
    _check_arguments(arguments)
    check_dtype(dtype)
    check_drain(drain_seconds)
    build = find_vllm(None)
    if build.untested is not None:
        log.warning(build.untested)
    listener = bind(host, port, api_key)  # refuses what must not be, before the model is looked at
    port = listener.getsockname()[1]
    url = address_of(listener)
    if any(_name(argument) in _TLS for argument in arguments):
        url = url.replace("http", "https", 1)
    listener.close()
    model = ServedModel.read(model_dir, call_parser=call_parser)
    asked = ", as strict_tools asks" if strict_tools else f", as {model.name!r} was measured"
    if strict_tools is not None:
        model = replace(model, strict_tools=strict_tools)
    if model.strict_tools and not model.held_replies_end:
        raise ConfigError(
            f"strict_tools is true, and in vLLM no reply of {model.name!r} that is held to a grammar would end: its "
            "template ends replies with another token than the tokenizer's end token; set strict_tools to false "
            "(--no-strict-tools), or serve it with the engine embedded"
        )
    shown = tool_prompt or model.tool_prompt
    if shown != "full":
        raise ConfigError(
            f"the prompts of {model.name!r} show {PROMPT_NAMES[shown]} of clients' tools, and vLLM shows them in full; "
            "serve it with the engine embedded, or with tool_prompt full, which was not measured"
        )
    if model.strict_tools and build.version and Version(build.version) < Version(_FIRST_STRICT):
        raise ConfigError(
            f"vLLM {build.version} in {build.python} cannot hold calls to their schemas{asked}: that takes "
            f"{_FIRST_STRICT} or newer; upgrade it, or set strict_tools to false (--no-strict-tools)"
        )
    fingerprint = fingerprint_of(model.source)
    chosen = {"temperature": temperature, "max_new_tokens": default_max_tokens}
    defaults = {name: value for name, value in chosen.items() if value is not None}
    if temperature is not None:
        defaults["do_sample"] = temperature > 0
    command = [
        *vllm_arguments(model, model.source, host=host, port=port, build=build, dtype=dtype, defaults=defaults),
        "--enable-request-id-headers",
        *("--shutdown-timeout", str(math.ceil(drain_seconds))),
        *KEY_FOR_ALL,
        *(() if fingerprint is None else ("--fingerprint-mode", "custom", "--fingerprint-value", fingerprint)),
        *arguments,
    ]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, (str(IN_SERVER), os.environ.get("PYTHONPATH"))))}
    environment |= {"VLLM_API_KEY": api_key} if api_key is not None else {}
    if not Path(model.source).is_dir():
        environment |= {name: os.environ[name] for name in _HUB_TOKENS if name in os.environ}
    started = [build.python, "-m", *command]
    process = ServerProcess("vLLM", started, url=url, log=None, environment=environment, shows_log=shows_log)
    try:
        anyio.run(wait_until_ready, [process], _START_S, progress or Silent())
    except BaseException:
        process.stop()
        raise
    drain_s = drain_seconds + _END_S if drain_seconds else 0.0
    of_model = replace(model.sampling, strict_tools=model.strict_tools)
    used = sampling_defaults(of_model, temperature, default_max_tokens)
    return VllmServer(process, model_name=model.name, defaults=used, command=as_typed(command), drain_s=drain_s)
