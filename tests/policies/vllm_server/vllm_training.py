"""Two steps of training on what vLLM samples, and what must be true of them."""

from __future__ import annotations

from typing import Any

import sdk
from sdk.traces import RunFolder


def every_other(rollout: sdk.Rollout) -> bool:
    """Passes half of each group, so that it has a signal whatever the model says."""
    return ord(rollout.id[-1]) % 2 == 0  # the end of its number in the group


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


TRAINING: tuple[Any, ...] = ([add], [f"What is {n} + 1?" for n in range(4)], every_other)
"""Tools, prompts and verifier."""


def trained_on(vllm: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config. `vllm`: its options."""
    return {
        "engine": "vllm",
        "vllm": vllm,
        "probes.tasks": 0,
        "warm_start.max_steps": 0,
        "grpo.max_steps": 2,
        "grpo.prompts_per_step": 2,
        "grpo.num_generations": 4,
        "evaluation.heldout": 1,
        "evaluation.max_served": 0,
        "limits": {"max_turns": 2, "max_turn_tokens": 12, "max_tokens": 24},
        **changes,
    }


def assert_trained_on_what_was_published(result: sdk.TrainResult, *, publications: int) -> None:
    """Each step's rollouts are of the latest weights, and their log-probabilities those that the trainer computes.

    `publications`: at least so many.
    """
    folder = RunFolder.open_to_read(result.run_dir)
    steps = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    assert [line["skipped_rollouts"] for line in steps] == [0, 0]
    gaps = [line["sampler_gap/max"] for line in steps if "sampler_gap/max" in line]
    assert len(gaps) == 2
    assert max(gaps) < 1e-3
    for rollout in folder.read_rollouts("grpo"):
        assert {version for row in rollout.rows for version in row.versions if version >= 0} == {rollout.step}
    assert result.report.run["engine"] == "vLLM"
    assert result.report.run["vllm_publications"] >= publications
