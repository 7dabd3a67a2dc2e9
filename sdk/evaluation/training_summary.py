"""What training did, added up from the metrics of its steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

SECONDS = "seconds/"


class TrainingSummary(BaseModel):
    """A training run in figures. What the metrics do not tell is `None` or empty, never zero.

    `from_metrics` reads these names from each step's line; all are optional but `step`:
    `reward` (mean over the step's scored rollouts), `groups_with_signal`, `groups_without_signal`, `rollouts`,
    `skipped_rollouts`, `sampler_gap/mean` and `sampler_gap/max` (nats), `sampled_tokens`, `trained_tokens`, and
    `seconds/<phase>`, such as `seconds/rollout` and `seconds/update`.
    """

    steps: int
    first_reward: float | None = None
    last_reward: float | None = None
    """Mean rewards of the first and the last tenth of the steps (at least one step each)."""
    groups_with_signal: int | None = None
    groups_without_signal: int | None = None
    """Groups whose rollouts all scored the same: they teach nothing."""
    rollouts: int | None = None
    skipped_rollouts: int | None = None
    """Rollouts that took no part because something broke; masked out, not scored as bad."""
    sampler_gap_mean: float | None = None
    sampler_gap_max: float | None = None
    """|sampler's - trainer's| log-probability of the sampled tokens, in nats: mean and largest."""
    sampled_tokens: int | None = None
    trained_tokens: int | None = None
    audits: int | None = None
    """Audits that were trained beside the rollouts, and counted apart from them."""
    first_right_calls: float | None = None
    last_right_calls: float | None = None
    """Of the scored audits the share of right calls, in the first and the last tenth of the steps."""
    validation: dict[int, float] = Field(default_factory=dict)
    """Success on validation tasks by step, where it was measured in the midst of training."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by phase."""
    tokens_per_second: dict[str, float] = Field(default_factory=dict)
    """`rollout`: tokens sampled over the seconds of that phase; `update`: tokens trained over its seconds."""

    @classmethod
    def from_metrics(cls, metrics: Sequence[Mapping[str, Any]], stage: str | None = None) -> TrainingSummary:
        """Add up the lines that have a `step`, of one `stage` where given."""
        lines = [m for m in metrics if "step" in m and (stage is None or m.get("stage") == stage)]
        rewards = [float(m["reward"]) for m in lines if m.get("reward") is not None]
        tenth = max(1, len(rewards) // 10)
        gaps = [float(m["sampler_gap/mean"]) for m in lines if m.get("sampler_gap/mean") is not None]
        gap_peaks = [float(m["sampler_gap/max"]) for m in lines if m.get("sampler_gap/max") is not None]
        calls = [float(m["audit/right_call"]) for m in lines if m.get("audit/right_call") is not None]
        tenth_of_calls = max(1, len(calls) // 10)
        seconds = _seconds(lines)
        summary = cls(
            steps=len({m["step"] for m in lines}),
            first_reward=math.fsum(rewards[:tenth]) / tenth if rewards else None,
            last_reward=math.fsum(rewards[-tenth:]) / tenth if rewards else None,
            groups_with_signal=_total(lines, "groups_with_signal"),
            groups_without_signal=_total(lines, "groups_without_signal"),
            rollouts=_total(lines, "rollouts"),
            skipped_rollouts=_total(lines, "skipped_rollouts"),
            sampler_gap_mean=math.fsum(gaps) / len(gaps) if gaps else None,
            sampler_gap_max=max(gap_peaks, default=None),
            sampled_tokens=_total(lines, "sampled_tokens"),
            trained_tokens=_total(lines, "trained_tokens"),
            audits=_total(lines, "audit/rollouts"),
            first_right_calls=math.fsum(calls[:tenth_of_calls]) / tenth_of_calls if calls else None,
            last_right_calls=math.fsum(calls[-tenth_of_calls:]) / tenth_of_calls if calls else None,
            validation={
                int(m["step"]): float(m["success"])
                for m in metrics
                if m.get("stage") == "validation" and m.get("success") is not None
            },
            seconds=seconds,
        )
        for phase, tokens in (("rollout", summary.sampled_tokens), ("update", summary.trained_tokens)):
            if tokens is not None and seconds.get(phase, 0.0) > 0:
                summary.tokens_per_second[phase] = tokens / seconds[phase]
        return summary


def _total(lines: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return int(sum(values)) if values else None


def _seconds(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for line in lines:
        for name, value in line.items():
            if name.startswith(SECONDS) and value is not None:
                totals[name.removeprefix(SECONDS)] += float(value)
    return dict(totals)
