"""`python -m sandboxes.helpdesk.generator examples/helpdesk/tasks.jsonl` writes all tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import tasks


def as_json_lines() -> str:
    """The text of the file."""
    every = tasks(("1", "2", "3", "4", "5"))
    return "".join(json.dumps(task, ensure_ascii=False, separators=(",", ":")) + "\n" for task in every)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file to write, for example examples/helpdesk/tasks.jsonl")
    Path(sys.argv[1]).write_text(as_json_lines(), encoding="utf-8")
