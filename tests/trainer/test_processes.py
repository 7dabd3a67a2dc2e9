"""Two processes over gloo, started by `accelerate launch` as on two hosts: the same run as in this one process, to the
rounding of a sum."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from launching import assert_same_updates, in_one_process, launch

import sdk
from sdk.trainer.config import TrainConfig
from sdk.trainer.processes import check_processes


@pytest.mark.timeout(450)
def test_two_processes_make_the_updates_of_one(tiny_model_dir: Path, tmp_path: Path) -> None:
    options = {"grpo.loss_type": "grpo", "grpo.save_steps": 1, "grpo.max_steps": 2}
    options |= {"trl": {"optim": "sgd"}, "grpo.learning_rate": 0.5}  # Adam would make much of a rounding
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that they have to meet at another port
        said = launch("two_hosts.yaml", tiny_model_dir, tmp_path, {"two": options}, port=taken.getsockname()[1])
    assert said.count("two: ['untrained', 'after warm start', 'after GRPO']") == 2
    in_one_process(tiny_model_dir, tmp_path / "one", options)
    begun = tmp_path / "one" / "checkpoints" / "warm_start"
    assert_same_updates(tmp_path / "one", tmp_path / "two", begun, steps=2)


def test_a_batch_that_processes_cannot_share_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(sdk.ConfigError, match=r"warm_start\.batch_size is 8, which 3 processes cannot share evenly"):
        check_processes(TrainConfig())
