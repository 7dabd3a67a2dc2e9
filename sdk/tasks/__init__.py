"""Tasks: reading them from what the user has, and splitting them without leaks."""

from .loading import load_tasks
from .splitting import Split, split_tasks, spread

__all__ = ["Split", "load_tasks", "split_tasks", "spread"]
