"""Real vLLM, started by `sdk.train` on the embedded model, and its log-probabilities beside the trainer's."""

from __future__ import annotations

from pathlib import Path

import pytest

import sdk
from sdk.traces import RunFolder

pytestmark = pytest.mark.timeout(1200)


def even_letters(rollout: sdk.Rollout) -> bool:
    """A coin, so that groups have a signal whatever the model says."""
    return sum(map(ord, rollout.messages[-1].content)) % 2 == 0


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_the_embedded_model_is_trained_on_what_vllm_samples_from_its_latest_weights(
    vllm_python: Path, tmp_path: Path
) -> None:
    config = {
        "engine": "vllm",
        "vllm": {
            "python": str(vllm_python),
            "publish": "checkpoint",
            # A server tries out its largest batch and clears its cache before it answers.
            "arguments": ["--max-num-batched-tokens", "1024", "--max-num-seqs", "16"],
            "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        },
        "learning_rate": 1e-5,
        "probe_tasks": 0,
        "warm_start_steps": 0,
        "grpo_steps": 2,
        "prompts_per_step": 2,
        "group_size": 4,
        "heldout": 1,
        "limits": {"max_turns": 2, "max_turn_tokens": 12, "max_tokens": 24},
    }
    questions = [f"What is {n} + 1?" for n in range(4)]
    result = sdk.train([add], questions, even_letters, None, tmp_path / "run", config)
    folder = RunFolder.open_to_read(result.run_dir)
    steps = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    assert [line["skipped_rollouts"] for line in steps] == [0, 0]
    gaps = [line["sampler_gap/max"] for line in steps]
    assert len(gaps) == 2
    assert max(gaps) < 1e-3
    for rollout in folder.read_rollouts("grpo"):
        assert {version for row in rollout.rows for version in row.versions if version >= 0} == {rollout.step}
    assert result.report.run["vllm_publications"] >= 3
