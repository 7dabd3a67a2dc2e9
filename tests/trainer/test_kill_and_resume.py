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
PLAIN: dict[str, Any] = {
    "warm_start.save_steps": 1,
    "grpo.save_steps": 2,
    "rollouts.concurrency": 1,
    "evaluation.validation": None,
}
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
STAGES = "sdk.trainer.warm_start:WarmStartTrainer", "sdk.trainer.grpo:RolloutTrainer"
POINTS: dict[str, tuple[str, int]] = {
    "in the warm start": (f"{STAGES[0]}.training_step", 2),
    "between the weights of a checkpoint and its optimiser": (f"{TRAINER}._save_optimizer_and_scheduler", 1),
    "among the rollouts of a step": (f"{FOLDER}.append_rollout", 20),
    "between the last step and its checkpoint": (f"{STAGES[1]}.save_model", 1),
    "while the weights are chosen": ("sdk.trainer.validation:_measure", 3),
}
"""Where the processes of one run are killed, one after the other."""
RUNS: list[tuple[str, dict[str, Any], list[tuple[str, int]]]] = [
    ("never", PLAIN, []),
    ("everywhere", PLAIN, [*POINTS.values()]),
    ("never with adapters", ADAPTERS, []),
    ("with adapters between steps", ADAPTERS, [(f"{STAGES[1]}.training_step", 3)]),
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
        command, input=json.dumps(RUNS), capture_output=True, text=True, env=env, cwd=here.parent.parent
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = {line["name"]: line for line in map(json.loads, ended.stdout.splitlines()) if line}
    assert list(results) == [name for name, _, _ in RUNS]
    for name, options, points in RUNS:
        result = results[name]
        assert result["ended"] == [signal.SIGKILL] * len(points) + [0], name
        whole = results["never" if options is PLAIN else "never with adapters"]["left"]
        assert result["left"]["metrics"] == whole["metrics"], name
        assert result["left"]["rollouts"] == whole["rollouts"], name
        assert result["left"]["tokens"] == whole["tokens"], name
        assert result["left"]["weights"] == whole["weights"], name
    steps = [line["step"] for line in results["never"]["left"]["metrics"] if line["stage"] == "grpo"]
    assert steps == [0, 1, 2, 3]
    # What was done is not done again: the folder has the steps up to the checkpoint.
    said = [" ".join(lines) for lines in results["everywhere"]["said"]]
    after = dict(zip(POINTS, said[1:], strict=True))
    assert "going on with the warm start from step 1" in after["in the warm start"]
    assert "going on from step 2" in after["among the rollouts of a step"]
    assert "going on from step 2" in after["between the last step and its checkpoint"]
    assert "going on from step" not in after["between the weights of a checkpoint and its optimiser"].replace(
        "step 0", ""
    )
    assert "going on from step 2" in " ".join(results["with adapters between steps"]["said"][-1])
