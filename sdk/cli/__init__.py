"""The `toolbake` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    from ..process import quiet_libraries, tune_process

    tune_process()
    quiet_libraries()
    try:
        from .app import app
    except KeyboardInterrupt:  # Ctrl-C before there is a command; each tells of its own
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None

    app(prog_name="toolbake")
