"""Weights sharded over two processes by FSDP2, as the shipped configuration has it: the same run as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from launching import assert_same_updates, in_one_process, launch

import sdk
from sdk.evidence.verifying import verify_run
from sdk.trainer.config import TrainConfig
from sdk.trainer.processes import check_processes
from sdk.trainer.sharding import check_checkpoint

pytestmark = pytest.mark.timeout(400)
"""Of every test: whichever comes first waits for the runs that they share."""

RUNS: dict[str, dict[str, Any]] = {
    # Parts of a step, layers computed again, a reference that follows; Adam's moments, with an epsilon that does not
    # make much of a rounding, so that a resume without them would show.
    "resumed whole": {
        **{"grpo_steps": 3, "checkpoint_every": 1, "learning_rate": 0.5, "trl": {"adam_epsilon": 1.0}},
        **{"kl_coefficient": 0.1, "reference_every": 2, "tokens_per_micro_batch": 80, "gradient_checkpointing": True},
    },
    "adapters": {
        **{"grpo_steps": 2, "lora_rank": 2, "learning_rate": 0.5, "trl": {"optim": "sgd"}, "micro_batches": 2},
        **{"kl_coefficient": 0.1, "loss_type": "bnpo", "warm_start_steps": 0},
    },
}


SHARDED = {
    **{"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"},
    **{"FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"},
}
"""What the launcher sets under the shipped configuration, as far as it is checked."""


FAILS = {"grpo_steps": 2, "warm_start_steps": 0}


@pytest.fixture(scope="module")
def runs(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("sharded")
    return folder, launch("fsdp2.yaml", tiny_model_dir, folder, {**RUNS, "fails": FAILS})


@pytest.mark.parametrize("name", RUNS)
def test_sharded_weights_get_the_updates_of_one_process(
    runs: tuple[Path, str], name: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder, _ = runs
    in_one_process(tiny_model_dir, tmp_path, RUNS[name])
    assert_same_updates(tmp_path, folder / name, tiny_model_dir, steps=RUNS[name]["grpo_steps"])


def test_a_sharded_run_that_ended_early_went_on_from_its_checkpoint(runs: tuple[Path, str]) -> None:
    folder, said = runs
    assert said.count("resumed whole ended:") == 2
    assert said.count("resumed whole: ['untrained', 'after warm start', 'after GRPO']") == 2
    rollouts = sdk.traces.RunFolder.open_to_read(folder / "resumed whole").read_rollouts("grpo")
    assert sorted({rollout.step for rollout in rollouts}) == [0, 1, 2]


def test_a_first_process_that_fails_in_a_step_ends_though_the_others_wait_for_its_part(runs: tuple[Path, str]) -> None:
    _, said = runs
    assert "fails in process 0: OSError" in said
    assert "fails in process 1: RuntimeError" in said  # the connection was closed


@pytest.mark.parametrize("name", RUNS)
def test_the_weights_that_a_sharded_run_kept_are_those_that_its_evidence_says_were_sampled_from(
    runs: tuple[Path, str], name: str
) -> None:
    found = anyio.run(verify_run, runs[0] / name)
    assert found.holds, found.findings


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed takes over the backward passes"),
        ({"FSDP_VERSION": "1"}, "fsdp_version is 1, but weights are sharded by FSDP2 only"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "'gradient_checkpointing': True"),
        ({"FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}, "fsdp_cpu_ram_efficient_loading is false"),
        ({"WORLD_SIZE": "1"}, "there is one process"),
    ],
)
def test_what_would_shard_otherwise_is_refused_and_not_tried(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], error: str
) -> None:
    for name, value in {**SHARDED, **environment}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(sdk.ConfigError, match=error):
        check_processes(TrainConfig())


@pytest.mark.parametrize(("optimiser", "was"), [("optimizer_0/shard", "with"), ("optimizer.pt", "without")])
def test_a_checkpoint_of_another_kind_of_launch_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optimiser: str, was: str
) -> None:
    (tmp_path / optimiser).parent.mkdir(exist_ok=True)
    (tmp_path / optimiser).touch()
    if was == "with":
        check_checkpoint(tmp_path / "none")
    else:
        check_checkpoint(tmp_path)
        for name, value in SHARDED.items():
            monkeypatch.setenv(name, value)
    with pytest.raises(sdk.ConfigError, match=f"was written {was} sharded weights"):
        check_checkpoint(tmp_path)


def test_an_optimiser_with_moments_of_its_own_form_is_refused_on_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHARDED.items():
        monkeypatch.setenv(name, value)
    check_processes(TrainConfig(trl={"optim": "adamw_torch"}))
    eight_bit = TrainConfig().model_copy(update={"trl": {"optim": "adamw_8bit"}})  # as where bitsandbytes is installed
    with pytest.raises(sdk.ConfigError, match="'adamw_8bit' keeps its moments"):
        check_processes(eight_bit)
