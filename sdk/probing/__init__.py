"""Degenerate policies that try to earn a reward without doing the task: who can, shows what the verifier misses."""
