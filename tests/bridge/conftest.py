"""Servers that the bridge's tests start: real processes, each ended by the test that started it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from servers.environments import python_of

# A machine that others use too may take its time over any single example.
settings.register_profile("bridge", deadline=None)
settings.load_profile("bridge")

NOTES = Path(__file__).parent / "servers" / "notes.py"
ANY_RELEASE = Path(__file__).parent / "servers" / "any_release.py"
NODE_MODULES = Path(__file__).parent.parent / "node" / "node_modules"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def notes() -> list[str]:
    """The command of the notes server; every world needs a process of its own."""
    return [sys.executable, str(NOTES)]


@pytest.fixture
def controlled_notes(notes: list[str]) -> list[str]:
    """The command of the notes server with control tools: one process keeps all worlds."""
    return [*notes, "--control"]


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Makes the command of a Python program from its text."""

    def make(text: str) -> list[str]:
        path = tmp_path / "server.py"
        path.write_text(text)
        return [sys.executable, str(path)]

    return make


class HttpNotes:
    """The notes server over HTTP, in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}/mcp"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def http_notes(notes: list[str], tmp_path: Path) -> Iterator[Callable[..., HttpNotes]]:
    """Starts the notes server over HTTP; it listens by the time the call returns."""
    started: list[HttpNotes] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> HttpNotes:
        fifo = tmp_path / f"port-{len(started)}"
        os.mkfifo(fifo)
        process = subprocess.Popen([*notes, *arguments, "--http", str(fifo)], env={**os.environ, **(env or {})})
        # Opening the FIFO waits for the writer: a server that dies before it writes would hang the test.
        threading.Thread(target=_unblock_at_death, args=(process, fifo), daemon=True).start()
        port = fifo.read_text().strip()
        assert port, "the notes server died at start; its stderr is above"
        started.append(HttpNotes(process, int(port)))
        return started[-1]

    yield start
    for server in started:
        server.kill()


def _unblock_at_death(process: subprocess.Popen[bytes], fifo: Path) -> None:
    process.wait()
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return  # Nobody is waiting: the port was read long ago, or the folder is gone.


@pytest.fixture(scope="session")
def release() -> Callable[..., list[str]]:
    """The command of a server on a release of the MCP SDK: "1.3", "1.26" or "2.3", in an environment of its own."""
    return lambda release, *arguments: [str(python_of(release)), str(ANY_RELEASE), *arguments]


@pytest.fixture
def node_server() -> Callable[[str], list[str]]:
    """The command of an npm server. Skips only where there is no node at all."""

    def command(package: str) -> list[str]:
        node = shutil.which("node")
        if node is None:
            pytest.skip("node is not installed on this machine; the npm servers cannot run")
        entry = NODE_MODULES / "@modelcontextprotocol" / package / "dist" / "index.js"
        if not entry.exists():
            pytest.fail(
                f"{entry} is missing, though node is installed: run `npm ci --no-audit --no-fund --ignore-scripts` "
                "in tests/node (npm comes with node)"
            )
        return [node, str(entry)]

    return command


def is_running(pid: int) -> bool:
    """Whether a process is there at all; one that ended but was never waited for counts too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def running() -> Callable[[int], bool]:
    return is_running
