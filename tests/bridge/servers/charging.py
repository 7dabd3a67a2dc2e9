"""A bank over stdio, written by hand, that dies once it has done the first thing it was asked: `charging.py LOG`."""

import os
import sys
from pathlib import Path
from typing import Any

from by_hand import serve, tool

LOG = Path(sys.argv[1])


def call(name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> str:
    with LOG.open("a") as file:
        file.write(f"{name} {arguments}\n")
    if len(LOG.read_text().splitlines()) == 1:
        os._exit(9)  # what was asked is done; the answer is lost
    return "done"


serve([tool("charge"), tool("set_limit", readOnlyHint=False, idempotentHint=True), tool("set_name")], call)
