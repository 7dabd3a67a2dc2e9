"""Files of lines that only grow, and stay whole when a writer is killed or the disk is full."""

from __future__ import annotations

import os


def append_whole(file: int, data: bytes) -> None:
    """Add `data` at the end of the file, which was opened to append: all of it or, on an error, nothing."""
    start = os.fstat(file).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except BaseException:
        if len(rest) < len(data):  # a disk that filled up took a part: take it back
            os.ftruncate(file, start)
        raise


def cut_torn_line(file: int) -> int:
    """Cut off a last line that was not written to its end; returns its bytes, 0 where all is whole."""
    size = os.fstat(file).st_size
    whole = _end_of_last_whole_line(file, size)
    if whole < size:
        os.ftruncate(file, whole)
    return size - whole


def _end_of_last_whole_line(file: int, end: int) -> int:
    while end > 0:
        start = max(0, end - 65_536)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
