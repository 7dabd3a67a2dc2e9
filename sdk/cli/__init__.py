"""The `toolbake` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    from ..freed_memory import keep_freed_memory
    from .app import app

    keep_freed_memory()
    app(prog_name="toolbake")
