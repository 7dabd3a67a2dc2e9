"""The `toolbake` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    from ..process import quiet_libraries, tune_process

    tune_process()
    quiet_libraries()
    from .app import app

    app(prog_name="toolbake")
