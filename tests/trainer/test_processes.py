"""Two processes over gloo, started by `accelerate launch` as on two hosts: the same run as in this one process, to the
rounding of a sum. And what accelerate makes of the configurations that are shipped."""

from __future__ import annotations

import inspect
import socket
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.state import AcceleratorState
from launching import EXAMPLES, assert_same_updates, in_one_process, launch

import sdk
from sdk.trainer.config import TrainConfig
from sdk.trainer.processes import check_processes


@pytest.mark.timeout(450)
def test_two_processes_make_the_updates_of_one(tiny_model_dir: Path, tmp_path: Path) -> None:
    options = {"grpo.loss_type": "grpo", "grpo.save_steps": 1, "grpo.max_steps": 2}
    options |= {"trl": {"optim": "sgd"}, "grpo.learning_rate": 0.5}  # Adam would make much of a rounding
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that they have to meet at another port
        runs = {"two": options, "cancelled": {**options, "warm_start.max_steps": 0, "grpo.max_steps": 50}}
        said = launch("two_hosts.yaml", tiny_model_dir, tmp_path, runs, port=taken.getsockname()[1])
    assert said.count("two: ['untrained', 'after warm start', 'after GRPO']") == 2
    in_one_process(tiny_model_dir, tmp_path / "one", options)
    begun = tmp_path / "one" / "checkpoints" / "warm_start"
    assert_same_updates(tmp_path / "one", tmp_path / "two", begun, steps=2)
    # Cancelled in an update, the first process ends while the other waits for its part of it.
    assert "cancelled in process 0\n" in said
    assert "cancelled in process 1: RuntimeError" in said  # the connection was closed


def test_a_batch_that_processes_cannot_share_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(sdk.ConfigError, match=r"warm_start\.batch_size is 8, which 3 processes cannot share evenly"):
        check_processes(TrainConfig())


@pytest.mark.parametrize("processes", ["1", "2"])
def test_passes_in_float16_are_refused(monkeypatch: pytest.MonkeyPatch, processes: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(sdk.ConfigError, match=r"ACCELERATE_MIXED_PRECISION\) is 'fp16'; set it to"):
        check_processes(TrainConfig())


def test_several_updates_on_the_rollouts_of_a_step_are_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig.of({"grpo.num_iterations": 2})
    check_processes(config)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(sdk.ConfigError, match=r"grpo\.num_iterations is 2, and several processes make one update"):
        check_processes(config)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("one_host.yaml", "MULTI_GPU"),
        ("two_hosts.yaml", "MULTI_GPU"),
        ("fsdp2.yaml", "FSDP"),
        ("deepspeed_zero2.yaml", "DEEPSPEED"),
        ("deepspeed_zero3.yaml", "DEEPSPEED"),
    ],
)
def test_the_configurations_shipped_are_what_accelerate_reads(name: str, kind: str) -> None:
    config = load_config_from_file(str(EXAMPLES / name)).to_dict()
    assert config["distributed_type"] == kind
    assert config["num_processes"] == 8 * config["num_machines"]
    assert ("fsdp_config" in config) == (kind == "FSDP")
    assert ("deepspeed_config" in config) == (kind == "DEEPSPEED")


def test_accelerate_still_shards_on_accelerators_alone() -> None:
    """Why `sharding.prepare_accelerator` sets the plugin on CPUs: once this fails, it need not."""
    sharding = inspect.getsource(AcceleratorState.__init__).split("DistributedType.FSDP")[0]
    assert "DistributedType.MULTI_GPU" in sharding
    assert "DistributedType.MULTI_CPU" not in sharding


def test_accelerate_still_forgets_deepspeed_on_cpus() -> None:
    """Why `zero.prepare_accelerator` sets the plugin there: once this fails, it need not."""
    assert '"ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" and not cpu' in inspect.getsource(
        AcceleratorState.__init__
    )
