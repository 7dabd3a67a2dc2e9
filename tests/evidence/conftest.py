"""A run with evidence, for the tests that change it."""

import shutil
from pathlib import Path

import pytest
from evidence_runs import make_run


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once for a file of tests, which only read it."""
    return make_run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(whole_run, tmp_path / "run")
    return tmp_path / "run"
