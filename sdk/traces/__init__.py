"""The run folder: what a run was asked, what happened in it, and reading it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run_folder import RunFolder

__all__ = ["RunFolder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from .run_folder import RunFolder  # when it is used: it imports modules that import others of this package

    return RunFolder
