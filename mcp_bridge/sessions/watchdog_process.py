"""Ends the process groups of a parent that died without ending them. Started by `watchdog`; standard library only.

Standard input says which groups there are, one a line: `+123` or `-123`. It ends when the parent does.
"""

from __future__ import annotations

import os
import select
import signal
import time

_LOOK_S = 2.0
"""How often to look for the parent: a fork of it may hold the pipe open."""
_GRACE_S = 1.0


def main() -> None:
    parent, groups, rest = os.getppid(), set[int](), b""
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
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    end(groups)


def end(groups: set[int]) -> None:
    """SIGTERM, a second, SIGKILL."""
    left = {group for group in groups if signalled(group, signal.SIGTERM)}
    deadline = time.monotonic() + _GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = {group for group in left if signalled(group, 0)}
    for group in left:
        signalled(group, signal.SIGKILL)


def signalled(group: int, number: int) -> bool:
    """Whether there was somebody to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
