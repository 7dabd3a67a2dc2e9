"""How far a forward pass of our own may be from the model's, where one is held against the other on a few tokens."""

from __future__ import annotations

import torch


def beyond(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> tuple[float, float] | None:
    """(the largest difference, the most that is allowed) where they differ by more than rounding; None where not.

    `dtype`: what the model computes in. A difference that is no number is beyond everything.
    """
    exact = dtype in (torch.float32, torch.float64)
    limit = (1e-3 if exact else 0.1) * (1 + float(expected.abs().max()))
    difference = float((found - expected).abs().max())
    return None if difference <= limit else (difference, limit)
