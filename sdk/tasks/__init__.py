"""Tasks: reading them from what the user has, and splitting them without leaks."""

from .splitting import (
    Split,
    ThreeWaySplit,
    counted,
    keep_aside,
    split_tasks,
    split_three_ways,
    spread,
    tasks_of_families,
)
from .task_files import load_tasks

__all__ = [
    "Split",
    "ThreeWaySplit",
    "counted",
    "keep_aside",
    "load_tasks",
    "split_tasks",
    "split_three_ways",
    "spread",
    "tasks_of_families",
]
