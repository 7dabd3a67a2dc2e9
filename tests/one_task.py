"""A context manager held open by one task, for asynchronous fixtures: pytest leaves them in another task than it enters
them in, which the scopes of anyio refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def in_one_task(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """What `manager` gives. Its errors on the way in and out are raised here."""
    opened: asyncio.Queue[T] = asyncio.Queue()
    leave = asyncio.Event()

    async def hold() -> None:
        async with manager as given:
            opened.put_nowait(given)
            await leave.wait()

    holding = asyncio.create_task(hold())
    waiting = asyncio.create_task(opened.get())
    await asyncio.wait((holding, waiting), return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        await holding  # raises
    try:
        yield waiting.result()
    finally:
        leave.set()
        await holding
