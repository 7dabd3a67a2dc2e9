"""The example over a small folder that is written here, and over a clone of the benchmark where there is one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "workbench"), str(ROOT / "tests" / "sandboxes"), str(Path(__file__).parent)]

from small_folder import write_small_folder  # noqa: E402


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `write_small_folder`."""
    folder = tmp_path_factory.mktemp("small")
    write_small_folder(folder)
    return folder


@pytest.fixture(scope="session")
def benchmark_folder() -> Path:
    """The folder in the environment variable WORKBENCH. Without it the test is skipped."""
    if "WORKBENCH" not in os.environ:
        pytest.skip("it needs a clone of the benchmark: set WORKBENCH to its folder (examples/workbench/README.md)")
    return Path(os.environ["WORKBENCH"])
