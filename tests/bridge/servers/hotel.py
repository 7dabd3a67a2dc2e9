"""A hotel's bookings as a server with a backend for each rollout: `hotel.py sdk`, `lowlevel` or `fastmcp`.

`--http PORT` serves over streamable HTTP. The same few lines for each kind of server object.
"""

import copy
import os
import sys
from typing import Any

import mcp_bridge


class Hotel:
    def __init__(self, seed: int = 0, free: bool = True) -> None:
        if os.environ.get("HOTEL") == "closed":
            raise FileNotFoundError("rooms.csv")
        self.rooms: dict[str, dict[str, Any]] = {str(number): {"free": free, "price": seed + 0} for number in (1, 2)}
        self.closed = False

    def tables(self) -> dict[str, Any]:
        return {"rooms": self.rooms}

    def book(self, room: str) -> str:
        if not self.rooms[room]["free"]:
            raise ValueError(f"room {room} is taken")
        self.rooms[room]["free"] = False
        return f"booked {room}"


def given(server: Any) -> mcp_bridge.ServerWorlds[Hotel]:
    return mcp_bridge.worlds(server, make=Hotel, state=Hotel.tables, fork=copy.deepcopy)


def sdk() -> Any:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("hotel", log_level="ERROR")
    hotel = given(server)

    @server.tool()
    def book(room: str) -> str:  # runs in a thread
        return hotel().book(room)

    return server


def lowlevel() -> Any:
    import mcp_types as types
    from mcp.server.lowlevel import Server

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        room = {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}
        return types.ListToolsResult(tools=[types.Tool(name="book", input_schema=room)])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        try:
            text, failed = hotel().book(params.arguments["room"]), False
        except ValueError as error:
            text, failed = str(error), True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    server: Any = Server("hotel", on_list_tools=list_tools, on_call_tool=call_tool)
    hotel = given(server)
    return server


def fastmcp() -> Any:
    from fastmcp import FastMCP

    server = FastMCP("hotel")
    hotel = given(server)

    @server.tool
    async def book(room: str) -> str:
        return hotel().book(room)

    return server


if __name__ == "__main__":
    made = {"sdk": sdk, "lowlevel": lowlevel, "fastmcp": fastmcp}[sys.argv[1]]()
    if sys.argv[1] == "lowlevel":
        import anyio
        from mcp.server.stdio import stdio_server

        async def run() -> None:
            async with stdio_server() as (read, write):
                await made.run(read, write, made.create_initialization_options())

        anyio.run(run)
    else:
        made.run("stdio", **({"show_banner": False} if sys.argv[1] == "fastmcp" else {}))
