"""Probes of a verifier: degenerate policies that try to earn a reward without doing the task."""

STAGE = "probes"
"""Where a training run keeps their rollouts, as `rollouts/probes.jsonl`."""
