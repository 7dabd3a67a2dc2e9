"""All options of a training run, with defaults that suit the embedded model on two CPU cores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors import ConfigError
from ..rollouts.limits import Limits

TRL_OPTIONS = frozenset(
    {
        *("adam_beta1", "adam_beta2", "adam_epsilon", "optim", "optim_args", "weight_decay", "max_grad_norm"),
        *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
        *("delta", "entropy_coef", "importance_sampling_level", "top_entropy_quantile"),
    }
)
"""What may be handed through to TRL. Everything else there is set by this config, or belongs to TRL's own sampling and
rewards, which are not used: it would do nothing, or something else than it says."""


class TrainConfig(BaseModel):
    """Options of `sdk.train`. Example: `TrainConfig(grpo_steps=40, group_size=16, learning_rate=1e-6)`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0

    heldout: float | int = Field(default=0.2, gt=0)
    """Held-out tasks: a share below 1, or a number of tasks. Ignored where tasks carry a `split` tag."""
    max_heldout: int | None = Field(default=None, ge=1)
    """Evaluate on at most this many held-out tasks, spread evenly over them; all where None."""

    warm_start_steps: int = Field(default=12, ge=0)
    """Optimiser steps on demonstrations before GRPO; 0 skips the warm start."""
    warm_start_tasks: int | None = Field(default=None, ge=1)
    """Use demonstrations of at most this many training tasks; all where None."""
    warm_start_batch: int = Field(default=8, ge=1)
    warm_start_learning_rate: float = Field(default=1e-4, gt=0)

    grpo_steps: int = Field(default=20, ge=0)
    """Optimiser steps of GRPO; 0 stops after the warm start."""
    prompts_per_step: int = Field(default=4, ge=1)
    group_size: int = Field(default=8, ge=2)
    """Rollouts of one task in one step. They are compared with each other, so at least two."""
    micro_batches: int = Field(default=1, ge=1)
    """Parts of a step that are forwarded one after the other. More take less memory, and forward what the parts
    share (the tools' part of the prompt) once in each. Must divide `prompts_per_step`."""
    learning_rate: float = Field(default=2e-5, gt=0)
    scale_advantages: Literal["std", "none"] = "std"
    """`std`: divide a group's centred rewards by their standard deviation (GRPO); `none`: do not (Dr. GRPO)."""
    loss_type: Literal["grpo", "dapo", "bnpo", "dr_grpo"] = "dapo"
    """TRL's loss by its name there."""
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    """The upper clip may be wider than the lower one (DAPO, arXiv 2503.14476, section 3.1)."""
    temperature: float = Field(default=1.0, gt=0)
    shared_prefix: bool = True
    """Forward each distinct token of a group once. Off: TRL's padded forward."""
    trl: dict[str, Any] = Field(default_factory=dict)
    """Further options of TRL's GRPOConfig by their names there: those of the optimiser, its schedule and the
    clipping, for example `{"max_grad_norm": 0.5}`. Options that the rollouts decide are refused."""

    limits: Limits = Limits()
    concurrency: int = Field(default=64, ge=1)
    """Rollouts in flight at once."""
    checkpoint_every: int = Field(default=10, ge=1)
    """GRPO steps between checkpoints. A killed run repeats at most this many."""
    success_threshold: float = 1.0
    """A rollout whose score reaches this counts as a success in the report."""

    @field_validator("trl")
    @classmethod
    def _known_trl_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(options) - TRL_OPTIONS)
        if unknown:
            raise ValueError(f"{unknown[0]!r} cannot be handed through; possible are {', '.join(sorted(TRL_OPTIONS))}")
        return options

    @model_validator(mode="after")
    def _micro_batches_divide(self) -> TrainConfig:
        if self.prompts_per_step % self.micro_batches:
            raise ValueError(f"micro_batches must divide prompts_per_step, which is {self.prompts_per_step}")
        return self

    @classmethod
    def of(cls, config: TrainConfig | Mapping[str, Any] | str | Path | None) -> TrainConfig:
        """From a record, a mapping, a JSON file or nothing. Raises ConfigError that names the option."""
        if isinstance(config, TrainConfig):
            return config
        if isinstance(config, str | Path):
            config = _read_json(Path(config))
        try:
            return cls.model_validate(dict(config or {}))
        except ValidationError as error:
            raise ConfigError(_explain(error, cls)) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"config file {str(path)!r} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"config file {str(path)!r} is no JSON: line {error.lineno}: {error.msg}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"config file {str(path)!r} holds a {type(data).__name__}; it must hold one JSON object")
    return data


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    problems = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            fields = Limits.model_fields if name.startswith("limits.") else model.model_fields
            problems.append(f"there is no option {name!r}; the options are {', '.join(sorted(fields))}")
        else:
            problems.append(f"option {name} is {item['input']!r}: {item['msg']}")
    return "config: " + "; ".join(problems)
