"""All options of a training run, with defaults that suit the embedded model on two CPU cores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors import ConfigError
from ..rollouts.limits import Limits
from .advantages import Baseline, Scale

TRL_OPTIONS = frozenset(
    {
        *("adam_beta1", "adam_beta2", "adam_epsilon", "optim", "optim_args", "weight_decay", "max_grad_norm"),
        *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
        *("delta", "entropy_coef", "importance_sampling_level", "top_entropy_quantile", "use_bias_correction_kl"),
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
    validation: float | int = Field(default=0, ge=0)
    """Tasks on which the checkpoint is chosen that the run ends with: a share of the training families, or a number of
    tasks; they are not trained on. Where tasks carry a `split` tag, those tagged `validation`, whatever the number. 0:
    nothing is chosen, the last weights are the result."""

    probe_tasks: int = Field(default=4, ge=0)
    """Before training, degenerate policies try to earn the reward on so many training tasks, and one that can stops the
    run; 0 leaves that out. See `sdk.probe`."""
    allow_probes: tuple[str, ...] = ()
    """Probes that may be rewarded, by name, where one of them is right: for example `("echoes",)` where the answer is
    what a tool returns."""

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
    curriculum: str | None = None
    """A tag of the tasks, for example `intent`: the warm start takes the kinds in turn, and GRPO's steps take more
    tasks of the kinds whose latest groups differed in score. None: every task once in each epoch."""
    learning_rate: float = Field(default=2e-5, gt=0)
    learning_rate_rise: int = Field(default=0, ge=0)
    """Steps of GRPO until the learning rate is reached; of a rise of 3 the first has a quarter of it. Adam's first
    steps are its largest and noisiest."""
    learning_rate_fall: int = Field(default=0, ge=0)
    """Steps at the end of GRPO over which the rate falls towards 0, so that the last steps' noise is averaged out."""
    scale_advantages: Scale = "std"
    """`std`: divide a group's centred rewards by their standard deviation (GRPO); `none`: do not (Dr. GRPO)."""
    baseline: Baseline = "mean"
    """What a rollout's reward is compared with: the mean of its group, or of the others in it (`leave_one_out`)."""
    negative_weight: float = Field(default=1.0, ge=0)
    """What advantages below zero are multiplied with. Below 1 the policy learns more from what worked than from what
    did not, which keeps a small model whole at rates that make a short run pay; 0 learns from successes alone."""
    resample_rounds: int = Field(default=0, ge=0)
    """Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups without signal are replaced by groups of other
    tasks, in at most so many further rounds of a step. All rollouts are kept and counted."""
    mask_cut_off: bool = False
    """Do not train rollouts that a token limit ended (DAPO, section 3.4). They count in their group's baseline."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from a reference: the weights with which GRPO began. Takes memory for a second model."""
    reference_every: int | None = Field(default=None, ge=1)
    """Take the present weights as the reference every so many steps; never where None."""
    importance_correction: Literal["none", "truncate", "mask"] = "none"
    """For tokens to which trainer and sampler give different probabilities: weigh them by the ratio, at most
    `importance_cap` (`truncate`), or leave them out where the ratio is above the cap or below 1/cap (`mask`). The clip
    then sees the trainer's own probabilities."""
    importance_cap: float = Field(default=2.0, gt=1)
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

    allow_destructive: tuple[str, ...] = ()
    """Names or patterns of destructive tools that training may call for real. Without them, a live server whose tools
    say that they may destroy something is refused; simulated ones are not asked."""

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

    @model_validator(mode="after")
    def _nothing_idle(self) -> TrainConfig:
        if self.reference_every is not None and not self.kl_coefficient:
            raise ValueError(
                "reference_every does nothing while kl_coefficient is 0; set kl_coefficient, such as 0.001"
            )
        cap = type(self).model_fields["importance_cap"].default
        if self.importance_cap != cap and self.importance_correction == "none":
            raise ValueError(
                'importance_cap does nothing while importance_correction is "none"; use "truncate" or "mask"'
            )
        return self

    @field_validator("allow_probes")
    @classmethod
    def _known_probes(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from ..probing.degenerate import PROBES

        known = [probe.name for probe in PROBES]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"there is no probe {unknown[0]!r}; the probes are {', '.join(known)}")
        return names

    @model_validator(mode="after")
    def _one_schedule(self) -> TrainConfig:
        own = self.learning_rate_rise or self.learning_rate_fall
        if own and {"lr_scheduler_type", "warmup_steps"} & set(self.trl):
            raise ValueError(
                "learning_rate_rise and learning_rate_fall do nothing beside trl's lr_scheduler_type or warmup_steps; "
                "give one of them"
            )
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
