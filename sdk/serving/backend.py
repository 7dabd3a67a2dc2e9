"""The backend of an endpoint: the model that answers requests, and what answers say of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from ..errors import ModelError
from ..evidence.saved_weights import files_digest, files_of
from ..policies.models.loading import folder_here
from ..policies.models.saving import NOTES_FILE
from ..policies.protocol import LOWEST_TEMPERATURE, Sampling
from ..policies.tool_prompt import render_less, shown_by_default
from ..policies.vllm.vllm_options import Dtype
from ..records import PROMPT_NAMES, ToolPrompt
from .generation import Answering, Generator
from .requests import RequestQueue

log = logging.getLogger(__name__)

_ENGINE_RESTARTS = 3
"""How often in all the engine goes on after a failure; then `/health` says that it cannot answer."""


@dataclass(eq=False)
class Backend:
    """A model behind an endpoint. A request is answered to its end by the one that it began with."""

    generator: Answering
    defaults: Sampling
    """The sampling where a request sets no temperature, top_p or limit. `strict_tools`: calls of tools that are not
    `strict: true` are held to their schemas, too."""
    tool_prompt: ToolPrompt = "full"
    """How much of a request's tools the prompt shows."""
    fingerprint: str | None = None
    """The beginning of the digest of its weights."""
    name: str = ""
    """What clients ask for."""
    close: Callable[[], None] = lambda: None
    """Frees its memory. Called once another has taken its place and its last request is answered; safe to repeat."""
    requests: int = field(default=0, init=False)
    """How many are under way with it."""


def load_backend(
    place: str | os.PathLike[str] | None,
    queue: RequestQueue,
    *,
    family: str | None,
    tool_prompt: ToolPrompt | None,
    strict_tools: bool | None,
    dtype: Dtype,
    temperature: float | None,
    default_max_tokens: int | None,
    named: Callable[[str], str],
) -> Backend:
    """Load a model and start its engine; arguments as those of `serve`. `named`: from the model's own name to the one
    that clients ask for. Raises `ModelError`."""
    from ..policies.models import has_bfloat16, load_model

    # Before torch is imported for the engine: a wrong folder is found at once.
    loaded = load_model(place, dtype=None if dtype == "auto" else dtype)
    name = named(loaded.name)

    from ..policies.embedded import EmbeddedEngine
    from ..policies.grammar import ReplyGrammars
    from ..policies.rendering import make_renderer

    shown = tool_prompt or shown_by_default(loaded.tool_prompt)
    renderer = render_less(make_renderer(loaded.tokenizer, family=family or loaded.family), shown)
    with ExitStack() as on_failure:
        engine = on_failure.enter_context(EmbeddedEngine(loaded.model, max_restarts=_ENGINE_RESTARTS))
        try:
            grammars = ReplyGrammars.of(renderer, loaded.tokenizer, vocabulary=engine.vocabulary)
        except ModelError as error:
            grammars = None
            log.warning("%s: response_format and tool_choice are refused: %s", name, error)
        strict = loaded.strict_tools if strict_tools is None else strict_tools
        if strict and not (grammars is not None and grammars.knows_calls):
            raise ModelError(
                f"strict_tools is true{'' if strict_tools else f' in the {NOTES_FILE} of its folder'}, and no grammar "
                f"can be made of the calls of {name!r}; set it to false (--no-strict-tools)"
            )
        of_model = replace(loaded.sampling, strict_tools=strict)
        defaults = sampling_defaults(of_model, temperature, default_max_tokens)
        backend = Backend(
            Generator(engine, renderer, grammars, queue, defaults=defaults),
            defaults,
            shown,
            fingerprint_of(loaded.source),
            name,
            engine.close,
        )
        on_failure.pop_all()
    if dtype == "bfloat16" and loaded.model.device.type == "cpu" and has_bfloat16() is False:
        log.warning("this machine's processor has no instructions for bfloat16: float32 takes about half the time")
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
    return backend


def fingerprint_of(source: str) -> str | None:
    """The beginning of the digest that a run's evidence has of its weights; None where there are no safetensors files
    to read, as of a hub's older models."""
    folder = folder_here(source)
    files = [] if folder is None else files_of(folder, adapter=False)
    return f"fp_{files_digest(files)[:16]}" if files else None


def sampling_defaults(of_model: Sampling, temperature: float | None, max_tokens: int | None) -> Sampling:
    """How a server samples where a request leaves it open."""
    chosen = of_model.temperature if temperature is None else temperature
    return replace(
        of_model,
        temperature=0 if chosen < LOWEST_TEMPERATURE else chosen,
        max_tokens=of_model.max_tokens if max_tokens is None else max_tokens,
    )
