"""Degenerate policies that try to earn a reward without doing the task: who can, shows what the verifier misses."""

STAGE = "probes"
"""Where a training run keeps their rollouts, as `rollouts/probes.jsonl`."""
