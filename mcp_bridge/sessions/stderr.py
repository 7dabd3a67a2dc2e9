"""The last lines that a server's process wrote to stderr, kept without ever growing."""

from __future__ import annotations

import os
from typing import TextIO

import anyio

_KEPT_BYTES = 16_384
_CHUNK = 65_536


class StderrTail:
    """A pipe whose write end a child gets as its stderr. `follow` reads it; only the end is kept."""

    def __init__(self) -> None:
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._write: TextIO = os.fdopen(write_fd, "w")
        self._kept = b""

    @property
    def file(self) -> TextIO:
        """What to hand to the child as its stderr."""
        return self._write

    async def follow(self) -> None:
        """Read until every holder of the write end is gone. Run it beside the session, and cancel it."""
        while True:
            await anyio.wait_readable(self._read_fd)
            if self._read_once() == 0:
                return

    def close_write_end(self) -> None:
        """Drop this process's copy once the child has its own."""
        self._write.close()

    def close(self) -> None:
        """Keep what is still in the pipe and give the file descriptors back."""
        self._write.close()
        if self._read_fd >= 0:
            while self._read_once():
                continue
            os.close(self._read_fd)
            self._read_fd = -1

    def text(self, *, lines: int = 15) -> str:
        """The last lines; bytes that are no UTF-8 are shown as replacement characters."""
        return "\n".join(self._kept.decode("utf-8", errors="replace").rstrip().splitlines()[-lines:])

    def _read_once(self) -> int | None:
        """How many bytes came; 0 at the end of the pipe, `None` where nothing is there yet."""
        try:
            chunk = os.read(self._read_fd, _CHUNK)
        except BlockingIOError:
            return None
        self._kept = (self._kept + chunk)[-_KEPT_BYTES:]
        return len(chunk)
