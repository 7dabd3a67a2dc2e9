"""An MCP server with a world for each rollout. One of its tools never answers (`hang`) or ends the server (`crash`)."""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

import mcp_bridge


class Shop:
    def __init__(self, seed: int = 0) -> None:
        numbers = range(8)
        self.orders = {
            str(100 + seed * 20 + number): {
                "status": ("open", "lost", "sent")[number % 3],
                "buyer": f"Ann {seed + number}",
            }
            for number in numbers
        }

    def tables(self) -> dict[str, Any]:
        return {"orders": self.orders}


server = MCPServer("shop", log_level="ERROR")
shop = mcp_bridge.worlds(server, make=Shop, state=Shop.tables)


@server.tool()
def get_order(order_id: str) -> dict[str, str]:
    """Read an order."""
    return shop().orders[order_id]


@server.tool(annotations=ToolAnnotations(read_only_hint=True) if sys.argv[2] == "reads" else None)
async def track_order(order_id: str) -> str:
    """Track an order."""
    if sys.argv[1] == "crash":
        os._exit(3)
    await anyio.sleep_forever()
    return order_id


server.run("stdio")
