"""From the scores of a group to the advantages of its rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does, so that tiny differences are not blown up."""


def group_advantages(
    scores: Sequence[float | None], *, scale: Literal["std", "none"] = "std"
) -> list[float | None] | None:
    """Each score against the mean of its group: `A_i = (r_i - mean) / (std + 1e-4)`.

    GRPO (arXiv 2402.03300, section 4.1.2) with the sample standard deviation; `scale="none"` leaves the
    division out (Dr. GRPO, arXiv 2503.20783). Unscored rollouts (`None`) take no part and get no advantage.
    Returns None when the group has no signal: fewer than two scores, or all of them equal.

    Example: `[1.0, 0.0, None, 0.0]` with `scale="none"` gives `[0.667, -0.333, None, -0.333]`.
    """
    scored = [score for score in scores if score is not None]
    if len(scored) < 2 or max(scored) == min(scored):
        return None
    mean = sum(scored) / len(scored)
    divisor = 1.0
    if scale == "std":
        divisor = math.sqrt(sum((score - mean) ** 2 for score in scored) / (len(scored) - 1)) + EPSILON
    return [None if score is None else (score - mean) / divisor for score in scores]
