"""From what the user names to an agent: a local model in process, or an endpoint."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import ValidationError

from mcp_bridge.access.redaction import public_url
from mcp_bridge.extras import require_extra

from ..errors import ConfigError
from ..records import ToolPrompt
from .endpoint import EndpointAgent, checked_system
from .protocol import Agent
from .vllm.vllm_options import VllmOptions

ModelSource = str | Path | tuple[str, str] | Mapping[str, Any] | Agent | None
"""A folder or hub name (None: the embedded model); an endpoint as `(url, model name)` or as a mapping with
`base_url`, `model` and optionally `api_key` and `system` (instructions of its own); vLLM with token ids, as a mapping
with `engine` ("vllm"), `model` and options of `VllmOptions`; or an agent."""

_ENDPOINT_KEYS = {"base_url", "model", "api_key", "timeout_s", "extra_body", "headers", "system"}


@asynccontextmanager
async def open_agent(model: ModelSource = None, *, rows: int = 64) -> AsyncIterator[Agent]:
    """An agent ready to speak, closed at the end. `rows`: how many conversations a local engine batches.

    Raises `ConfigError` for what names no model, `ModelError` for one that cannot be loaded.
    """
    check_model_source(model)
    if _is_vllm(model) or model is None or isinstance(model, str | Path):
        require_extra("serve", "a local model", ConfigError)
    if _is_vllm(model):
        async with _open_vllm_agent(dict(model)) as agent:  # type: ignore[arg-type]
            yield agent
    elif isinstance(model, tuple | Mapping):
        async with EndpointAgent(**_endpoint_options(model)) as endpoint:
            yield endpoint
    elif model is None or isinstance(model, str | Path):
        from .embedded import EmbeddedEngine
        from .models import load_model
        from .rendering import make_renderer
        from .token_agent import TokenAgent
        from .tool_prompt import shown_by_default

        loaded = await anyio.to_thread.run_sync(load_model, str(model) if model is not None else None)
        with EmbeddedEngine(loaded.model, max_rows=rows) as engine:
            renderer = make_renderer(loaded.tokenizer, family=loaded.family)
            yield TokenAgent(engine, renderer, loaded.name, tool_prompt=shown_by_default(loaded.tool_prompt))
    else:
        yield model


def check_model_source(model: Any) -> None:
    """Raises `ConfigError` for what names no model. The error shows no value: there may be a key among them."""
    if _is_vllm(model):
        _vllm_options(model)
    elif isinstance(model, tuple | Mapping) or _is_url(model):
        _endpoint_options(model)
    elif not (model is None or isinstance(model, str | Path) or (hasattr(model, "start") and hasattr(model, "name"))):
        raise ConfigError(f"model is a {type(model).__name__}; give {_FORMS}")


def model_label(model: ModelSource) -> str | None:
    """What a checked source is called in files: a name, or an endpoint's URL and model name. None: the embedded one.

    Keys, headers and what a URL carries besides its address are no part of it. Raises `ConfigError` as
    `check_model_source` does.
    """
    check_model_source(model)
    if _is_vllm(model):
        return f"{_vllm_options(model)[0] or 'the embedded model'} by vLLM"
    if isinstance(model, tuple | Mapping):
        options = _endpoint_options(model)
        label = f"{public_url(str(options['base_url']))}#{options['model']}"
        return label if (system := options.get("system")) is None else f"{label} prompted {_short_digest(system)}"
    return str(model) if isinstance(model, str | Path) else getattr(model, "name", None)


def default_tool_prompt(model: ModelSource) -> ToolPrompt:
    """What a checked source is shown of the tools where nobody says otherwise: what it was trained with, as its folder
    says; `full` where nothing does. Raises `ModelError` for a folder that is damaged."""
    from .models.loading import read_notes
    from .tool_prompt import shown_by_default

    if _is_vllm(model):
        model = _vllm_options(model)[0]
    if isinstance(model, str | Path):
        return shown_by_default(read_notes(Path(model).expanduser())[1])
    found: ToolPrompt = getattr(model, "tool_prompt", "full")
    return found


_FORMS = (
    "a folder, a hub name, None for the embedded model, (url, model name), a mapping with base_url and model or with "
    "engine and model, or an agent"
)


@asynccontextmanager
async def _open_vllm_agent(source: Mapping[str, Any]) -> AsyncIterator[Agent]:
    from .models.loading import load_tokenizer
    from .rendering import make_renderer
    from .token_agent import TokenAgent
    from .tool_prompt import shown_by_default
    from .vllm import open_vllm

    name, options = _vllm_options(source)
    spoken = await anyio.to_thread.run_sync(load_tokenizer, name)
    async with open_vllm(spoken.source, options, publishes=False) as policy:
        renderer = make_renderer(spoken.tokenizer, family=spoken.family)
        yield TokenAgent(policy, renderer, spoken.name, tool_prompt=shown_by_default(spoken.tool_prompt))


def _is_vllm(model: Any) -> bool:
    return isinstance(model, Mapping) and model.get("engine") == "vllm"


def _vllm_options(model: Any) -> tuple[str | None, VllmOptions]:
    """The model's folder or name (None: the embedded one) and the options. Raises `ConfigError`."""
    given = {key: value for key, value in model.items() if key not in ("engine", "model")}
    name = model.get("model")
    if not (name is None or isinstance(name, str | Path)):
        raise ConfigError(f"vLLM's model is a {type(name).__name__}; give a folder, a hub name, or None")
    try:
        return str(name) if name is not None else None, VllmOptions.model_validate(given)
    except ValidationError as error:
        # Without the values: the servers' environment may hold keys.
        said = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg']}" for e in error.errors())
        known = ", ".join(VllmOptions.model_fields)
        raise ConfigError(f"vLLM's {said}; possible keys: engine, model, {known}") from None


def _is_url(model: ModelSource) -> bool:
    return isinstance(model, str) and model.startswith(("http://", "https://"))


def _endpoint_options(model: Any) -> dict[str, Any]:
    if isinstance(model, str):
        raise ConfigError(f"{public_url(model)!r} is a URL without a model name; give (url, model name)")
    if isinstance(model, tuple):
        if len(model) != 2:
            raise ConfigError(f"an endpoint is (url, model name); this tuple has {len(model)} items")
        return {"base_url": model[0], "model": model[1]}
    unknown, missing = sorted(set(model) - _ENDPOINT_KEYS), sorted({"base_url", "model"} - set(model))
    if unknown or missing:
        raise ConfigError(
            f"an endpoint is a mapping with base_url and model; missing: {', '.join(missing) or 'nothing'}; "
            f"unknown: {', '.join(unknown) or 'nothing'}; possible keys: {', '.join(sorted(_ENDPOINT_KEYS))}"
        )
    checked_system(model.get("system"))
    return dict(model)


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
