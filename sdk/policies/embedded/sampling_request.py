"""One request in the engine: what was asked, what came so far, and how the answer reaches the caller's event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import PolicyFailure
from ..protocol import Completion, Sampling


@dataclass(eq=False)
class Request:
    """Belongs to the worker thread, apart from `cancelled`, which the caller sets."""

    prompt: list[int]
    sampling: Sampling
    limit: int
    """The most new tokens: the sampling's own limit, or what the context leaves."""
    stop_ids: frozenset[int]
    random: np.random.Generator
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    on_token: Callable[[int], None] | None = None
    """Called on the loop, before the future is done."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cancelled: bool = False

    def take(self, token: int, logprob: float, version: int) -> bool:
        """Add a token that was sampled from this `version` of the weights; True when the caller has been answered: it
        was the last one, or one that no distribution gave."""
        if not math.isfinite(logprob):
            self.fail(_no_numbers(len(self.prompt) + len(self.token_ids)))
            return True
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if self.on_token is not None:
            self._on_loop(self._tell, token)
        stopped = token in self.stop_ids
        if not stopped and len(self.token_ids) < self.limit:
            return False
        self._deliver(Completion(self.token_ids, self.logprobs, "stop" if stopped else "length", version))
        return True

    def fail(self, error: Exception) -> None:
        """Raise `error` at the caller."""
        self._deliver(error)

    def _tell(self, token: int) -> None:
        if self.on_token is None or self.cancelled:
            return
        try:
            self.on_token(token)
        except Exception as error:
            self.cancelled = True  # frees the row
            if not self.future.done():
                self.future.set_exception(error)

    def _deliver(self, outcome: Completion | Exception) -> None:
        def deliver() -> None:
            if self.future.done():
                return
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

        self._on_loop(deliver)

    def _on_loop(self, call: Callable[..., None], *arguments: int) -> None:
        # A loop that has been closed has nobody left who waits.
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:
                if not self.loop.is_closed():
                    raise


def _no_numbers(tokens: int) -> PolicyFailure:
    return PolicyFailure(
        f"the model's log-probabilities after {tokens} tokens are nan or infinite: so are its weights, as after a "
        "training that diverged, or float16 is too narrow for it; load or publish other weights, or load it in "
        "bfloat16 or float32"
    )


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # a[:low] == b[:low] and a[:high] != b[:high] hold throughout.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
