"""A run that gets a SIGKILL at any point goes on from its folder to the same losses and weights, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# One rollout at a time: which others share a batch changes the last bit of a sampler's log-probabilities.
PLAIN: dict[str, Any] = {"grpo.save_steps": 2, "rollouts.concurrency": 1, "evaluation.validation": None}
ADAPTERS: dict[str, Any] = {
    **{"lora.r": 2, "grpo.learning_rate": 1e-3, "grpo.beta": 0.1, "grpo.ref_model_sync_steps": 1, "grpo.save_steps": 1},
    **{
        "grpo.max_steps": 3,
        "rollouts.concurrency": 1,
        "evaluation.validation": None,
        "curriculum.difficulty_filter": [0.3, 0.7],
        "batching.tokens_per_micro_batch": 256,
    },
}
FOLDER, TRAINER = "sdk.traces.run_folder:RunFolder", "transformers.trainer:Trainer"
SCENARIOS: list[tuple[str, dict[str, Any], tuple[str, int] | None]] = [
    ("never", PLAIN, None),
    ("in the warm start", PLAIN, ("sdk.trainer.warm_start:WarmStartTrainer.training_step", 2)),
    ("between the weights of a checkpoint and its optimiser", PLAIN, (f"{TRAINER}._save_optimizer_and_scheduler", 1)),
    ("among the rollouts of a step", PLAIN, (f"{FOLDER}.append_rollout", 31)),
    ("between the last step and its checkpoint", PLAIN, ("sdk.trainer.grpo:RolloutTrainer.save_model", 2)),
    ("while the weights are chosen", PLAIN, ("sdk.trainer.validation:_measure", 3)),
    ("never with adapters", ADAPTERS, None),
    ("with adapters between steps", ADAPTERS, ("sdk.trainer.grpo:RolloutTrainer.training_step", 3)),
]


@pytest.mark.timeout(400)
def test_a_run_that_was_killed_anywhere_ends_as_if_it_had_not_been(tiny_model_dir: Path, tmp_path: Path) -> None:
    here = Path(__file__).parent
    # One thread: a fork of a process that computes with several would stop at their locks.
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": f"{here}:{here.parent}:{here.parent.parent}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(here / "killed_runs.py"), str(tiny_model_dir), str(tmp_path)]
    ended = subprocess.run(
        command, input=json.dumps(SCENARIOS), capture_output=True, text=True, env=env, cwd=here.parent.parent
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = {line["name"]: line for line in map(json.loads, ended.stdout.splitlines()) if line}
    assert list(results) == [name for name, _, _ in SCENARIOS]
    for name, options, point in SCENARIOS:
        result = results[name]
        assert result["status"] == 0, name
        assert result["killed"] == (signal.SIGKILL if point else None), name
        whole = results["never" if options is PLAIN else "never with adapters"]["left"]
        assert result["left"]["metrics"] == whole["metrics"], name
        assert result["left"]["rollouts"] == whole["rollouts"], name
        assert result["left"]["tokens"] == whole["tokens"], name
        assert result["left"]["weights"] == whole["weights"], name
    steps = [line["step"] for line in results["never"]["left"]["metrics"] if line["stage"] == "grpo"]
    assert steps == [0, 1, 2, 3]
    # What was done is not done again: the folder has the steps up to the checkpoint.
    said = {name: " ".join(result["said"]) for name, result in results.items()}
    assert "going on from step 2" in said["among the rollouts of a step"]
    assert "going on from step 2" in said["between the last step and its checkpoint"]
    assert "going on from step" not in said["between the weights of a checkpoint and its optimiser"].replace(
        "step 0", ""
    )
    assert "going on from step 2" in said["with adapters between steps"]
