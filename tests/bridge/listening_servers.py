"""Servers that listen: in a thread, in a process that can be killed, or started by a command.

A process that imports the SDK takes a second of processor time before it serves. A thread of the tests' own process
takes none, and a process that is forked from one that has imported it takes little. Either is the same server.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import uvicorn

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["mcp.server.mcpserver", "uvicorn.lifespan.on", "uvicorn.protocols.http.auto"])


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[int]:
    """An ASGI app in a thread; gives its port. `options`: uvicorn's."""
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1, **options)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        # It listens already: who comes before the server has begun waits for it.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


class ServerProcess:
    """The ASGI app that `make(**options)` gives, in a process of its own; it listens once it is made or started.

    `make` is a function of a module, which the process imports. The port stays the same after a restart. Where it dies
    before it listens, that is a `ChildProcessError`.
    """

    def __init__(self, make: Callable[..., Any], **options: Any) -> None:
        self._make, self._options = make, options
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        told, tell = _FORKING.Pipe(duplex=False)
        process = _FORKING.Process(target=_serve, args=(tell, self.port, self._make, self._options), daemon=True)
        process.start()
        self.process = process  # not before: whoever kills may do so at any time
        tell.close()
        with told:
            try:
                self.port = told.recv()
            except EOFError:
                raise ChildProcessError("the server died at start; its stderr is above") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def restart(self, **options: Any) -> None:
        """`options`: other ones for `make` from now on."""
        self.kill()
        self._options |= options
        self.start()


def _serve(tell: Connection, port: int, make: Callable[..., Any], options: dict[str, Any]) -> None:
    app = make(**options)
    with socket.create_server(("127.0.0.1", port), backlog=256) as listening:
        tell.send(listening.getsockname()[1])
        tell.close()
        uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on")).run(sockets=[listening])


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
