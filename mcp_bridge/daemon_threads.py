"""Calling a blocking function without blocking the loop, in a thread that no exit waits for.

anyio's own worker threads are not daemons: a function that never returns keeps the process from exiting, and so does a
Ctrl-C that comes while such a thread is being started, for the thread is then never told to end.
"""

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

Found = TypeVar("Found")


async def call_in_daemon_thread(function: Callable[[], Found], *, name: str) -> Found:
    """`function()` in a daemon thread. Raises what it raises; a `SystemExit` and its kind become a `RuntimeError`, as
    they must not take the caller down with them.

    When this call is cancelled, the thread is left behind and its result is dropped.
    """
    done = anyio.Event()
    found: list[Found] = []
    raised: list[BaseException] = []
    token = anyio.lowlevel.current_token()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            found.append(context.run(function))
        except BaseException as error:  # delivered below: nothing may be lost in a thread
            raised.append(error)
        try:
            anyio.from_thread.run_sync(done.set, token=token)
        except anyio.RunFinishedError:
            return  # the loop ended before the function did; nobody waits for the result

    threading.Thread(target=work, name=name, daemon=True).start()
    await done.wait()
    for error in raised:
        if isinstance(error, Exception):
            raise error
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    return found[0]
