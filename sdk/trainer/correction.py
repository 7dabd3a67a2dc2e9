"""Importance correction: what to do with tokens that sampler and trainer find differently probable.

Engines compute in another precision or with other kernels than the trainer, and may be a version behind. The gradient
is then off-policy by `r = exp(trainer - sampler)` for each token, which weighing by `min(r, cap)` corrects with
bounded variance (truncated importance sampling); masking drops the tokens on which the two disagree most.

Axes: B rows of a micro-batch, T completion tokens.
"""

from __future__ import annotations

import torch

from .config import TrainConfig

_FURTHEST = 20.0
"""Nats that the trainer may find a token more probable than the sampler did, where nothing is corrected. TRL bounds the
ratios of `vespo` there, too. From 89 on a ratio is infinite in float32; clipped, its gradient is 0 times infinity."""


def importance_weights(trainer_BT: torch.Tensor, sampler_BT: torch.Tensor, config: TrainConfig) -> torch.Tensor:
    """[B, T] weights of the tokens' advantages, from the log-probabilities of both: finite, however far they are apart.

    `truncate`: `min(r, cap)`. `mask`: `r` where `1/cap <= r <= cap`, else 0.
    """
    ratio_BT = torch.exp(trainer_BT - sampler_BT)
    if config.importance_correction == "truncate":
        return ratio_BT.clamp(max=config.importance_cap)
    within_BT = (ratio_BT <= config.importance_cap) & (ratio_BT >= 1 / config.importance_cap)
    # Not `ratio * within`: above e^88 the ratio is infinite in float32, and infinity times 0 is no number.
    return torch.where(within_BT, ratio_BT, 0.0)


def correct(inputs: dict[str, torch.Tensor], trainer_BT: torch.Tensor, config: TrainConfig) -> None:
    """Weigh the advantages of a micro-batch in place, before TRL's loss reads them. Without a correction no ratio is
    larger than e^20, which no clip leaves, so that one token cannot make the whole gradient no number.

    Every one of TRL's losses is linear in the advantages for a positive weight, so a weight on them is a weight on the
    token's loss. The ratio that is clipped then starts at 1: it no longer holds what the correction has taken care of.
    What TRL masks by the sampler's probabilities (`off_policy_mask_threshold`) still sees those.
    """
    sampler_BT = inputs["sampling_per_token_logps"] = inputs["old_per_token_logps"]
    if config.importance_correction == "none":
        inputs["old_per_token_logps"] = torch.maximum(sampler_BT, trainer_BT - _FURTHEST)
        return
    weights_BT = importance_weights(trainer_BT, sampler_BT, config)
    inputs["advantages"] = inputs["advantages"].unsqueeze(1) * weights_BT
    inputs["old_per_token_logps"] = trainer_BT
