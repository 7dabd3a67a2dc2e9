"""The built wheel, and environments outside the repository that hold it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clean_process import run

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--timeout=60", "--retries=10")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git knows."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = run(
        "git", "ls-files", "-co", "--exclude-standard", "sdk", "mcp_bridge", "sandboxes", "toolbake", cwd=ROOT
    ).stdout
    for name in [*listed.splitlines(), "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    built = run(*PIP, "wheel", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("toolbake-*.whl")
    return found


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes an environment with the wheel, the named extras and what they need; gives its interpreter."""

    def make(extras: str = "", *more: str | Path) -> Path:
        folder = tmp_path_factory.mktemp("installed")
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
        python = folder / "venv" / "bin" / "python"
        # No source distributions: what needs a compiler does not install.
        command = (*PIP, "--python", python, "install", "--only-binary=:all:", "--no-compile")
        for what in (("--constraint", ROOT / "constraints.txt", f"{wheel}{extras}"), more):
            installed = run(*command, *what, cwd=folder) if what else None
            assert installed is None or installed.returncode == 0, installed.stderr
        return python

    return make
