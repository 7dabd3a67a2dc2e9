"""Servers' processes end also where this process is killed and can end nothing itself.

One small process of ours, which runs this file, watches. It is started with the first server, holds a pipe that breaks
when we die, and then ends every process group that it was told of, and what has left the group: a server has a mark in
its environment, which all that it starts inherits. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

logger = logging.getLogger(__name__)

_END_S = 3.0


class Watchdog:
    """The watching process, one for each process of ours."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._groups: dict[int, str] = {}
        """What is watched, with its mark: told again where the watching process was killed."""

    def watch(self, group: int, mark: str = "") -> None:
        """End `group` when this process dies, and what has left it with the mark."""
        with self._lock:
            self._leave_parents()
            self._groups[group] = mark
            self._say(f"+{group} {mark}\n")

    def forget(self, group: int) -> None:
        """`group` has ended."""
        with self._lock:
            self._leave_parents()
            if self._groups.pop(group, None) is not None:
                self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        if self._process is None or not self._wrote(line):
            self._start()
            if self._process is not None and not self._wrote(
                "".join(f"+{one} {m}\n" for one, m in self._groups.items())
            ):
                logger.warning("the process that watches over servers' processes ends at its start")

    def _wrote(self, lines: str) -> bool:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(lines.encode())
        except OSError:  # it was killed
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            return False
        return True

    def _leave_parents(self) -> None:
        """A fork has a parent of its own to survive, and only its own groups to end."""
        if self._owner in (0, os.getpid()):
            return
        if self._process is not None:
            # The pipe of the process that we were forked from.
            with contextlib.suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()
            self._process.returncode = 0
        self._process, self._owner, self._groups = None, 0, {}

    def _start(self) -> None:
        if not sys.executable:
            logger.warning("sys.executable is empty: servers may outlive a killed process")
            self._process = None
            return
        # Unbuffered; a session of its own, so that Ctrl-C at the terminal does not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        self._owner = os.getpid()

    def end(self) -> None:
        """Called at exit. Groups that are still told of are ended."""
        process = self._process
        if process is None or self._owner != os.getpid():
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        self._process = None


# ---------------------------------------------------------------------------------------------------------------------
# The watching process

_LOOK_S = 2.0
"""How often to look for the parent: a fork of it may hold the pipe open."""
_GRACE_S = 1.0


MARK = "TOOLBAKE_STARTED"
"""The variable of the environment that has the mark."""


def strays(groups: Mapping[int, str]) -> list[int]:
    """The processes that have left one of the groups, by its mark: a browser in a session of its own, a daemon. Where
    the system shows environments, as Linux does, and for those that do not hide theirs."""
    wanted = {f"{MARK}={mark}".encode() for mark in groups.values() if mark}
    found = []
    for name in os.listdir("/proc") if wanted and os.path.isdir("/proc/self") else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if not wanted.isdisjoint(file.read().split(b"\0")) and os.getpgid(int(name)) not in groups:
                    found.append(int(name))
    return found


def watch() -> None:
    """Run by the watching process. Standard input says which groups there are, one a line: `+123 MARK` or `-123`."""
    parent, groups, rest = os.getppid(), dict[int, str](), b""
    while True:
        has_parent = os.getppid() == parent
        # What a parent said last is read also where it has died by now.
        if not select.select([0], [], [], _LOOK_S if has_parent else 0)[0]:
            if has_parent:
                continue
            break
        chunk = os.read(0, 65_536)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            group, _, mark = line[1:].decode().partition(" ")
            if line[:1] == b"+":
                groups[int(group)] = mark
            else:
                groups.pop(int(group), None)
    end(groups)


def end(groups: Mapping[int, str]) -> None:
    """SIGTERM, a second, SIGKILL."""
    deadline = time.monotonic() + _GRACE_S
    is_left = signalled(groups, signal.SIGTERM)
    while is_left and time.monotonic() < deadline:
        time.sleep(0.02)
        is_left = signalled(groups, 0)
    if is_left:
        signalled(groups, signal.SIGKILL)


def signalled(groups: Mapping[int, str], number: int) -> bool:
    """Signal the groups and what has left them. Whether there was anybody."""
    found = False
    for send, targets in ((os.killpg, list(groups)), (os.kill, strays(groups))):
        for target in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(target, number)
                found = True
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch()
else:
    watchdog = Watchdog()
    atexit.register(watchdog.end)
