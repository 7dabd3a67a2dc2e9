"""The lock of a run folder: one writer at a time."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import weakref
from pathlib import Path

from ..errors import RunFolderError
from .atomic_files import folder_error

log = logging.getLogger(__name__)


class RunLock:
    """Held from construction to `close()`, or to the end of the process that took it, however it ends.

    The operating system lets go of the lock when a process dies, so a stale one cannot keep a run from
    going on; the process id in the file is there to be named in the error. The file stays where it is, or is removed
    at the end, while the lock is held: whoever locks it then finds that it has no name any more, and takes
    the one of that name.
    """

    def __init__(self, path: Path, *, file: Path | None = None) -> None:
        """Raises `RunFolderError` when another process, or this one, writes the run.

        `file`: what is written, if not the folder of `path`; then the lock is removed at the end.
        """
        self._path, self._removed, self._guarded = path, file is not None, file or path.parent
        self._lock(path)
        while os.fstat(self._fd).st_nlink == 0:
            self._finalizer()
            self._lock(path)
        self._take_over(path)
        _held.add(self)

    def _lock(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise folder_error(path, error) from error
        # Also lets go when the owner forgot to close and was collected.
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._holder()
            self._finalizer()
            raise RunFolderError(
                f"{self._guarded} is being written by {holder}; wait for it to end, or choose another "
                f"{'file' if self._removed else 'output_dir'}"
            ) from error
        except OSError as error:
            self._finalizer()
            raise folder_error(path, error) from error

    def _take_over(self, path: Path) -> None:
        if os.fstat(self._fd).st_size:
            log.warning("%s: %s ended without closing it; its lock is taken over", self._guarded, self._holder())
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except OSError as error:
            self._finalizer()
            raise folder_error(path, error) from error

    def _holder(self) -> str:
        """Who wrote the lock file, in words."""
        try:
            held = json.loads(os.pread(self._fd, 4096, 0))
            pid, host = int(held["pid"]), str(held["host"])
        except (ValueError, KeyError, TypeError):
            return "another process"
        if pid == os.getpid() and host == socket.gethostname():
            return "this process (another RunFolder of it is open: close that first)"
        return f"process {pid} on {host}"

    def close(self) -> None:
        """Let go of the lock. A second call does nothing."""
        if self._finalizer.alive:
            if self._removed:
                self._path.unlink(missing_ok=True)
            os.ftruncate(self._fd, 0)  # an empty file says that the run was closed in order
            self._finalizer()


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_locks_of_the_parent() -> None:
    # A forked child shares the parent's lock and would hold it after the parent was killed.
    for lock in list(_held):
        lock._finalizer()


os.register_at_fork(after_in_child=_forget_locks_of_the_parent)
