"""Renderers: messages to token ids and back, exactly; what was sampled is never rendered again."""

from __future__ import annotations

import os
from typing import Any

from ...errors import ModelError
from .renderer import ChatRenderer, ParsedReply, append_tokens, reasoning_open

__all__ = ["ChatRenderer", "ParsedReply", "append_tokens", "family_of", "make_renderer", "reasoning_open"]


def family_of(name: str) -> str:
    """The family of a renderer, which may be called by the hub name of a model."""
    if "/" not in name:
        return name
    from renderers.base import MODEL_RENDERER_MAP

    return str(MODEL_RENDERER_MAP.get(name, name))


def make_renderer(tokenizer: Any, *, family: str | None = None) -> ChatRenderer:
    """The renderer for a tokenizer (transformers, with a fast version).

    `family`: None chooses by `tokenizer.name_or_path`: a hand-written renderer where the hub name is known, the
    tokenizer's chat template otherwise. A hub name (`"Qwen/Qwen3-4B"`), a family (`"qwen3"`) or `"template"` says
    it outright, which a model saved to a folder needs: keep `renderer.family` with it.

    Raises `ModelError` when the family is unknown or does not fit the tokenizer.
    """
    from .library import LibraryRenderer
    from .template import TemplateRenderer

    if family is None and os.path.isabs(getattr(tokenizer, "name_or_path", "")):
        family = "template"  # no hub name; the library need not be imported, which takes a second
    if family == "template":
        return TemplateRenderer(tokenizer)
    from renderers.base import MODEL_RENDERER_MAP

    name = getattr(tokenizer, "name_or_path", "") if family is None else family
    if family is None or family in MODEL_RENDERER_MAP:
        # The library has for them the renderer of models that reason, and these write no reasoning, not even empty.
        family = "template" if name.endswith("-Instruct-2507") else MODEL_RENDERER_MAP.get(name, "template")
    if family == "template":
        return TemplateRenderer(tokenizer)
    families = sorted(set(MODEL_RENDERER_MAP.values()))
    if family not in families:
        raise ModelError(f"renderer family {family!r} is unknown; choose 'template' or one of {', '.join(families)}")
    return LibraryRenderer(tokenizer, family, name if name in MODEL_RENDERER_MAP else "")
