"""Starts servers that listen, and waits until they do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening(command: list[str], ready: str, *, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that wrote a line with `ready`, a pattern, to stderr; it is killed at the end."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if re.search(ready, line):
                break
        else:
            raise AssertionError(f"{command} ended before it listened:\n{''.join(told)}")
        # It must not stop for a full pipe.
        rest = threading.Thread(target=process.stderr.read)
        rest.start()
        yield process
        process.kill()
        rest.join()
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
