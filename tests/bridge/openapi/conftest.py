"""The echo server in a process of its own, and documents that describe it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import mcp_bridge
from mcp_bridge import Toolset

SERVER = Path(__file__).parent / "echo_server.py"

Connecting = Callable[..., AbstractAsyncContextManager[Toolset]]


@pytest.fixture(scope="session")
def echo() -> Iterator[str]:
    """The base URL of the echo server."""
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture
def api(echo: str) -> Connecting:
    """Connects to the echo server with a document of these paths, as an entry of an mcp.json."""

    @asynccontextmanager
    async def connect(
        paths: Mapping[str, Any], *, components: Mapping[str, Any] | None = None, version: str = "3.1.0", **entry: Any
    ) -> AsyncIterator[Toolset]:
        document = {
            "openapi": version,
            "info": {"title": "Echo", "version": "1"},
            "servers": [{"url": echo}],
            "paths": dict(paths),
            "components": dict(components or {}),
        }
        config = {"mcpServers": {"echo": {"openapi": document, **entry}}}
        async with mcp_bridge.connect(config) as toolset:
            yield toolset

    return connect
