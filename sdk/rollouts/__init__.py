"""Seeds derived from names, so that a rollout can be sampled again by itself."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2**63) that depends on all parts and on nothing else."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
