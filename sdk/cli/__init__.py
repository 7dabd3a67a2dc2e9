"""The `toolbake` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os

_TORCH_SETTINGS = {
    # Threads that spin at barriers cost a machine that is shared a factor of ten and more; asleep they cost little.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Large pages for large tensors: a training step otherwise spends a tenth of its time on page faults.
    "THP_MEM_ALLOC_ENABLE": "1",
}


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    for name, value in _TORCH_SETTINGS.items():
        os.environ.setdefault(name, value)  # read once, when torch is imported
    from .app import app

    app(prog_name="toolbake")
