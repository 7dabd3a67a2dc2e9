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
    from .errors import BridgeError, CallTimeout, OutcomeUnknown, ServerDied, SourceError, ToolFailure
    from .publishing.running import serve_tools
    from .publishing.server import publish
    from .records import ServerInfo, Tool, ToolAnnotations, ToolResult
    from .sessions.handlers import Elicitation, Handlers, LogEntry, Progress, Sampling
    from .sources.connecting import connect
    from .sources.marking import behaves
    from .toolsets.toolset import Toolset
    from .world import World, WorldSource

__all__ = [
    "BridgeError",
    "CallTimeout",
    "Elicitation",
    "Handlers",
    "LogEntry",
    "OutcomeUnknown",
    "Progress",
    "Sampling",
    "ServerDied",
    "ServerInfo",
    "SourceError",
    "Tool",
    "ToolAnnotations",
    "ToolFailure",
    "ToolResult",
    "Toolset",
    "World",
    "WorldSource",
    "behaves",
    "connect",
    "publish",
    "serve_tools",
]

_MODULES = {
    "behaves": "sources.marking",
    "connect": "sources.connecting",
    "publish": "publishing.server",
    "serve_tools": "publishing.running",
    "Elicitation": "sessions.handlers",
    "Handlers": "sessions.handlers",
    "LogEntry": "sessions.handlers",
    "Progress": "sessions.handlers",
    "Sampling": "sessions.handlers",
    "Toolset": "toolsets.toolset",
    "ServerInfo": "records",
    "Tool": "records",
    "ToolAnnotations": "records",
    "ToolResult": "records",
    "World": "world",
    "WorldSource": "world",
    "BridgeError": "errors",
    "CallTimeout": "errors",
    "OutcomeUnknown": "errors",
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
