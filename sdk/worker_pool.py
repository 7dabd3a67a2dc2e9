"""A pool of workers in the event loop: several items of work at once, and never more than so many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from .errors import plain_errors, require_number

Item = TypeVar("Item")


async def work_through(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, at_once: int) -> None:
    """`work` on each item, begun in their order, at most `at_once` under way.

    Raises what `work` raises first; the rest is cancelled then. Raises `ConfigError` where nothing may be under way.
    """
    require_number("concurrency", at_once, least=1, whole=True)
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    with plain_errors():
        async with anyio.create_task_group() as group:
            for _ in range(at_once):
                group.start_soon(worker)
