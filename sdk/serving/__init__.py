"""Serving a model behind an OpenAI-compatible endpoint. starlette and uvicorn are loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import Server, serve

__all__ = ["Server", "serve"]


def __getattr__(name: str) -> Any:
    if name in ("Server", "serve"):
        from . import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
