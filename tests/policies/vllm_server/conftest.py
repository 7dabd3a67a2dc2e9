"""The embedded model, loaded once, and real vLLM where it is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: threads that spin at barriers cost a shared machine a factor of ten and more.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from token_server import TokenServer
from vllm_environment import installed_python, newest_python

REQUIRED = "TOOLBAKE_VLLM_TESTS"


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The Python of the environment with vLLM. Without one the tests that need it are skipped, or fail where
    `TOOLBAKE_VLLM_TESTS=required` says that they must run."""
    return _there(installed_python())


@pytest.fixture(scope="session")
def newest_vllm_python() -> Path:
    """That of the environment with the newest vLLM."""
    return _there(newest_python())


def _there(python: Path | None) -> Path:
    if python is None:
        message = "vLLM is not installed; `make vllm` installs it into environments of its own"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(message)
        pytest.skip(message)
    return python


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server
