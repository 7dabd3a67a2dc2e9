"""What may be handed through to TRL's GRPOConfig by the option `trl`, checked before anything is spent.

TRL itself would look at most of these values when the first step of GRPO begins: after the warm start, or never.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_SCHEDULE = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")
_WITHOUT_ARGUMENTS = ("constant", "constant_with_warmup")
_WATCHING = ("reduce_lr_on_plateau", "greedy")
"""Schedules that go by an evaluated loss, of which there is none here."""

Above0 = Annotated[float, Field(gt=0)]
From0 = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class TrlOptions(BaseModel):
    """Names and defaults are TRL's (a contract test compares them), but for the schedule, which is constant here."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    optim: str = "adamw_torch_fused"
    optim_args: str | None = None
    adam_beta1: Decay = 0.9
    adam_beta2: Decay = 0.999
    adam_epsilon: Above0 = 1e-8
    weight_decay: From0 = 0.0
    max_grad_norm: From0 = 1.0
    """0: gradients are not clipped."""

    lr_scheduler_type: str = "constant"
    lr_scheduler_kwargs: dict[str, Any] | None = None
    warmup_steps: From0 = 0
    """Below 1 a share of the steps."""

    delta: Above0 | None = None
    entropy_coef: float = 0.0
    importance_sampling_level: str = "token"
    off_policy_mask_threshold: float | None = None
    router_aux_loss_coef: From0 | None = None
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] = 1.0
    use_bias_correction_kl: bool = True
    sapo_temperature_pos: Above0 = 1.0
    sapo_temperature_neg: Above0 = 1.05
    vespo_k_pos: From0 = 2.0
    vespo_k_neg: From0 = 3.0
    vespo_lambda_pos: From0 = 3.0
    vespo_lambda_neg: From0 = 2.0


TRL_OPTIONS = frozenset(TrlOptions.model_fields)
"""Those of the optimiser, its schedule and the loss. Everything else there is set by `TrainConfig`, or belongs to TRL's
own sampling and rewards, which are not used: it would do nothing, or something else than it says."""


def check_trl_options(options: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a name or a value that cannot be handed through."""
    if unknown := sorted(set(options) - TRL_OPTIONS):
        raise ValueError(f"{unknown[0]!r} cannot be handed through; possible are {', '.join(sorted(TRL_OPTIONS))}")
    try:
        TrlOptions.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{first['loc'][0]} is {first['input']!r}: {first['msg']}") from None
    if "optim" in options:
        _check_optimiser(options["optim"])


def check_schedule(options: Mapping[str, Any], steps: int) -> None:
    """Raises `ValueError` for a schedule of the learning rate that cannot be made, or of which a part does nothing.

    `steps`: of the whole run.
    """
    if not set(_SCHEDULE) & set(options):
        return
    kind, arguments = options.get("lr_scheduler_type", "constant"), options.get("lr_scheduler_kwargs")
    warmup = options.get("warmup_steps", 0)
    if kind == "constant" and warmup:
        raise ValueError(
            "trl's warmup_steps does nothing while lr_scheduler_type is 'constant'; set that to "
            "'constant_with_warmup', or take learning_rate_rise in its place"
        )
    if kind in _WITHOUT_ARGUMENTS and arguments:
        raise ValueError(f"trl's lr_scheduler_kwargs does nothing while lr_scheduler_type is {kind!r}; leave it out")
    # Only where it is asked for: these take seconds to import.
    import torch
    from transformers.optimization import get_scheduler
    from transformers.trainer_utils import SchedulerType

    choices = [one.value for one in SchedulerType if one.value not in _WATCHING]
    if kind not in choices:
        raise ValueError(f"trl's lr_scheduler_type is {kind!r}; choose one of {', '.join(choices)}")
    try:
        get_scheduler(
            kind,
            torch.optim.SGD([torch.zeros(1)]),
            num_warmup_steps=int(warmup) if warmup >= 1 else math.ceil(steps * warmup),
            num_training_steps=steps,
            scheduler_specific_kwargs=arguments,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"trl's lr_scheduler_type {kind!r} cannot be made with lr_scheduler_kwargs {arguments}: {error}"
        ) from None


def _check_optimiser(optimiser: str) -> None:
    if "8bit" in optimiser and find_spec("bitsandbytes") is None:
        raise ValueError(
            f"the optimiser {optimiser!r} is that of bitsandbytes, which is not installed; "
            "run `pip install bitsandbytes`, or use 'adamw_torch'"
        )
    from transformers.training_args import OptimizerNames  # as above

    choices = [one.value for one in OptimizerNames]
    if optimiser not in choices:
        raise ValueError(f"optim is {optimiser!r}; choose one of {', '.join(choices)}")
