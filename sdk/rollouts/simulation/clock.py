"""An event loop whose clock jumps to the next thing that happens instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

Result = TypeVar("Result")


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nobody: where nothing is ready, the clock moves on by as long as it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)  # only another thread or a socket can go on from here
        self.passed_s += timeout
        return ready


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """For work that waits for timers only. What threads and sockets bring takes no time by this clock."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed_s


def computing_takes_time() -> bool:
    """Whether the running loop's clock goes on while something is computed, as all do but the one of `run_virtual`."""
    try:
        return not isinstance(asyncio.get_running_loop(), VirtualClockLoop)
    except RuntimeError:  # trio's
        return True


def run_virtual(function: Callable[..., Awaitable[Result]], *args: Any) -> Result:
    """`anyio.run` by a clock that jumps: `anyio.sleep(3600)` returns at once, an hour later by `anyio.current_time()`.

    Example: `run_virtual(anyio.sleep, 3600)`
    """
    return anyio.run(function, *args, backend="asyncio", backend_options={"loop_factory": VirtualClockLoop})
