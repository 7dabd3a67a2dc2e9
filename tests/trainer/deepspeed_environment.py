"""Makes the virtual environment with DeepSpeed, once; used again when it is there.

    python tests/trainer/deepspeed_environment.py [FOLDER]

It has this environment's packages and those that the extra `deepspeed` adds to them. One of its own, because accelerate
imports DeepSpeed wherever it is installed: all other tests would run with it. Nothing is compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "environments"
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def deepspeed_python(folder: Path = FOLDER) -> Path:
    """Its Python; the environment is made where it is missing. Raises `RuntimeError` that says what pip said."""
    (pinned,) = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("deepspeed==")]
    environment = folder / pinned.replace("==", "-")
    wanted = "\n".join((pinned, sys.version.split()[0], sysconfig.get_path("purelib")))
    stamp = environment / "installed.txt"
    if not (stamp.exists() and stamp.read_text() == wanted):
        folder.mkdir(parents=True, exist_ok=True)
        # Made beside and moved: a run that was interrupted, or two at once, leave nothing half made.
        with tempfile.TemporaryDirectory(dir=folder) as made:
            _make(Path(made) / "environment", pinned)
            shutil.rmtree(environment, ignore_errors=True)
            os.rename(Path(made) / "environment", environment)
        stamp.write_text(wanted)
    return environment / "bin" / "python"


def _make(path: Path, pinned: str) -> None:
    # pip of this environment installs into that one, which so needs none.
    venv.create(path, with_pip=False, symlinks=True)
    packages = path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    command = [sys.executable, "-m", "pip", "--python", str(path / "bin" / "python"), "install", "--quiet"]
    command += ["--constraint", str(CONSTRAINTS), pinned]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"pip could not install {pinned}:\n{ended.stderr.strip()}")


if __name__ == "__main__":
    try:
        print(deepspeed_python(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
    except RuntimeError as error:
        sys.exit(str(error))
