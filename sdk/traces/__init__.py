"""The run folder: what a run was asked, what happened in it, and reading it back."""

from .run_folder import RunFolder

__all__ = ["RunFolder"]
