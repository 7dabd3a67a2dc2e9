"""The command line with which vLLM serves a model as it was measured. `toolbake serve` runs it, exports print it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..policies.models import load_sampling, load_tokenizer
from ..policies.protocol import Sampling
from ..policies.rendering import make_renderer
from ..policies.rendering.renderer import ASK, PROBE_TOOL
from ..policies.tool_prompt import shown_by_default
from ..policies.vllm.server_command import ON_CPU, ON_GPUS, VllmBuild
from ..records import ToolPrompt
from .server import served_name

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
    context_tokens: int | None
    """The most tokens of prompt and answer together; None where its configuration does not have it."""
    call_parser: str
    reasoning_parser: str | None

    @classmethod
    def read(cls, place: str | os.PathLike[str] | None, *, call_parser: str | None = None) -> ServedModel:
        """`place` as in `sdk.serve`. `call_parser`: vLLM's parser of the model's calls, where the family does not
        tell it. Raises `ModelError` as `load_tokenizer`, and where no parser is known."""
        spoken = load_tokenizer(place)
        family = make_renderer(spoken.tokenizer, family=spoken.family).family
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
        return cls(
            source=spoken.source,
            name=served_name(place, spoken.name),
            sampling=load_sampling(spoken.source, spoken.name),
            tool_prompt=shown_by_default(spoken.tool_prompt),
            context_tokens=_context(Path(spoken.source)),
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
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """What follows `python -m`. `source`: where the model is for the server. `defaults`: further sampling in
    place of that in the model's `generation_config.json`, by the names there."""
    arguments = [*build.program, source, "--served-model-name", model.name, "--host", host, "--port", str(port)]
    if model.context_tokens is not None:
        arguments += ["--max-model-len", str(model.context_tokens)]
    arguments += ["--generation-config", "auto", "--enable-auto-tool-choice", "--tool-call-parser", model.call_parser]
    if model.reasoning_parser is not None:
        arguments += ["--reasoning-parser", model.reasoning_parser]
    if defaults:
        arguments += ["--override-generation-config", json.dumps(dict(defaults))]
    return [*arguments, *ON_CPU] if build.cpu else arguments


def as_typed(arguments: Sequence[str]) -> list[str]:
    """The command of `vllm_arguments` as one types it in an environment with vLLM."""
    serve = ON_GPUS.program
    if list(arguments[: len(serve)]) == serve:
        return ["vllm", "serve", *arguments[len(serve) :]]
    return ["python", "-m", *arguments]
