"""Progress of long work: bars on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

_LINE_EVERY_S = 15.0
"""Without a terminal (CI, a log file), a bar becomes one line at most this often."""


class Step(Protocol):
    """One piece of long work."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """`amount` more is done; `note` says how it goes."""


class Progress(Protocol):
    """Shows how far long work is."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def track(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Step]:
        """A bar (or lines) for `total` pieces of work, `done` of which a former run did."""


class Silent:
    """Shows nothing: the default of the Python API."""

    def say(self, text: str) -> None:
        """Nobody listens."""

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Step]:  # noqa: ARG002
        yield self

    def advance(self, amount: int = 1, note: str = "") -> None:
        """A silent step, too."""


class Console:
    """Bars with rich on a terminal; plain lines otherwise. Writes to stderr: stdout belongs to results."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console as RichConsole

        # Texts hold names and paths of the user's own: nothing in them is markup, and no path is cut in two.
        self._console = RichConsole(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Step]:
        if not self._console.is_terminal:
            step = _Lines(self, title, total, done)
            yield step
            step.say()
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description:<22}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Bars(*columns, console=self._console) as bars:
            task = bars.add_task(title, total=total, completed=done, note="")

            class Bar:
                def advance(self, amount: int = 1, note: str = "") -> None:
                    if note:
                        bars.update(task, note=note)
                    bars.update(task, advance=amount)

            yield Bar()


class _Lines:
    def __init__(self, console: Console, title: str, total: int, done: int) -> None:
        self._console, self._title, self._total, self._done = console, title, total, done
        self._note = ""
        self._started = self._said = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        if time.monotonic() - self._said >= _LINE_EVERY_S and self._done < self._total:
            self.say()

    def say(self) -> None:
        self._said = time.monotonic()
        elapsed = self._said - self._started
        self._console.say(f"{self._title}: {self._done}/{self._total} after {elapsed:.0f} s  {self._note}".rstrip())
