"""Models that differ from another in every weight."""

from __future__ import annotations

import copy
from typing import Any

import torch


def changed_copy(model: Any, seed: int = 1, *, endless: bool = False) -> Any:
    """Every weight a little different, head and norms included. `endless`: and it ends no turn of its own accord."""
    changed = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.mul_(1 + 0.02 * torch.randn_like(weight))
        if endless:
            changed.lm_head.weight[model.config.eos_token_id] = 0.0
    return changed
