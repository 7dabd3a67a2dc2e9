"""The source of a model, and its agent: a local model in process, vLLM, or an endpoint."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import ValidationError

from mcp_bridge.access.redaction import public_url
from mcp_bridge.errors import kind_of
from mcp_bridge.extras import require_extra

from ..errors import ConfigError, ModelError, wrong_fields
from ..records import Message, ToolPrompt
from ..traces.atomic_files import file_sha256
from .endpoint import EndpointAgent, checked_system, checked_url
from .grammar import ReplyGrammars
from .models.loading import (
    LoadedModel,
    LoadedTokenizer,
    load_model,
    load_tokenizer,
    model_of,
    read_notes,
    require_place,
)
from .protocol import Agent, Policy
from .rendering import ChatRenderer, make_renderer
from .token_agent import TokenAgent
from .tool_prompt import no_calls_read, render_less, shown_by_default
from .vllm.vllm_options import VllmOptions

ModelSource = str | Path | tuple[str, str] | Mapping[str, Any] | Agent | None
"""The folder of a model or of a run, or a hub name (None: the embedded model); an endpoint as `(url, model name)` or as
a mapping with `base_url`, `model` and optionally `api_key` and `system` (instructions of its own); vLLM with token ids,
as a mapping with `engine` ("vllm"), `model` and options of `VllmOptions`; or an agent."""

_ENDPOINT_KEYS = {"base_url", "model", "api_key", "timeout_s", "extra_body", "headers", "system"}


@asynccontextmanager
async def open_agent(model: ModelSource = None, *, rows: int = 64, strict_tools: bool = False) -> AsyncIterator[Agent]:
    """An agent ready to speak, closed at the end. `rows`: how many conversations a local engine batches.
    `strict_tools`: it can sample with `Sampling.strict_tools`.

    Raises `ConfigError` for what names no model, and for `strict_tools` with one that cannot; `ModelError` for one that
    cannot be loaded.
    """
    check_model_source(model)
    if strict_tools:
        require_strict(model)
    if _is_vllm(model) or model is None or isinstance(model, str | Path):
        require_extra("serve", "a local model", ConfigError)
    if _is_vllm(model):
        from .vllm import open_vllm

        name, options = _vllm_options(model)
        spoken = await anyio.to_thread.run_sync(load_tokenizer, name)
        async with open_vllm(spoken.source, options, publishes=False) as policy:
            yield await anyio.to_thread.run_sync(_token_agent, policy, spoken, strict_tools)
    elif isinstance(model, tuple | Mapping):
        async with EndpointAgent(**_endpoint_options(model)) as endpoint:
            yield endpoint
    elif model is None or isinstance(model, str | Path):
        from .embedded import EmbeddedEngine

        loaded = await anyio.to_thread.run_sync(load_model, str(model) if model is not None else None)
        with EmbeddedEngine(loaded.model, max_rows=rows) as engine:
            yield await anyio.to_thread.run_sync(_token_agent, engine, loaded, strict_tools)
    else:
        yield model


def _token_agent(policy: Policy, spoken: LoadedTokenizer, strict_tools: bool) -> TokenAgent:
    """An agent that speaks the model's language through `policy`."""
    renderer = make_renderer(spoken.tokenizer, family=spoken.family)
    # vLLM computes what is given as a tokenizer alone.
    grammars = grammars_of_calls(spoken, in_vllm=not isinstance(spoken, LoadedModel)) if strict_tools else None
    shown = shown_by_default(spoken.tool_prompt)
    return TokenAgent(policy, renderer, spoken.name, tool_prompt=shown, grammars=grammars)


def grammars_of_calls(spoken: LoadedTokenizer, *, in_vllm: bool, option: str = "strict_tools") -> ReplyGrammars:
    """For `option`, which errors name. Raises `ConfigError` for a model of whose calls no grammar can be made, and one
    whose replies would not end in vLLM."""
    renderer = make_renderer(spoken.tokenizer, family=spoken.family)
    vocabulary = len(spoken.tokenizer)
    if isinstance(spoken, LoadedModel):
        vocabulary = spoken.model.get_input_embeddings().num_embeddings
    fix = "set it to false, or use a model that writes the arguments of its calls as JSON, such as Qwen/Qwen3-0.6B"
    stops = renderer.stop_token_ids
    if in_vllm:
        stops = [spoken.tokenizer.eos_token_id]
        if not ends_in_vllm(renderer, spoken.tokenizer):
            raise ConfigError(
                f"{option} is true, and the template of {spoken.name} ends replies with another token "
                f"than {spoken.tokenizer.eos_token!r}, the tokenizer's end token: in vLLM no reply that follows a "
                "grammar would end; set it to false, or engine to embedded"
            )
    try:
        grammars = ReplyGrammars.of(renderer, spoken.tokenizer, vocabulary=vocabulary, stop_token_ids=stops)
    except ModelError as error:
        raise ConfigError(f"{option} is true, and {spoken.name}: {error}; {fix}") from error
    if not grammars.knows_calls:
        raise ConfigError(
            f"{option} is true, and {spoken.name} writes calls in a form of which no grammar can be made "
            f"(renderer {renderer.family!r}); {fix}"
        )
    return grammars


def ends_in_vllm(renderer: ChatRenderer, tokenizer: Any) -> bool:
    """Whether replies that follow a grammar end in vLLM, which ends them with the tokenizer's end token alone."""
    try:
        reply = renderer.encode_reply(Message(role="assistant", content="Hello."), [])
    except ModelError:  # none can be written for it
        return False
    return reply[-1:] == [tokenizer.eos_token_id]


def named_source(text: str, where: str) -> ModelSource:
    """The source that a text names: "embedded", a folder or hub name, or an endpoint as `https://host/v1#name`. Raises
    `ConfigError`, which names `where`, for an endpoint without a model."""
    if text.startswith(("http://", "https://")):
        url, _, model = text.partition("#")
        if not model:
            raise ConfigError(f"{where}: the endpoint {public_url(url)} has no model; give https://host/v1#large-1")
        return {"base_url": url, "model": model}
    return None if text == "embedded" else text


def second_source(model: ModelSource) -> ModelSource:
    """The source of a model beside the policy, where None means that there is none: "embedded" is the embedded one."""
    return None if isinstance(model, str) and model == "embedded" else model


def second_label(model: ModelSource) -> str:
    """What such a model is called in files. Raises as `model_label`."""
    return model_label(second_source(model)) or "embedded"


def check_model_source(model: Any) -> None:
    """Raises `ConfigError` for what names no model, `ModelError` for a path that leads nowhere. It shows no more:
    there may be a key among them."""
    if _is_vllm(model):
        require_place_of(_vllm_options(model)[0])
    elif isinstance(model, tuple | Mapping) or (isinstance(model, str) and model.startswith(("http://", "https://"))):
        _endpoint_options(model)
    elif not (model is None or isinstance(model, str | Path) or (hasattr(model, "start") and hasattr(model, "name"))):
        raise ConfigError(f"model is {kind_of(model)}; give {_FORMS}")
    else:
        require_place_of(model)


def require_place_of(model: Any) -> None:
    """Raises `ModelError` where `model` is a path that leads nowhere, before anything is started or downloaded."""
    if isinstance(model, str | Path):
        require_place(model)


def require_strict(model: ModelSource) -> None:
    """Raises `ConfigError` for an agent that may not know `Sampling.strict_tools`. `model`: a checked source."""
    if hasattr(model, "start") and not isinstance(model, TokenAgent | EndpointAgent):
        name = getattr(model, "name", "")
        raise ConfigError(
            f"strict_tools is true, and the agent {name!r} may not know it; give a model's folder or name, an "
            "endpoint, or a TokenAgent with grammars"
        )


def model_label(model: ModelSource) -> str | None:
    """What a checked source is called in files: a name, or an endpoint's URL and model name. None: the embedded one.

    Keys, headers and what a URL carries besides its address are not part of it. Raises `ConfigError` as
    `check_model_source` does.
    """
    check_model_source(model)
    if _is_vllm(model):
        return f"{_vllm_options(model)[0] or 'the embedded model'} by vLLM"
    if isinstance(model, tuple | Mapping):
        options = _endpoint_options(model)
        label = f"{public_url(str(options['base_url']))}#{options['model']}"
        system = options.get("system")
        return label if system is None else f"{label} prompted {hashlib.sha256(system.encode()).hexdigest()[:8]}"
    return str(model) if isinstance(model, str | Path) else getattr(model, "name", None)


def weights_identity(*sources: ModelSource) -> dict[str, Any]:
    """The weights of models in folders, also of runs and for vLLM: one that was trained on since is another model of
    the same name."""
    places = [_vllm_options(source)[0] if _is_vllm(source) else source for source in sources]
    folders = dict.fromkeys(model_of(place) for place in places if isinstance(place, str | Path))
    # Without the folders' paths, which the models' names tell: one that sounds like a secret would be hidden, and its
    # digest with it.
    found = {str(place): weight_digests(folder) for place, folder in enumerate(folders, start=1)}
    return {"weights": found} if any(found.values()) else {}


def weight_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of weights in a model's folder, by its path there."""
    files = [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("adapter/*.safetensors"))]
    return {str(file.relative_to(folder)): file_sha256(file) for file in files}


def default_tool_prompt(model: ModelSource) -> ToolPrompt:
    """What a checked source is shown of the tools where nobody says otherwise: what it was trained with, as its folder
    says; `full` where nothing does. Raises `ModelError` for a folder that is damaged."""
    if _is_vllm(model):
        model = _vllm_options(model)[0]
    if isinstance(model, str | Path):
        return shown_by_default(read_notes(model_of(model)).tool_prompt)
    found: ToolPrompt = getattr(model, "tool_prompt", "full")
    return found


def default_strict(model: ModelSource) -> bool:
    """Whether the calls of a checked source are held to their schemas where nobody says otherwise: as its folder was
    measured. Raises `ModelError` for a folder that is damaged."""
    if _is_vllm(model):
        place, options = _vllm_options(model)
        if options.urls or not default_strict(place):  # servers that run already may not follow grammars
            return False
        spoken = load_tokenizer(place)
        return ends_in_vllm(make_renderer(spoken.tokenizer, family=spoken.family), spoken.tokenizer)
    return isinstance(model, str | Path) and read_notes(model_of(model)).strict_tools


def require_shown(source: ModelSource, lengths: Iterable[ToolPrompt]) -> None:
    """Raises what a policy would come upon later if its prompts showed so much of the tools.

    `source`: a checked `ModelSource`. Of a model by folder or name, and of vLLM's, the tokenizer is loaded where less
    than full schemas are shown, no weights. Raises `ConfigError` and `ModelError` as `with_tool_prompt`, and
    `ModelError` for a tokenizer that cannot be loaded.
    """
    asked = [length for length in dict.fromkeys(lengths) if length != "full"]
    model = _vllm_options(source)[0] if _is_vllm(source) else source
    if isinstance(model, tuple | Mapping) and "none" in asked:
        raise no_calls_read(str(model[1] if isinstance(model, tuple) else model["model"]))
    if not asked or not (model is None or isinstance(model, str | Path)):
        return
    spoken = load_tokenizer(model)
    renderer = make_renderer(spoken.tokenizer, family=spoken.family)
    for length in asked:
        render_less(renderer, length)


_FORMS = (
    "a folder, a hub name, None for the embedded model, (url, model name), a mapping with base_url and model or with "
    "engine and model, or an agent"
)


def _is_vllm(model: Any) -> bool:
    return isinstance(model, Mapping) and model.get("engine") == "vllm"


_OF_NEW_WEIGHTS = ("publish", "transfer_backend", "in_flight")
"""Options of vLLM that a training alone has a use for."""


def _vllm_options(model: Any) -> tuple[str | None, VllmOptions]:
    """The model's folder or name (None: the embedded one) and the options. Raises `ConfigError`."""
    given = {key: value for key, value in model.items() if key not in ("engine", "model")}
    name = model.get("model")
    if not (name is None or isinstance(name, str | Path)):
        raise ConfigError(f"vLLM's model is {kind_of(name)}; give a folder, a hub name, or None")
    try:
        options = VllmOptions.model_validate(given)
    except ValidationError as error:
        # Without the values: the servers' environment may hold keys.
        known = ", ".join(name for name in VllmOptions.model_fields if name not in _OF_NEW_WEIGHTS)
        raise ConfigError(f"vLLM's {wrong_fields(error, 'options')}; possible keys: engine, model, {known}") from None
    if idle := [name for name in _OF_NEW_WEIGHTS if name in given]:
        raise ConfigError(f"vLLM's {idle[0]} does nothing where no weights are trained; take it out")
    return str(name) if name is not None else None, options


def _endpoint_options(model: Any) -> dict[str, Any]:
    if isinstance(model, str):
        raise ConfigError(f"{public_url(model)!r} is a URL without a model name; give (url, model name)")
    if isinstance(model, tuple):
        if len(model) != 2:
            raise ConfigError(f"an endpoint is (url, model name); this tuple has {len(model)} items")
        checked_url(model[0])
        return {"base_url": model[0], "model": model[1]}
    unknown, missing = sorted(set(model) - _ENDPOINT_KEYS), sorted({"base_url", "model"} - set(model))
    if unknown or missing:
        raise ConfigError(
            f"an endpoint is a mapping with base_url and model; missing: {', '.join(missing) or 'nothing'}; "
            f"unknown: {', '.join(unknown) or 'nothing'}; possible keys: {', '.join(sorted(_ENDPOINT_KEYS))}"
        )
    checked_url(model["base_url"])
    checked_system(model.get("system"))
    return dict(model)
