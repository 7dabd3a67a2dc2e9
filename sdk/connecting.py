"""`mcp_bridge.connect` with the faults that entries of an `mcp.json` ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import mcp_bridge
from mcp_bridge import Toolset, WorldSource


def connect(source: Any, **options: Any) -> AbstractAsyncContextManager[Toolset]:
    """As `mcp_bridge.connect`, which has the options."""
    connected: AbstractAsyncContextManager[Toolset] = mcp_bridge.connect(source, inject_faults=inject_faults, **options)
    return connected


def inject_faults(faults: Mapping[str, Any], label: str) -> Callable[[WorldSource], WorldSource]:
    """As `sandboxes.faults.faults_for`, which is loaded where an entry has faults."""
    from sandboxes.faults import faults_for

    return faults_for(faults, label)
