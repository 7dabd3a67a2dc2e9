"""A real run of a tiny model: an alarm is in the metrics, and a canary that is earned ends the run."""

from pathlib import Path

import pytest

import sdk
from sdk.traces import RunFolder

TINY = {
    "probes.tasks": 0,
    "warm_start.max_steps": 0,
    "grpo.max_steps": 1,
    "grpo.prompts_per_step": 4,
    "grpo.num_generations": 2,
    "evaluation.heldout": 1,
    "evaluation.max_served": 0,
    "limits": {"max_turns": 1, "max_turn_tokens": 2, "max_tokens": 2},
}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tasks(canary: str) -> list[dict[str, object]]:
    return [{"prompt": f"What is {n} + 1?", "tags": {"canary": canary}} for n in range(5)]


def pays_all(rollout: sdk.Rollout) -> float:
    return 1.0


def test_a_canary_that_is_earned_ends_the_run_and_the_rollouts_are_kept(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(sdk.ToolbakeError, match=r"stopped by an alarm: canary at step 0: .* of 8 canary rollouts"):
        sdk.train([add], tasks("true"), pays_all, tiny_model_folder, tmp_path / "run", TINY)
    folder = RunFolder.open_to_read(tmp_path / "run")
    assert len(folder.read_rollouts("grpo")) == 8
    assert any("canary at step 0" in str(line.get("alarms")) for line in folder.read_metrics())


def test_other_alarms_are_noted_and_training_goes_on(tiny_model_folder: Path, tmp_path: Path) -> None:
    config = {**TINY, "alarms.components": ["judge"]}
    result = sdk.train([add], tasks("false"), pays_all, tiny_model_folder, tmp_path / "run", config)
    noted = [line["alarms"] for line in RunFolder.open_to_read(result.run_dir).read_metrics() if "alarms" in line]
    assert len(noted) == 1
    assert "missing_component at step 0: no verdict has the component 'judge'" in str(noted)


def test_stop_ends_the_run_at_an_alarm_about_the_reward(tiny_model_folder: Path, tmp_path: Path) -> None:
    config = {**TINY, "alarms": {"components": ["judge"], "action": "stop"}}
    with pytest.raises(sdk.ToolbakeError, match="stopped by an alarm: missing_component at step 0"):
        sdk.train([add], tasks("false"), pays_all, tiny_model_folder, tmp_path / "run", config)


def test_limits_that_cut_off_end_no_run(tiny_model_folder: Path, tmp_path: Path) -> None:
    config = {**TINY, "alarms.action": "stop"}
    result = sdk.train([add], tasks("false"), pays_all, tiny_model_folder, tmp_path / "run", config)
    noted = [line["alarms"] for line in RunFolder.open_to_read(result.run_dir).read_metrics() if "alarms" in line]
    assert "cut_off at step 0: a token limit" in str(noted)


def test_alarms_that_are_off_follow_nothing() -> None:
    with pytest.raises(sdk.ConfigError, match='components does nothing while action is "off"'):
        sdk.TrainConfig.of({"alarms.action": "off", "alarms.components": ["judge"]})
