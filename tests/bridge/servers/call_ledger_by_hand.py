"""What `call_ledger.py` is over stdio, without the SDK: for tests of what is told of calls to processes that die."""

import argparse
import os
import random
from typing import Any

from by_hand import serve, tool

TOOLS = [
    tool("charge", "Charge once."),
    tool("set_status", "Set to a value.", idempotentHint=True),
    tool("look", "Only reads.", readOnlyHint=True),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=0)
    for fault in ("--silent", "--die"):
        parser.add_argument(fault, type=float, default=0.0)
    options = parser.parse_args()
    chance = random.Random(options.seed * 100_003 + os.getpid())
    # One write in append mode is whole, also with several processes.
    file = os.open(options.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def call(name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> str | None:
        dies = chance.random() < options.die
        if dies and chance.random() < 0.5:
            os._exit(1)
        os.write(file, f"{name} {meta.get('toolbake/call')} {meta.get('toolbake/idempotency_key')}\n".encode())
        if dies:
            os._exit(1)
        return None if chance.random() < options.silent else f"done {arguments}"

    serve(TOOLS, call)


if __name__ == "__main__":
    main()
