"""`python -m generator tasks.jsonl`, in `examples/helpdesk`, writes all tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .build import build_tasks


def as_json_lines() -> str:
    """The text of the file."""
    return "".join(json.dumps(task, ensure_ascii=False, separators=(",", ":")) + "\n" for task in build_tasks())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file to write, for example tasks.jsonl")
    Path(sys.argv[1]).write_text(as_json_lines(), encoding="utf-8")
