"""A server that keeps its notes in a file: in the one that NOTES_FILE names, or `notes.txt` beside this program."""

import os
from pathlib import Path
from typing import Any

from by_hand import serve, tool

FILE = Path(os.environ.get("NOTES_FILE") or Path(__file__).parent / "notes.txt")
held = FILE.open("a") if os.environ.get("HOLDS_IT_OPEN") else None


def call(name: str, arguments: dict[str, Any], _meta: dict[str, Any]) -> str:
    if name == "read":
        return FILE.read_text() if FILE.exists() else "no notes"
    with FILE.open("a") as file:
        file.write(f"{arguments['text']}\n")
    return "written"


serve([tool("add", "Write a note."), tool("read", "All notes.", readOnlyHint=True)], call)
