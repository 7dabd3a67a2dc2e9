"""Commands that see nothing of the repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run(*command: str | Path, cwd: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """`changed`: variables of the environment with other values."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | changed
    return subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
