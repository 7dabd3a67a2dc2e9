"""Options whose values cannot work are refused with their name when the config is made: nothing has been spent then."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.trainer.config import GrpoOptions, TrainConfig

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grpo.learning_rate": math.inf}, "option grpo.learning_rate is inf: .* finite"),
        ({"grpo.temperature": math.inf}, "option grpo.temperature is inf: .* finite"),
        ({"grpo.temperature": 1e6}, "option grpo.temperature is 1000000.0: .* less than or equal to 100000"),
        ({"grpo.prompts_per_step": 10**30, "batching.micro_batches": 3}, "batching.micro_batches must divide"),
        ({"evaluation.success_threshold": math.nan}, "option evaluation.success_threshold is nan: .* finite"),
        ({"seed": -1}, "option seed is -1"),
        ({"grpo": {"max_steps": True}}, "option grpo.max_steps is True: give a number"),
        ({"limits.max_calls": True}, "option limits.max_calls is True: give a number"),
        ({"limits.call_timeout_s": math.inf}, "option limits.call_timeout_s is inf: .* finite"),
        ({"engine": "vllm", "vllm.replicas": True}, "option vllm.replicas is True: give a number"),
        ({"engine": "vllm", "vllm.request_timeout_s": math.inf}, "option vllm.request_timeout_s is inf: .* finite"),
        ({"seed": 2**32}, "option seed is 4294967296"),
        ({"probes.tasks": 0, "probes.allow": ["echoes"]}, "option probes: allow does nothing while tasks is 0"),
        ([("seed", 3)], "config is a list; give a sdk.TrainConfig, a mapping or the path of a JSON or YAML file"),
    ],
)
def test_values_that_cannot_work_are_named(options: Any, said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        TrainConfig.of(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trl.max_grad_norm": "a"}, "option trl.max_grad_norm is 'a': Input should be a valid number"),
        ({"trl.max_grad_norm": None}, "option trl.max_grad_norm is None"),
        ({"off_policy.off_policy_mask_threshold": "a"}, "off_policy_mask_threshold is 'a'"),
        ({"trl.adam_beta1": 1.0}, "adam_beta1 is 1.0: Input should be less than 1"),
        ({"grpo.top_entropy_quantile": 5}, "top_entropy_quantile is 5: .* less than or equal to 1"),
        ({"grpo.entropy_coef": math.nan}, "entropy_coef is nan: .* finite"),
        ({"trl.optim": "adam"}, "optim is 'adam': choose one of adamw_torch, "),
        ({"trl.optim": "galore_adamw"}, "optim 'galore_adamw' cannot be made: .*galore_torch"),
        ({"trl.optim": "sgd", "trl.optim_args": "fast"}, "optim 'sgd' with optim_args 'fast' cannot be made"),
        ({"trl.optim_args": "amsgrad=True"}, "optim_args does nothing in optim 'adamw_torch_fused'"),
        ({"trl.optim": "sgd", "trl.adam_beta1": 0.5}, "adam_beta1 does nothing in optim 'sgd'"),
        ({"grpo.delta": 1.28}, r"delta is 1\.28, and TRL bounds every ratio by it: .* 1\.28; set delta above"),
        (
            {"grpo.lr_scheduler_type": "polynomial", "grpo.lr_scheduler_kwargs": {"lr_end": 1e-4}},
            "cannot be made .*lr_end .* must be smaller",
        ),
        ({"grpo.lr_scheduler_type": "cosin"}, "lr_scheduler_type is 'cosin'; choose one of linear, cosine, "),
        ({"grpo.lr_scheduler_type": "reduce_lr_on_plateau"}, "is 'reduce_lr_on_plateau'; choose one of"),
        ({"grpo.lr_scheduler_type": "cosine_with_min_lr"}, "cannot be made with lr_scheduler_kwargs None: One of"),
        (
            {"grpo.lr_scheduler_type": "cosine", "grpo.lr_scheduler_kwargs": {"cycles": 2}},
            "cannot be made .* 'cycles'",
        ),
        ({"grpo.lr_scheduler_kwargs": {"num_cycles": 2}}, "cannot be made .*num_decay_steps"),
        (
            {"grpo.lr_scheduler_type": "constant", "grpo.warmup_steps": 5},
            "warmup_steps does nothing while lr_scheduler_type is 'constant'; set that to",
        ),
        (
            {"grpo.lr_scheduler_type": "constant", "grpo.lr_scheduler_kwargs": {"num_cycles": 2}},
            "lr_scheduler_kwargs does nothing while lr_scheduler_type is",
        ),
        (
            {"grpo.max_steps": 8, "grpo.warmup_steps": 5, "grpo.lr_scheduler_kwargs": {"num_decay_steps": 5}},
            "a warmup of 5 steps and a decay of 5 are more than max_steps, which is 8",
        ),
    ],
)
def test_values_for_trl_are_looked_at_before_its_trainer_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        TrainConfig.of(options)


@pytest.mark.parametrize(
    "options",
    [
        {"trl": {"max_grad_norm": 0, "weight_decay": 0.1, "optim": "sgd"}},
        {"grpo": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1}},
        {
            "grpo": {
                "lr_scheduler_type": "cosine_with_min_lr",
                "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
                "warmup_steps": 3,
            }
        },
        {"grpo": {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 2}}},
    ],
)
def test_values_that_trl_takes_stay_as_they_are(options: dict[str, Any]) -> None:
    assert TrainConfig.of(options).model_dump(exclude_unset=True) == options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group_size": 8}, "there is no option 'group_size': it is grpo.num_generations"),
        ({"num_generations": 8}, "there is no option 'num_generations': it is grpo.num_generations"),
        ({"warm_start": {"num_generations": 8}}, "no option 'warm_start.num_generations': it is grpo.num_generations"),
        ({"learning_rate": 1}, "no option 'learning_rate': it is warm_start.learning_rate or grpo.learning_rate"),
        ({"grpo_learning_rate": 1}, "there is no option 'grpo_learning_rate': it is grpo.learning_rate"),
        ({"grpo_steps": 3}, r"there is no option 'grpo_steps'; did you mean 'grpo\.max_steps'\?"),
        ({"lora": {"rank": 8}}, r"there is no option 'lora\.rank'; did you mean 'lora\.r'\?"),
        ({"max_turn": 3}, r"there is no option 'max_turn'; did you mean 'limits\.max_turns'\?"),
        ({"quiet": True}, "there is no option 'quiet'; the options and their groups are seed, tool_prompt, "),
        ({"trl": {"quiet": True}}, r"there is no option 'trl\.quiet'; the options of trl are optim, "),
        ({"curriculum": "intent"}, "curriculum is a group of options; give a mapping of by, tiers, "),
        ({"seed": 1, "seed.of": 3}, "option seed.of: 'seed' is 1 and has no options of its own"),
    ],
)
def test_a_name_that_is_no_option_leads_to_the_one_that_was_meant(options: dict[str, Any], said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        TrainConfig.of(options)


def test_every_way_to_write_a_config_gives_the_same(tmp_path: Path) -> None:
    wanted = TrainConfig(grpo=GrpoOptions(max_steps=40, learning_rate=1e-6), seed=3)
    (tmp_path / "config.json").write_text('{"grpo": {"max_steps": 40, "learning_rate": 1e-6}, "seed": 3}')
    (tmp_path / "config.yaml").write_text("seed: 3\ngrpo:\n  max_steps: 40\n  learning_rate: 1e-6\n")
    for given in (
        {"grpo": {"max_steps": 40, "learning_rate": 1e-6}, "seed": 3},
        {"grpo": GrpoOptions(max_steps=40), "grpo.learning_rate": 1e-6, "seed": 3},
        {"grpo.max_steps": 40, "grpo.learning_rate": 1e-6, "seed": 3},
        tmp_path / "config.json",
        str(tmp_path / "config.yaml"),
    ):
        assert TrainConfig.of(given) == wanted


def test_a_key_that_a_config_merges_may_be_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("grpo: &first {max_steps: 40}\nwarm_start: {<<: *first, max_steps: 5}\n")
    assert TrainConfig.of(path) == TrainConfig.of({"grpo.max_steps": 40, "warm_start.max_steps": 5})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.yaml", "grpo: [", "is not valid YAML: while parsing"),
        ("config.yml", "- 1", "holds a list; it must hold one object"),
        ("config.json", "{", "is not valid JSON: .* at column 2"),
        pytest.param("config.json", "[" * 50_000 + "]" * 50_000, "cannot be read: nested too deeply", id="json nested"),
        pytest.param("config.yaml", "[" * 5_000 + "]" * 5_000, "is nested too deeply to be read", id="yaml nested"),
        pytest.param("config.json", f'{{"seed": {"9" * 5000}}}', "cannot be read: Exceeds the limit", id="digits"),
        ("config.json", '{"grpo": {"max_steps": 5}, "grpo": {"beta": 0.1}}', "the key 'grpo' occurs twice; keep one"),
        ("config.yaml", "grpo:\n  beta: 0.1\n  beta: 0.2\n", r"the key 'beta' occurs twice; keep one[^$]*line 3"),
        ("config.yaml", "grpo: !!map [beta]\n", "is not valid YAML: expected a mapping node"),
    ],
)
def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(sdk.ConfigError, match=rf"{name}.* {said}"):
        TrainConfig.of(tmp_path / name)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "vllm", "vllm": {"environment": {"HF_TOKEN": "hf_hidden"}}, "grpo.ref_model_sync_steps": 3},
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
    with pytest.raises(sdk.ConfigError, match=r"config\.json' is not valid JSON: it is not text in UTF-8"):
        TrainConfig.of(tmp_path / "config.json")


def test_a_group_adds_its_options_to_those_under_dotted_names_and_the_later_value_counts() -> None:
    config = TrainConfig.of({"grpo.max_steps": 1, "grpo.num_generations": 4, "grpo": {"max_steps": 2}})
    assert (config.grpo.max_steps, config.grpo.num_generations) == (2, 4)


@pytest.mark.parametrize(
    ("tasks", "parts"),
    [(1, 1), (3, 1), (4, 1), (5, 5), (6, 2), (8, 2), (9, 3), (10, 5), (35, 35), (10**30, 10**30 // 4)],
)
def test_a_step_has_as_few_parts_as_have_at_most_four_tasks_and_they_are_found_at_once(tasks: int, parts: int) -> None:
    assert TrainConfig.of({"grpo.prompts_per_step": tasks}).parts == parts
