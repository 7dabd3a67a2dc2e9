"""Options whose values cannot work are refused with their name when the config is made: nothing has been spent then."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.trainer.config import TrainConfig

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learning_rate": math.inf}, "option learning_rate is inf: .* finite"),
        ({"temperature": math.inf}, "option temperature is inf: .* finite"),
        ({"success_threshold": math.nan}, "option success_threshold is nan: .* finite"),
        ({"audits_per_step": 2, "audit_scores": (math.nan, -1, -1)}, "option audit_scores.0 is nan: .* finite"),
        ({"seed": -1}, "option seed is -1"),
        ({"seed": 2**32}, "option seed is 4294967296"),
        ({"probe_tasks": 0, "allow_probes": ["echoes"]}, "allow_probes does nothing while probe_tasks is 0"),
        ([("grpo_steps", 3)], "config is a list; give a sdk.TrainConfig, a mapping or the path of a JSON file"),
    ],
)
def test_values_that_cannot_work_are_named(options: Any, said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        TrainConfig.of(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_grad_norm": "a"}, "max_grad_norm is 'a': Input should be a valid number"),
        ({"max_grad_norm": None}, "max_grad_norm is None"),
        ({"off_policy_mask_threshold": "a"}, "off_policy_mask_threshold is 'a'"),
        ({"adam_beta1": 1.0}, "adam_beta1 is 1.0: Input should be less than 1"),
        ({"top_entropy_quantile": 5}, "top_entropy_quantile is 5: .* less than or equal to 1"),
        ({"entropy_coef": math.nan}, "entropy_coef is nan: .* finite"),
        ({"optim": "adam"}, "optim is 'adam'; choose one of adamw_torch, "),
        ({"lr_scheduler_type": "cosin"}, "lr_scheduler_type is 'cosin'; choose one of linear, cosine, "),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "lr_scheduler_type is 'reduce_lr_on_plateau'; choose one of"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "cannot be made with lr_scheduler_kwargs None: One of min_lr"),
        ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"cycles": 2}}, "cannot be made .* 'cycles'"),
        ({"warmup_steps": 5}, "warmup_steps does nothing while lr_scheduler_type is 'constant'; set that to"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs does nothing while lr_scheduler_type is"),
    ],
)
def test_values_for_trl_are_looked_at_before_its_trainer_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        TrainConfig.of({"trl": options})


@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 0, "weight_decay": 0.1, "optim": "sgd"},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "warmup_steps": 3},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 2}},
    ],
)
def test_values_that_trl_takes_are_handed_through_as_they_are(options: dict[str, Any]) -> None:
    assert TrainConfig.of({"trl": options}).trl == options


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "vllm", "vllm": {"environment": {"HF_TOKEN": "hf_hidden"}}, "reference_every": 3},
        {"vllm": {"environment": {"HF_TOKEN": ["hf_hidden"]}}},
        {"vllm": {"environment": {"HF_TOKEN": "hf_hidden"}, "urls": ["http://127.0.0.1:8000"]}},
        {"vllm": {"urls": ["http://user:hf_hidden@127.0.0.1:8000"]}},
    ],
)
def test_no_error_shows_what_may_be_a_key(options: dict[str, Any]) -> None:
    with pytest.raises(sdk.ConfigError) as caught:
        TrainConfig.of(options)
    assert "hf_hidden" not in str(caught.value)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(sdk.ConfigError, match=r"config\.json' is no JSON: it is not text in UTF-8"):
        TrainConfig.of(tmp_path / "config.json")
