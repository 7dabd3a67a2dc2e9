"""A file of JSON lines that only grows, and stays whole when its writer is killed."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mcp_bridge.appended_files import append_whole, cut_torn_line
from mcp_bridge.errors import kind_of

from ..errors import RunFolderError
from ..evidence.canonical import numbered_lines
from .atomic_files import folder_error, write_bytes
from .json_text import dump_json

log = logging.getLogger(__name__)

Line = dict[str, Any]


class Journal:
    """JSON objects, one a line. Each line reaches the operating system before `append` returns.

    A line without its line break is one whose writer was killed: `cut_torn_line` removes it before a run
    goes on, and readers leave it out. Anything else that is not a JSON object is damage and an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._lock = threading.Lock()

    def append(self, line: Any) -> None:
        """Write one line: all of it or, on an error, nothing. Raises `RunFolderError`. Threads may share it."""
        self.append_raw(dump_json(line) + b"\n")

    def append_raw(self, data: bytes) -> None:
        """`append` of a line as it is to stand in the file, its line break included."""
        with self._lock:
            try:
                self._write_whole(data)
            except OSError as error:
                raise folder_error(self.path, error) from error

    def _write_whole(self, data: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        append_whole(self._fd, data)

    def sync(self) -> None:
        """Wait until the lines are on the disk itself. Raises `RunFolderError`."""
        with self._lock:
            if self._fd is not None:
                try:
                    os.fsync(self._fd)
                except OSError as error:
                    raise folder_error(self.path, error) from error

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def read(self) -> Iterator[Line]:
        """The lines in their order; none where there is no file. Raises `RunFolderError` on damage."""
        for _, line in self._parsed_lines():
            yield line

    def raw_lines(self) -> Iterator[bytes]:
        """The lines as they stand in the file, line breaks included, not parsed; a torn last one is left out.

        Raises `RunFolderError` for one of more than 256 MiB.
        """
        for number, raw in numbered_lines(self.path):
            if not raw.endswith(b"\n"):
                log.warning("%s: line %d was not written to its end; it is left out", self.path, number)
                return
            yield raw

    def _parsed_lines(self) -> Iterator[tuple[bytes, Line]]:
        for number, raw in enumerate(self.raw_lines(), start=1):
            where = f"{self.path}, line {number},"
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise RunFolderError(
                    f"{where} is damaged ({error}); remove that line, or begin anew in another place"
                ) from error
            if not isinstance(line, dict):
                raise RunFolderError(f"{where} is {kind_of(line)}, not an object; remove it")
            yield raw, line

    def cut_torn_line(self) -> int:
        """Cut off a last line that was not written to its end; returns its bytes, 0 where all is whole."""
        if not self.path.exists():
            return 0
        try:
            with open(self.path, "rb+") as file:
                cut = cut_torn_line(file.fileno())
        except OSError as error:
            raise folder_error(self.path, error) from error
        if cut:
            log.warning("%s: cut off a last line of %d bytes that was not written to its end", self.path, cut)
        return cut

    def lines_where(self, wanted: Callable[[Line], bool]) -> list[bytes]:
        """The lines as they stand in the file, line breaks included."""
        return [raw for raw, line in self._parsed_lines() if wanted(line)]

    def move_lines(self, lines: Sequence[bytes], into: Path) -> None:
        """Move lines, given as they stand in the file, to another journal.

        A kill in between loses none and doubles none here.
        """
        if not lines:
            return
        self.close()
        moved = set(lines)
        other = Journal(into)
        other.cut_torn_line()
        # Killed between the two files, the next run moves the same lines again: they are there already.
        there = set(other.raw_lines())
        try:
            with open(into, "ab") as file:
                file.writelines(raw for raw in lines if raw not in there)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise folder_error(self.path, error) from error
        write_bytes(self.path, (raw for raw in self.raw_lines() if raw not in moved))
