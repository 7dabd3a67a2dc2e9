"""The `toolbake` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    from ..freed_memory import keep_freed_memory
    from ..rollouts.garbage import fewer_collections

    keep_freed_memory()
    with fewer_collections():  # importing torch makes much and throws little away
        from .app import app

        app(prog_name="toolbake")
