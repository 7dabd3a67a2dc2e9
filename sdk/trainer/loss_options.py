"""TRL's losses by their names there, and which options each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

LossType = Literal["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]
BY_TOKENS_OF_THE_STEP = ("dapo", "cispo", "vespo")
"""Losses that TRL divides by the sampled tokens of the whole step; it averages the others within each micro-batch."""

_UNREAD = {"cispo": ("delta", "clip_low"), **dict.fromkeys(("sapo", "vespo"), ("delta", "clip_low", "clip_high"))}
"""Of the losses that weigh ratios in a way of their own, what they do not read of how the others clip them."""
_OF_ONE_LOSS = {
    "sapo": ("sapo_temperature_pos", "sapo_temperature_neg"),
    "vespo": ("vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg"),
}


class LossChoice(Protocol):
    """What of a `TrainConfig` decides the loss."""

    @property
    def loss_type(self) -> LossType: ...
    @property
    def clip_low(self) -> float: ...
    @property
    def clip_high(self) -> float: ...
    @property
    def kl_coefficient(self) -> float: ...
    @property
    def importance_correction(self) -> str: ...
    @property
    def trl(self) -> Mapping[str, Any]: ...


def sampling_level(chosen: LossChoice) -> str:
    """Whether ratios are of tokens or of rows (`sequence`; GSPO, arXiv 2507.18071). LUSPO's are of rows."""
    default = "sequence" if chosen.loss_type == "luspo" else "token"
    return str(chosen.trl.get("importance_sampling_level", default))


def check_loss(chosen: LossChoice, defaults: Mapping[str, Any]) -> None:
    """Raises `ValueError` for options that the loss does not read, or reads as something else.

    `defaults`: those of the clips, which every config has.
    """
    loss, level = chosen.loss_type, sampling_level(chosen)
    if level not in ("token", "sequence"):
        raise ValueError(f"trl's importance_sampling_level is {level!r}; choose 'token' or 'sequence'")
    if loss == "luspo" and level != "sequence":
        raise ValueError("loss_type luspo weighs whole rows; leave trl's importance_sampling_level out")
    if loss == "vespo" and level != "token":
        raise ValueError("loss_type vespo makes its ratios of rows itself; leave trl's importance_sampling_level out")
    if loss in _UNREAD and chosen.importance_correction != "none":
        raise ValueError(
            f"importance_correction would hide from loss_type {loss} the ratios that it weighs itself; set it to none"
        )
    if (threshold := chosen.trl.get("off_policy_mask_threshold")) is not None and threshold < 0:
        raise ValueError(f"trl's off_policy_mask_threshold is {threshold}; give a mean difference in nats, 0 or more")
    if chosen.trl.get("use_bias_correction_kl") and not chosen.kl_coefficient:
        raise ValueError("trl's use_bias_correction_kl does nothing while kl_coefficient is 0; leave it out")
    if loss == "cispo" and chosen.clip_high < 1:
        raise ValueError(
            f"clip_high is {chosen.clip_high}, and loss_type cispo takes it as the largest weight of a ratio, which is "
            "1 on policy; set clip_high to 5.0, as TRL advises, or another number of at least 1"
        )
    of_others = [name for owner, names in _OF_ONE_LOSS.items() if owner != loss for name in names]
    for name in (*_UNREAD.get(loss, ()), *of_others):
        if name in chosen.trl or (name in defaults and getattr(chosen, name) != defaults[name]):
            raise ValueError(f"{name} does nothing in loss_type {loss}; leave it out, or choose another loss_type")
