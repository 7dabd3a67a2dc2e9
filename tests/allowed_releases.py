"""Constraints for pip, which hold it to the oldest or to the newest releases that pyproject.toml allows.

    python tests/allowed_releases.py oldest|newest > constraints.txt

torch is that of constraints.txt both times: another one brings gigabytes of GPU libraries.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOWER_BOUND = re.compile(r"([\w-]+)[^>=]*[>=]=([\w.]+)")
SEPARATE = ("vllm", "deepspeed", "dev")
"""Extras with environments of their own, and the tools of the tests."""


def oldest() -> list[str]:
    """`name==version` for each dependency, by its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in SEPARATE]
    listed = [line for lines in (project["dependencies"], *extras) for line in lines]
    wanted = [line for line in listed if not line.startswith(("toolbake[", "torch>"))]
    found = [LOWER_BOUND.match(line) for line in wanted]
    if missing := [line for line, bound in zip(wanted, found, strict=True) if bound is None]:
        sys.exit(f"pyproject.toml gives no lower bound for {missing[0]!r}; write {missing[0]}>=VERSION")
    return ["==".join(bound.groups()) for bound in found if bound]


if __name__ == "__main__":
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    print("\n".join([torch, *(oldest() if sys.argv[1:] == ["oldest"] else [])]))
