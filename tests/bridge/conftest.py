"""Servers that the bridge's tests start. A process is ended by the test, or by the module, that started it."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from listening_servers import serving
from one_task import in_one_task
from other_environments import python_of
from servers import notes as notes_server

import mcp_bridge

SERVERS = Path(__file__).parent / "servers"
NODE_MODULES = Path(__file__).parent.parent / "node" / "node_modules"


@pytest.fixture(scope="session")
def notes() -> list[str]:
    """The command of the notes server; every world needs a process of its own."""
    return [sys.executable, str(SERVERS / "notes.py")]


@pytest.fixture(scope="session")
def controlled_notes(notes: list[str]) -> list[str]:
    """The command of the notes server with control tools: one process keeps all worlds."""
    return [*notes, "--control"]


@pytest.fixture(scope="module")
async def notebooks(controlled_notes: list[str]) -> AsyncIterator[mcp_bridge.Toolset]:
    """The notes server with control tools over stdio, for all tests of a module that leave it alive and use worlds of
    their own."""
    async with in_one_task(mcp_bridge.connect(controlled_notes, connect_timeout_s=60)) as toolset:
        yield toolset


@pytest.fixture(scope="session")
def breaking() -> list[str]:
    """The command of a server by hand that tells of its process and breaks; every world needs a process of its own."""
    return [sys.executable, str(SERVERS / "breaking.py")]


@pytest.fixture
def notes_url() -> Iterator[Callable[..., str]]:
    """Starts the notes server over HTTP, in a thread, with options of `servers.notes.app`; gives its URL."""
    with ExitStack() as stack:

        def start(**options: Any) -> str:
            return f"http://127.0.0.1:{stack.enter_context(serving(notes_server.app(**options)))}/mcp"

        yield start


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Makes the command of a Python program from its text."""

    def make(text: str) -> list[str]:
        path = tmp_path / "server.py"
        path.write_text(text)
        return [sys.executable, str(path)]

    return make


@pytest.fixture(scope="session")
def release() -> Callable[..., list[str]]:
    """The command of a server on a release of the MCP SDK: "1.3", "1.26" or "2.3", in an environment of its own."""
    return lambda release, *arguments: [str(python_of(f"mcp-{release}")), str(SERVERS / "any_release.py"), *arguments]


@pytest.fixture(scope="session")
def node_server(npm_program: Callable[[str, str], list[str]]) -> Callable[[str], list[str]]:
    """The command of an npm server of the protocol's own."""
    return lambda package: npm_program(f"@modelcontextprotocol/{package}", "dist/index.js")


@pytest.fixture(scope="session")
def npm_program() -> Callable[[str, str], list[str]]:
    """The command of a package's file. Skips only where there is no node at all."""

    def command(package: str, file: str) -> list[str]:
        node = shutil.which("node")
        if node is None:
            pytest.skip("node is not installed on this machine; the npm servers cannot run")
        entry = NODE_MODULES / package / file
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
