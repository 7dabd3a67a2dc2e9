"""A server that keeps its notes in a file: in the one that NOTES_FILE names, or `notes.txt` beside this program."""

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

FILE = Path(os.environ.get("NOTES_FILE") or Path(__file__).parent / "notes.txt")
server = MCPServer("filing", log_level="ERROR")
held = FILE.open("a") if os.environ.get("HOLDS_IT_OPEN") else None


@server.tool()
def add(text: str) -> str:
    """Write a note."""
    with FILE.open("a") as file:
        file.write(f"{text}\n")
    return "written"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read() -> str:
    """All notes."""
    return FILE.read_text() if FILE.exists() else "no notes"


server.run("stdio")
