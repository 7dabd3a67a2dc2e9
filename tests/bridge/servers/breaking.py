"""A server over stdio, written by hand, whose tools break things and tell of the process.

With `--grandchild FILE` it also starts processes that ignore the end of their input and SIGTERM: one in its group, one
in a session of its own, and a daemon, whose parent has ended. It writes its id and theirs to FILE. With
`--started FOLDER` each process leaves a file there that has its id as name.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from by_hand import serve, tool

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1] != "child":
    os.setsid()
if sys.argv[1] == "daemon" and os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(600)
"""
TOOLS = [
    tool("echo", "How often it was called."),
    tool("read", "The same, unchanged.", readOnlyHint=True),
    tool("pid", "The process.", readOnlyHint=True),
    tool("folder", "The current folder.", readOnlyHint=True),
    tool("environment", "The variable `name`.", readOnlyHint=True),
    tool("big", "An answer of `megabytes`."),
    tool("hang", "Never answers."),
    tool("freeze", "Answers nothing any more."),
    tool("die", "Ends the process."),
    tool("noise", "Writes a line without an end."),
]

echoes = 0


def call(name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> str | None:
    global echoes
    match name:
        case "echo":
            echoes += 1
        case "pid":
            return str(os.getpid())
        case "folder":
            return os.getcwd()
        case "environment":
            return os.environ.get(arguments["name"], "(not set)")
        case "big":
            return "x" * round(float(arguments["megabytes"]) * 1_000_000)
        case "hang":
            return None
        case "freeze":
            time.sleep(600)
        case "die":
            print("the disk is full", file=sys.stderr, flush=True)
            os._exit(1)
        case "noise":
            while True:
                os.write(1, b"y" * 65_536)
    return str(echoes)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--grandchild", type=Path)
    parser.add_argument("--started", type=Path)
    options = parser.parse_args()
    if options.grandchild:
        told = f"{os.getpid()}\n"
        for how in ("child", "session", "daemon"):
            command = [sys.executable, "-c", STUBBORN, how]
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            told += child.stdout.readline()
        with options.grandchild.open("a") as file:
            file.write(told)
    if options.started:
        (options.started / str(os.getpid())).touch()
    serve(TOOLS, call)


if __name__ == "__main__":
    main()
