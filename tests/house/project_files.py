"""Which files are the project's own, for the tests that read all of them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sdk", "sandboxes", "mcp_bridge", "toolbake")

_NOT_OURS = {
    *(".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
    *("__pycache__", "node_modules", "environments", "runs", "build", "dist"),
}
_NOT_TEXT = {".png", ".gguf", ".safetensors", ".parquet", ".pyc"}


def own_files() -> list[Path]:
    """Every file of the project, relative to its root."""
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in _NOT_OURS and not name.endswith(".egg-info")]
        # In a linked worktree `.git` is a file, and folders may be links.
        found += [(Path(folder) / file).relative_to(ROOT) for file in files if file not in _NOT_OURS]
    return sorted(found)


def text_files() -> list[Path]:
    """Those of them that hold text."""
    return [path for path in own_files() if path.suffix not in _NOT_TEXT]


def product_files() -> list[Path]:
    """The Python files of the three packages."""
    return [path for path in own_files() if path.suffix == ".py" and path.parts[0] in PACKAGES]


def pages() -> list[Path]:
    """The pages of the project's folder, everything under docs/, and the README of each example."""
    return [
        path
        for path in own_files()
        if path.suffix == ".md"
        and (
            path.parts[0] == "docs"
            or len(path.parts) == 1
            or (path.parts[0] == "examples" and path.name == "README.md")
        )
    ]


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
