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
    from .publishing.server import publish, serve_tools
    from .publishing.server_worlds import ServerWorlds, worlds
    from .records import ServerInfo, Tool, ToolAnnotations, ToolResult
    from .sessions.handlers import Elicitation, Handlers, LogEntry, Progress, Sampling
    from .sources.connecting import connect
    from .sources.functions import behaves
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
    "ServerWorlds",
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
    "worlds",
]

_NAMES = {
    "errors": ("BridgeError", "CallTimeout", "OutcomeUnknown", "ServerDied", "SourceError", "ToolFailure"),
    "publishing.server": ("publish", "serve_tools"),
    "publishing.server_worlds": ("ServerWorlds", "worlds"),
    "records": ("ServerInfo", "Tool", "ToolAnnotations", "ToolResult"),
    "sessions.handlers": ("Elicitation", "Handlers", "LogEntry", "Progress", "Sampling"),
    "sources.connecting": ("connect",),
    "sources.functions": ("behaves",),
    "toolsets.toolset": ("Toolset",),
    "world": ("World", "WorldSource"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mcp_bridge' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
