"""Calling a sync function without blocking the loop, and without waiting for it at exit."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

Given = TypeVar("Given")

_MOST_AT_ONCE = 64
"""As many as rollouts are in flight by default: the time that a verifier may take runs while it waits for a thread,
too, and one that asks a server would be left without a verdict because of those before it."""
_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("verifier_threads")


async def call_in_thread(function: Callable[[Given], Any], given: Given) -> Any:
    """`function(given)` in a daemon thread. Raises what it raises.

    anyio's own worker threads are not used: they are no daemons, and a verifier that never returns would keep the
    process from ending. When this call is cancelled, the thread is left behind and its result is dropped.
    """
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_MOST_AT_ONCE)
        _limiter.set(limiter)
    async with limiter:
        return await _in_daemon(function, given)


async def _in_daemon(function: Callable[[Given], Any], given: Given) -> Any:
    done = anyio.Event()
    outcome: list[tuple[Any, BaseException | None]] = []
    token = anyio.lowlevel.current_token()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome.append((context.run(function, given), None))
        except BaseException as error:  # delivered below: nothing may be lost in a thread
            outcome.append((None, error))
        try:
            anyio.from_thread.run_sync(done.set, token=token)
        except anyio.RunFinishedError:
            return  # the loop ended before the verifier did; nobody waits for the result

    threading.Thread(target=work, name="verifier", daemon=True).start()
    await done.wait()
    found, error = outcome[0]
    if isinstance(error, Exception):
        raise error
    if error is not None:  # SystemExit and its kind must not take the caller down with them
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    return found
