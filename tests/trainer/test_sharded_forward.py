"""What holds for sharded weights today: the forward pass works under FSDP2, and a run that asks for it is told."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.state import AcceleratorState

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples" / "distributed"


@pytest.mark.timeout(300)
def test_the_shared_prefix_forward_has_the_same_gradients_where_fsdp2_shards_the_weights(tiny_model_dir: Path) -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(HERE.parent.parent), "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(HERE / "shard_in_processes.py"), str(tiny_model_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=280)
    assert ended.returncode == 0, ended.stderr[-4000:]
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("relative difference:")]
    assert float(line.split()[-1]) < 1e-5


@pytest.mark.parametrize("name", ["one_host.yaml", "two_hosts.yaml"])
def test_the_configurations_shipped_are_what_accelerate_reads(name: str) -> None:
    config = load_config_from_file(str(EXAMPLES / name)).to_dict()
    assert config["distributed_type"] == "MULTI_GPU"
    assert config["num_processes"] == 8 * config["num_machines"]
    assert not {"fsdp_config", "deepspeed_config"} & set(config)


def test_accelerate_still_shards_on_accelerators_alone() -> None:
    """Why a run on CPUs cannot be sharded: once this fails, it can, and docs/distributed.md says something old."""
    sharding = inspect.getsource(AcceleratorState.__init__).split("DistributedType.FSDP")[0]
    assert "DistributedType.MULTI_GPU" in sharding
    assert "DistributedType.MULTI_CPU" not in sharding
