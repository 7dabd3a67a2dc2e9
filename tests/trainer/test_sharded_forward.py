"""The shared-prefix forward of sharded weights, and what accelerate makes of the configurations that are shipped."""

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
