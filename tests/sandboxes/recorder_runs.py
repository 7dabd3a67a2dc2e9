"""Playing sessions through `toolbake record`: the test is the client, the recorder and the server are processes."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mcp_bridge
from mcp_bridge.records import ToolResult

NODE_MODULES = Path(__file__).parent.parent / "node" / "node_modules"

Call = tuple[str, dict[str, Any]]


def node_command(package: str) -> list[str]:
    """The command of an npm server. Skips only where there is no node at all."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed on this machine; the npm servers cannot run")
    entry = NODE_MODULES / "@modelcontextprotocol" / package / "dist" / "index.js"
    if not entry.exists():
        pytest.fail(f"{entry} is missing, though node is installed: see CONTRIBUTING.md, `npm ci`")
    return [node, str(entry)]


def recorder(server: Sequence[str], cassette: Path, *options: str) -> list[str]:
    """The command of a recorder before the command of a server."""
    words = ["record", "--command", shlex.join(server), "--to", str(cassette), *options]
    return [sys.executable, "-m", "toolbake", *words]


async def play(source: Any, *sessions: Sequence[Call]) -> list[list[ToolResult]]:
    """Each session in a world of its own; what came back."""
    found = []
    async with mcp_bridge.connect(source, connect_timeout_s=60) as toolset:  # three processes on a busy machine
        for number, calls in enumerate(sessions):
            async with toolset.open_world(f"session-{number}") as world:
                found.append([await world.call(*call) for call in calls])
    return found


def hearing_ctrl_c(command: list[str]) -> list[str]:
    """The command as a terminal starts it: tests in the background hand on that Ctrl-C is ignored."""
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", start, *command]
