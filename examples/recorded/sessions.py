"""Plays the sessions of this folder's cassettes through the recorder, as any MCP client could.

    python sessions.py files --command 'npx @modelcontextprotocol/server-filesystem .'
    python sessions.py everything --command 'npx @modelcontextprotocol/server-everything'

Each writes NAME.jsonl beside this file. The filesystem server gets an empty folder of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

import mcp_bridge

HERE = Path(__file__).parent

Call = tuple[str, dict[str, Any]]

FILES: list[list[Call]] = [
    [
        ("create_directory", {"path": "notes"}),
        ("list_directory", {"path": "notes"}),
        ("write_file", {"path": "notes/today.md", "content": "- buy milk\n"}),
        ("read_text_file", {"path": "notes/today.md"}),
        ("edit_file", {"path": "notes/today.md", "edits": [{"oldText": "milk", "newText": "bread"}]}),
        ("read_text_file", {"path": "notes/today.md"}),
        ("move_file", {"source": "notes/today.md", "destination": "notes/done.md"}),
        ("list_directory", {"path": "notes"}),
        ("search_files", {"path": ".", "pattern": "**/*.md"}),
        ("read_text_file", {"path": "notes/today.md"}),
    ],
    [
        ("write_file", {"path": "notes/today.md", "content": "- buy milk\n"}),
        ("list_directory", {"path": "."}),
        ("read_text_file", {"path": "../outside.txt"}),
        ("get_file_info", {"path": "notes/done.md"}),
        ("directory_tree", {"path": "."}),
    ],
]
"""The second session finds what the first has left: the server keeps its files."""

EVERYTHING: list[list[Call]] = [
    [
        ("echo", {"message": "hello"}),
        ("get-sum", {"a": 2, "b": 3}),
        ("get-structured-content", {"location": "Chicago"}),
        ("get-annotated-message", {"messageType": "error", "includeImage": False}),
        ("get-tiny-image", {}),
        ("get-resource-links", {"count": 2}),
    ],
    [
        ("echo", {"message": "goodbye"}),
        ("get-sum", {"a": "two", "b": 3}),
        ("trigger-long-running-operation", {"duration": 0.1, "steps": 1}),
    ],
]

SESSIONS = {"files": FILES, "everything": EVERYTHING}


async def play(command: list[str], folder: Path, sessions: list[list[Call]]) -> None:
    """The sessions one after the other, each in a session of the recorder of its own."""
    config = {"mcpServers": {"recorder": {"command": command[0], "args": command[1:], "cwd": str(folder)}}}
    async with mcp_bridge.connect(config, connect_timeout_s=60) as toolset:
        for number, calls in enumerate(sessions):
            async with toolset.open_world(f"session-{number}") as world:
                for name, arguments in calls:
                    result = await world.call(name, arguments)
                    print(f"{name}: {'error: ' if result.is_error else ''}{result.text[:80]}")


def recorder(server: str, cassette: Path, folder: Path) -> list[str]:
    """The command of the recorder before the command of a server; paths of this machine are scrubbed."""
    words = ["record", "--command", server, "--to", str(cassette), "--scrub", re.escape(str(folder.resolve().parent))]
    return [sys.executable, "-m", "toolbake", *words, "--scrub", r"(?<![\w.*])/[^\s\"',:;]*/(?=node_modules/)"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SESSIONS)
    parser.add_argument("--command", required=True, help="the server's command")
    parser.add_argument("--to", type=Path, default=None, help="the cassette (default: NAME.jsonl beside this file)")
    chosen = parser.parse_args()
    cassette = (chosen.to or HERE / f"{chosen.name}.jsonl").resolve()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "files"
        folder.mkdir()
        anyio.run(play, recorder(chosen.command, cassette, folder), folder, SESSIONS[chosen.name])


if __name__ == "__main__":
    main()
