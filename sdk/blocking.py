"""The blocking twins of the async functions, for scripts and notebooks without an event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import anyio

from .certification import certify_async
from .distillation import distill_async
from .errors import ConfigError
from .evaluation.evaluation_run import evaluate_async, rollout_async
from .synthesis.solution import solve_async, solve_file_async
from .synthesis.synthesis_run import synthesize_async
from .synthesis.task_checks import check_tasks_async
from .trainer.pipeline import train_async

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(function: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    """`function` run to its end in an event loop of its own."""

    @functools.wraps(function)
    def blocking(*args: P.args, **kwargs: P.kwargs) -> R:
        name = function.__name__
        if _in_event_loop():
            raise ConfigError(f"sdk.{name.removesuffix('_async')} was called inside an event loop; await sdk.{name}")

        async def run() -> R:
            return await function(*args, **kwargs)

        return anyio.run(run)

    blocking.__name__ = function.__name__.removesuffix("_async")
    return blocking


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


train = _blocking(train_async)
evaluate = _blocking(evaluate_async)
rollout = _blocking(rollout_async)
distill = _blocking(distill_async)
certify = _blocking(certify_async)
solve = _blocking(solve_async)
solve_file = _blocking(solve_file_async)
synthesize = _blocking(synthesize_async)
check_tasks = _blocking(check_tasks_async)
