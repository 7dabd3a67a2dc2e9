"""TRL's trainers are synchronous: each runs in a worker thread, and can be stopped from the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from transformers import PrinterCallback

from ..idle_threads import let_idle_threads_go
from ..policies.models.progress import quiet_loading
from .callbacks import StopOnRequest


class TrainerThread:
    """One call of `trainer.train()`. Stopping takes effect after the micro-batch in progress."""

    def __init__(self, make: Callable[[StopOnRequest], Any], checkpoint: Path | None) -> None:
        self._make = make
        self._checkpoint = checkpoint
        self._stop = threading.Event()
        self._started = threading.Event()
        self._ended = threading.Event()
        self.finished = False
        """Whether the trainer made its last step."""

    def work(self) -> None:
        """In the worker thread: make the trainer, and train to the end or until stopped."""
        self._started.set()
        try:
            if self._stop.is_set():
                return
            with quiet_loading():
                trainer = self._make(StopOnRequest(self._stop))
                trainer.remove_callback(PrinterCallback)  # our progress bars say it
                trainer.train(resume_from_checkpoint=str(self._checkpoint) if self._checkpoint else None)
            self.finished = trainer.state.global_step >= trainer.args.max_steps
        finally:
            let_idle_threads_go()
            self._ended.set()

    async def stop_when_cancelled(self, on_stop: Callable[[], None] | None) -> None:
        """In the event loop, beside `work`: pass a cancellation on to the thread."""
        try:
            await anyio.sleep_forever()
        finally:
            self._stop.set()
            if on_stop is not None:
                on_stop()

    async def wait_for_end(self) -> None:
        """Return once the thread touches nothing any more, also when an interrupt came past the task group."""
        self._stop.set()
        with anyio.CancelScope(shield=True):
            while self._started.is_set() and not self._ended.is_set():
                await anyio.to_thread.run_sync(self._ended.wait, 1.0)
