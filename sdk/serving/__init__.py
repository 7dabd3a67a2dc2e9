"""Serving a model behind an OpenAI-compatible endpoint. starlette and uvicorn are loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .openai_api import build_app
    from .server import Server, serve

__all__ = ["Server", "build_app", "serve"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import openai_api, server

        return getattr(openai_api if name == "build_app" else server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
