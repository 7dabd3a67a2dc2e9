"""A step without signal leaves the weights as they are, and then nothing is sent to vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from token_server import TokenServer
from vllm_training import TRAINING, trained_on

import sdk
from sdk.traces import RunFolder


def no_signal(rollout: sdk.Rollout) -> bool:
    return False


@pytest.mark.parametrize("signal", [False, True])
def test_weights_are_published_where_a_step_has_changed_them_and_every_step_has_its_number(
    server: TokenServer, small_model_folder: Path, tmp_path: Path, signal: bool
) -> None:
    server.context = 4096
    tools, prompts, every_other = TRAINING
    config = trained_on({"urls": [server.url]}, **{"grpo.warmup_steps": 0, "evaluation.validation": 0})
    verifier = every_other if signal else no_signal
    result = sdk.train(tools, prompts, verifier, str(small_model_folder), tmp_path / "run", config)
    folder = RunFolder.open_to_read(result.run_dir)
    steps = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    assert [bool(line["groups_with_signal"]) for line in steps] == [signal] * 2
    # The servers' own weights are not known, so the first are sent in any case.
    assert result.report.run["vllm_publications"] == (3 if signal else 1)
    assert all(line["seconds/publish"] >= 0 and line["seconds/update"] >= 0 for line in steps)
    for rollout in folder.iter_rollouts("grpo"):
        assert {version for row in rollout.rows for version in row.versions if version >= 0} == {rollout.step}
    assert folder.config["train"]["off_policy"]["importance_sampling_mode"] == "token_truncate"
