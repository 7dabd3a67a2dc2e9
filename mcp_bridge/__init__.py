"""Tools of any kind behind one interface: MCP servers, Python functions, sandboxes.

    async with mcp_bridge.connect("mcp.json") as toolset:
        print([tool.name for tool in toolset.tools])
        result = await toolset.call("get_order", {"order_id": "A-1"})

Names are loaded when they are first used, so that importing the package stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connecting import connect
    from .errors import BridgeError, CallTimeout, ServerDied, SourceError, ToolFailure
    from .records import Tool, ToolAnnotations, ToolResult
    from .toolset import Toolset
    from .world import World, WorldSource

__all__ = [
    "BridgeError",
    "CallTimeout",
    "ServerDied",
    "SourceError",
    "Tool",
    "ToolAnnotations",
    "ToolFailure",
    "ToolResult",
    "Toolset",
    "World",
    "WorldSource",
    "connect",
]

_MODULES = {
    "connect": "connecting",
    "Toolset": "toolset",
    "Tool": "records",
    "ToolAnnotations": "records",
    "ToolResult": "records",
    "World": "world",
    "WorldSource": "world",
    "BridgeError": "errors",
    "CallTimeout": "errors",
    "ServerDied": "errors",
    "SourceError": "errors",
    "ToolFailure": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mcp_bridge' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
