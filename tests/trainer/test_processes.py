"""Two processes over gloo, started by `torchrun`: the same run as in this one process, to the rounding of a sum."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_runs import TINY, add, even_letters, tasks

import sdk
from sdk.policies.models import load_model
from sdk.traces import RunFolder
from sdk.trainer.config import TrainConfig
from sdk.trainer.processes import check_processes

HERE = Path(__file__).parent
# `accelerate launch` starts several processes on CPUs by MPI alone; on GPUs it calls what is called here.
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(launcher: list[str], model: Path, folder: Path, options: dict[str, Any]) -> str:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{HERE}:{HERE.parent.parent}", "OMP_NUM_THREADS": "1"}
    command = [*launcher, str(HERE / "run_in_processes.py"), str(model), str(folder), json.dumps(options)]
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=280)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


@contextmanager
def one_thread() -> Iterator[None]:
    """As the processes have: with more, sums are rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [{"loss_type": "grpo", "checkpoint_every": 1, "grpo_steps": 2}])
def test_two_processes_make_the_updates_of_one(tiny_model_dir: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    options = {**options, "trl": {"optim": "sgd"}, "learning_rate": 0.5}  # Adam would make much of a rounding
    said = run(TWO, tiny_model_dir, tmp_path / "two", options)
    with one_thread():
        sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "one", {**TINY, **options})
    assert said.count("conditions: ['untrained', 'after warm start', 'after GRPO']") == 2
    weights = [load_model(str(tmp_path / name / "model")).model.state_dict() for name in ("one", "two")]
    begun = load_model(str(tmp_path / "one" / "checkpoints" / "warm_start")).model.state_dict()
    moved = max(float((weights[0][name] - begun[name]).abs().max()) for name in begun)
    assert moved > 1e-3
    for name in begun:
        torch.testing.assert_close(weights[1][name], weights[0][name], rtol=0, atol=1e-3 * moved)
    figures = []
    for name in ("one", "two"):
        folder = RunFolder.open_to_read(tmp_path / name)
        lines = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
        assert [line["step"] for line in lines] == [0, 1]
        figures.append([(line["reward"], line["rollouts"], line["trained_tokens"]) for line in lines])
        assert any(line["groups_with_signal"] for line in lines)
        gradients = [line["grad_norm"] for line in lines]
        figures.append([round(norm, 4) for norm in gradients])
    assert figures[0] == figures[2]
    assert figures[1] == pytest.approx(figures[3], rel=1e-3)


def test_a_batch_that_processes_cannot_share_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(sdk.ConfigError, match="warm_start_batch is 8, which 3 processes cannot share evenly"):
        check_processes(TrainConfig())


@pytest.mark.parametrize("name", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_sharded_weights_are_refused_and_not_tried(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "true")
    with pytest.raises(sdk.ConfigError, match=f"{name} is set, but weights are not sharded"):
        check_processes(TrainConfig())
