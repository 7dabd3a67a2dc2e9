"""The engine that `toolbake serve` takes where none is named: vLLM where it is installed and has a GPU."""

import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sdk.cli.app import app
from sdk.serving.vllm_server import default_engine

WITH_VLLM = """#!/bin/sh
echo '[["vllm", "0.32.0", ""]]'
"""
"""A Python that is asked which vLLM its environment has."""


@pytest.fixture(params=[True, False], ids=["GPU", "no GPU"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    return bool(request.param)


@pytest.fixture(params=[True, False], ids=["vLLM", "no vLLM"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bool:
    python = tmp_path / "python"
    python.write_text(WITH_VLLM)
    python.chmod(0o755)
    monkeypatch.setenv("TOOLBAKE_VLLM_PYTHON", str(python) if request.param else sys.executable)
    return bool(request.param)


def test_vllm_serves_where_it_is_installed_and_has_a_gpu(gpu: bool, installed: bool) -> None:
    assert default_engine() == ("vllm" if gpu and installed else "embedded")


def test_the_command_takes_the_default_engine_and_one_that_is_named(gpu: bool, installed: bool) -> None:
    def told(*words: str) -> str:
        return " ".join(CliRunner().invoke(app, ["serve", "no-such-model", *words]).stderr.split())

    idle = {
        "vllm": "--max-waiting does nothing for vLLM",
        "embedded": "--vllm-arg does nothing for the embedded engine",
    }
    expected = idle["vllm" if gpu and installed else "embedded"]
    assert expected in told("--max-waiting", "5", "--vllm-arg=--seed=1")
    for engine, refusal in idle.items():
        assert refusal in told("--engine", engine, "--max-waiting", "5", "--vllm-arg=--seed=1")


def test_a_vllm_that_cannot_be_asked_for_leaves_the_embedded_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TOOLBAKE_VLLM_PYTHON", str(tmp_path / "gone" / "python"))
    assert default_engine() == "embedded"


def test_a_vllm_for_cpus_leaves_a_gpu_to_the_embedded_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    python = tmp_path / "python"
    python.write_text(WITH_VLLM.replace("0.32.0", "0.32.0+cpu"))
    python.chmod(0o755)
    monkeypatch.setenv("TOOLBAKE_VLLM_PYTHON", str(python))
    assert default_engine() == "embedded"
