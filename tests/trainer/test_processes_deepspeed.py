"""What DeepSpeed is launched with, looked at before a run begins. `test_processes_sharded` has the runs."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

import sdk
from sdk.trainer.config import TrainConfig
from sdk.trainer.grpo import _grpo_config
from sdk.trainer.processes import check_processes
from sdk.trainer.run_identity import EMBEDDED_BYTES, bytes_still_needed
from sdk.trainer.warm_start import _sft_config

LAUNCHED = {"WORLD_SIZE": "2", "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
"""What the launcher sets under the shipped configuration, as far as it is checked."""


@pytest.mark.parametrize(
    ("environment", "options", "error"),
    [
        ({"WORLD_SIZE": "1"}, {}, "there is one process"),
        ({"ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, {}, "zero_stage is 1, but 2"),
        ({"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"}, {}, "deepspeed_config_file is 'ds.json'"),
        ({"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"}, {}, "offload_optimizer_device is 'cpu'"),
        ({"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "nvme"}, {}, "offload_param_device is 'nvme'"),
        ({}, {"batching.bf16": True}, "bf16 is true, but DeepSpeed would keep the weights themselves in bfloat16"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {}, "mixed_precision is 'bf16', but DeepSpeed would keep the weights"),
    ],
)
def test_what_deepspeed_would_do_otherwise_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], options: dict[str, bool], error: str
) -> None:
    launched_with(monkeypatch, environment)
    with pytest.raises(sdk.ConfigError, match=error):
        check_processes(TrainConfig().changed(options))


def launched_with(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    for name, value in {**LAUNCHED, **environment}.items():
        monkeypatch.setenv(name, value)


STEPS, CLIPPING = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_GRADIENT_CLIPPING"


@pytest.mark.parametrize("given", ["0.0", "1", "much"])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        (STEPS, "gradient_accumulation_steps is {} in deepspeed_config; .*micro_batches is the option"),
        (CLIPPING, "gradient_clipping is {} in deepspeed_config; .*max_grad_norm is the option"),
    ],
)
def test_numbers_that_the_stages_set_are_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, error: str
) -> None:
    launched_with(monkeypatch, {name: given})
    with pytest.raises(sdk.ConfigError, match=error.format(given)):
        check_processes(TrainConfig())


def test_numbers_that_are_left_to_the_stages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    launched_with(monkeypatch, {STEPS: "auto", CLIPPING: "auto"})
    check_processes(TrainConfig.of({"batching.micro_batches": 4, "trl": {"max_grad_norm": 0.3}}))


def test_the_stages_have_the_numbers_that_are_checked(tmp_path: Path) -> None:
    config = TrainConfig.of({"batching.micro_batches": 2, "trl": {"max_grad_norm": 0.5, "adam_beta2": 0.99}})
    stages = _sft_config(config, str(tmp_path)), _grpo_config(config, str(tmp_path))
    assert [args.adam_beta2 for args in stages] == [0.99, 0.99]
    for args, numbers in (
        (stages[0], (1, 0.5)),
        (stages[1], (2, 0.5)),
        (_grpo_config(TrainConfig(), str(tmp_path)), (2, 1.0)),
    ):
        assert (args.gradient_accumulation_steps, args.max_grad_norm) == numbers


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed here")
def test_a_missing_deepspeed_is_named_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(sdk.ConfigError, match=r"pip install 'toolbake\[deepspeed\]'"):
        check_processes(TrainConfig())


def test_deepspeed_asks_for_the_disk_that_its_checkpoints_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = bytes_still_needed(None, tmp_path, sdk.TrainConfig())
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert bytes_still_needed(None, tmp_path, sdk.TrainConfig()) == before + 3 * 2 * EMBEDDED_BYTES
