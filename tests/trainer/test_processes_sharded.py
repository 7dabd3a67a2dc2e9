"""Two processes, weights sharded by FSDP2 or under DeepSpeed, as the shipped configurations have it: the same run as in
one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from deepspeed_environment import deepspeed_python
from launching import ROUTED, assert_same_updates, in_one_process, launch

import sdk
from sdk.evidence.run_verification import verify_run
from sdk.policies.models import load_model
from sdk.trainer import sharding
from sdk.trainer.config import TrainConfig
from sdk.trainer.grpo import Reference
from sdk.trainer.lora import with_adapters
from sdk.trainer.processes import check_processes
from sdk.trainer.sharding import check_checkpoint, forget_weights, make_room

pytestmark = pytest.mark.timeout(600)
"""Of every test: whichever comes first waits for the environment of DeepSpeed, and for the runs that they share."""

RUNS: dict[str, dict[str, Any]] = {
    # Parts of a step, layers computed again, a reference that follows; Adam's moments, with an epsilon that does not
    # make much of a rounding, so that a resume without them would show.
    "resumed whole": {
        **{"warm_start.save_steps": 1, "grpo.max_steps": 3, "grpo.save_steps": 1, "grpo.learning_rate": 0.5},
        **{
            "trl": {"adam_epsilon": 1.0},
            "grpo.beta": 0.1,
            "grpo.ref_model_sync_steps": 2,
            "batching.tokens_per_micro_batch": 80,
            "batching.gradient_checkpointing": True,
        },
    },
    "adapters": {
        **{
            "grpo.max_steps": 2,
            "lora.r": 2,
            "grpo.learning_rate": 0.5,
            "trl": {"optim": "sgd"},
            "batching.micro_batches": 2,
        },
        **{"grpo.beta": 0.1, "grpo.ref_model_sync_steps": 1, "grpo.loss_type": "bnpo", "warm_start.max_steps": 0},
    },
}


BUFFERS = {"grpo.max_steps": 1, "grpo.learning_rate": 0.5, "grpo.beta": 0.1, "trl": {"optim": "sgd"}}
"""Of a model whose checkpoints have buffers, which are sent and kept whole."""


SHARDED = {
    **{"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"},
    **{"FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"},
}
"""What the launcher sets under the shipped configuration, as far as it is checked."""


FAILS = {"grpo.max_steps": 2, "warm_start.max_steps": 0}

EARLY = {"grpo.max_steps": 4, "warm_start.max_steps": 0, "evaluation.validation": 2, "grpo.learning_rate": 0.5}


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    for name, options in RUNS.items():
        in_one_process(tiny_model_dir, folder / name, options)
    return folder


@pytest.fixture(scope="module")
def runs(tiny_model_dir: Path, experts_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("sharded")
    buffers = {**BUFFERS, "model": str(experts_dir)}
    others = {"buffers": buffers, "early": EARLY, "gradients": {}, "fails": FAILS}
    return folder, launch("fsdp2.yaml", tiny_model_dir, folder, {**RUNS, **others})


@pytest.mark.parametrize("name", RUNS)
def test_sharded_weights_get_the_updates_of_one_process(
    runs: tuple[Path, str], name: str, alone: Path, tiny_model_dir: Path
) -> None:
    folder, _ = runs
    assert_same_updates(alone / name, folder / name, tiny_model_dir, steps=RUNS[name]["grpo.max_steps"])


def test_a_model_with_buffers_in_its_checkpoints_is_sharded_without_them(
    runs: tuple[Path, str], experts_dir: Path, tmp_path: Path
) -> None:
    folder, _ = runs
    in_one_process(experts_dir, tmp_path, BUFFERS)
    assert_same_updates(tmp_path, folder / "buffers", experts_dir, steps=1)
    assert load_model(str(folder / "buffers" / "model")).model.get_buffer(ROUTED).tolist() == pytest.approx(
        [0.3, 0.1, -0.2, 0.0]
    )


def test_a_sharded_run_whose_success_falls_ends_early_in_all_processes(runs: tuple[Path, str]) -> None:
    folder, said = runs
    assert said.count("early: ['untrained', 'after GRPO', 'chosen on validation']") == 2
    lines = sdk.traces.RunFolder.open_to_read(folder / "early").read_metrics()
    assert [line["step"] for line in lines if line["stage"] == "grpo"] == [0, 1]


def test_a_sharded_run_that_was_cut_off_went_on_from_its_checkpoint(runs: tuple[Path, str]) -> None:
    folder, said = runs
    assert said.count("resumed whole ended:") == 2
    assert said.count("resumed whole: ['untrained', 'after warm start', 'after GRPO'] by FSDP") == 2
    rollouts = sdk.traces.RunFolder.open_to_read(folder / "resumed whole").read_rollouts("grpo")
    assert sorted({rollout.step for rollout in rollouts}) == [0, 1, 2]


def test_a_first_process_that_fails_in_a_step_ends_though_the_others_wait_for_its_part(runs: tuple[Path, str]) -> None:
    _, said = runs
    assert "fails in process 0: OSError" in said
    assert "fails in process 1: RuntimeError" in said  # the connection was closed


@pytest.mark.parametrize("name", [*RUNS, "buffers", "early"])
def test_the_weights_that_a_sharded_run_kept_are_those_that_its_evidence_says_were_sampled_from(
    runs: tuple[Path, str], name: str
) -> None:
    found = anyio.run(verify_run, runs[0] / name)
    assert found.holds, found.findings


def test_the_shared_prefix_forward_has_the_same_gradients_where_fsdp2_shards_the_weights(
    runs: tuple[Path, str],
) -> None:
    differences = [line for line in runs[1].splitlines() if line.startswith("relative difference:")]
    assert len(differences) == 2
    assert all(float(line.split()[-1]) < 1e-5 for line in differences)


BUFFER = {
    **{"grpo.max_steps": 2, "grpo.save_steps": 1, "grpo.learning_rate": 0.5, "warm_start.max_steps": 0},
    "buffer": ROUTED,
}
"""Of a model whose checkpoints have one, which is changed in the checkpoint that the run goes on from."""

QUIET = {"grpo.max_steps": 4, "warm_start.max_steps": 0, "grpo.learning_rate": 0.1}
"""With a signal in the first step alone, of which Adam keeps a momentum."""

STAGES = {
    # It shards no weights: adapters and buffers are as in one process.
    "deepspeed_zero2.yaml": {"resumed whole": RUNS["resumed whole"], "quiet": QUIET},
    "deepspeed_zero3.yaml": {**RUNS, "resumed buffer": BUFFER},
}


@pytest.mark.parametrize("config", STAGES)
def test_deepspeed_makes_the_updates_of_one_process_keeps_its_evidence_and_resumes(
    config: str, alone: Path, tiny_model_dir: Path, experts_dir: Path, tmp_path: Path
) -> None:
    runs = {
        name: {**options, "model": str(experts_dir)} if options is BUFFER else options
        for name, options in STAGES[config].items()
    }
    said = launch(config, tiny_model_dir, tmp_path, runs, python=deepspeed_python())
    assert said.count("resumed whole ended:") == 2
    assert said.count("resumed whole: ['untrained', 'after warm start', 'after GRPO'] by DEEPSPEED") == 2
    for name in RUNS.keys() & runs:
        assert_same_updates(alone / name, tmp_path / name, tiny_model_dir, steps=RUNS[name]["grpo.max_steps"])
        found = anyio.run(verify_run, tmp_path / name)
        assert found.holds, found.findings
    if "quiet" in runs:
        lines = (tmp_path / "quiet" / "evidence.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        first, *later = [one["data"]["sha256"] for one in entries if one["kind"] == "published"]
        assert len(later) >= 3
        assert first not in later
        assert len(set(later)) == 1, "without a signal the weights stay as they are"
    if "resumed buffer" not in runs:
        return
    assert said.count("resumed buffer: ['untrained', 'after GRPO'] by DEEPSPEED") == 2
    buffer = load_model(str(tmp_path / "resumed buffer" / "model")).model.get_buffer(ROUTED).tolist()
    assert buffer == pytest.approx([1.3, 1.1, 0.8, 1.0])


@pytest.mark.parametrize(
    ("environment", "error"),
    [
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


def test_weights_that_come_from_the_first_process_take_no_memory_in_the_others(tiny_model_dir: Path) -> None:
    model = load_model(str(tiny_model_dir)).model
    whole = {name: weight.shape for name, weight in model.named_parameters()}
    forget_weights(model)
    assert all(weight.is_meta for weight in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())  # computed, not sent
    make_room(model)
    assert {name: weight.shape for name, weight in model.named_parameters()} == whole  # tied ones once
    assert len({weight.data_ptr() for weight in model.parameters()}) == len(whole)
    kept = model.lm_head.weight
    make_room(model)
    assert model.lm_head.weight is kept is model.model.embed_tokens.weight


def test_a_reference_that_follows_adapters_gathers_no_frozen_weights(
    monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path
) -> None:
    for name, value in LAUNCHES["DeepSpeed"].items():
        monkeypatch.setenv(name, value)
    model = with_adapters(load_model(str(tiny_model_dir)).model, TrainConfig.of({"lora.r": 2}))
    gathered = []
    monkeypatch.setattr(sharding, "_whole", lambda weight: gathered.append(weight) or weight)
    Reference(model, every=1, prepare=lambda _: None).follow(model, 1)
    assert [id(weight) for weight in gathered] == [id(one) for one in model.parameters() if one.requires_grad]


LAUNCHES = {"plain": {}, "FSDP2": SHARDED, "DeepSpeed": {"WORLD_SIZE": "2", "ACCELERATE_USE_DEEPSPEED": "true"}}


@pytest.mark.parametrize("launched", LAUNCHES)
@pytest.mark.parametrize(
    ("optimiser", "of", "was"),
    [
        ("optimizer_0/shard", "FSDP2", "with weights sharded by FSDP2"),
        ("global_step1/shard", "DeepSpeed", "by DeepSpeed"),
        ("optimizer.pt", "plain", "without sharded weights"),
    ],
)
def test_a_checkpoint_of_another_kind_of_launch_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, launched: str, optimiser: str, of: str, was: str
) -> None:
    for name, value in LAUNCHES[launched].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(sdk.ConfigError, match="lacks the state of its optimiser"):
        check_checkpoint(tmp_path)
    (tmp_path / "scheduler.pt").touch()
    (tmp_path / optimiser).parent.mkdir(exist_ok=True)
    (tmp_path / optimiser).touch()
    if launched == of:
        check_checkpoint(tmp_path)
    else:
        with pytest.raises(sdk.ConfigError, match=f"was written {was}, and this launch would go on"):
            check_checkpoint(tmp_path)


@pytest.mark.parametrize(("processes", "stage"), [(2, 2), (2, 3), (4, 2), (4, 3)])
def test_a_checkpoint_that_deepspeed_sharded_otherwise_is_named_with_how_to_launch_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: int, stage: int
) -> None:
    for name, value in {**LAUNCHES["DeepSpeed"], "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "global_step7"
    folder.mkdir()
    for rank in range(processes):
        (folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
        model = f"zero_pp_rank_{rank}_mp_rank_00" if stage == 3 else "mp_rank_00"
        (folder / f"{model}_model_states.pt").touch()
    if (processes, stage) == (2, 3):
        check_checkpoint(tmp_path)
    else:
        with pytest.raises(
            sdk.ConfigError, match=f"launch the run with num_processes: {processes} and zero_stage: {stage}"
        ):
            check_checkpoint(tmp_path)


def test_an_optimiser_with_moments_of_its_own_form_is_refused_on_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHARDED.items():
        monkeypatch.setenv(name, value)
    check_processes(TrainConfig.of({"trl": {"optim": "adamw_torch"}}))
    eight_bit = TrainConfig().changed({"trl.optim": "adamw_8bit"})  # as where bitsandbytes is installed
    with pytest.raises(sdk.ConfigError, match="'adamw_8bit' keeps its moments"):
        check_processes(eight_bit)
