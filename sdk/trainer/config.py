"""All options of a training run, with defaults that suit the embedded model on two CPU cores: the quickstart's."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors import ConfigError
from ..policies.protocol import LOWEST_TEMPERATURE
from ..policies.tool_prompt import TrainedToolPrompt, as_trained
from ..policies.vllm.vllm_options import VllmOptions
from ..rollouts.limits import Limits
from .advantages import Baseline, Scale

# ---------------------------------------------------------------------------------------------------------------------
# What may be handed through to TRL's GRPOConfig by the option `trl`, checked before anything is spent.
#
# TRL itself would look at most of these values when the first step of GRPO begins: after the warm start, or never.

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


# ---------------------------------------------------------------------------------------------------------------------

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


# ---------------------------------------------------------------------------------------------------------------------

_MAY_HOLD_KEYS = ("vllm.environment", "vllm.urls")
"""Options whose values no error shows."""

DEFAULT_WARM_START_STEPS = 10
"""80 demonstrations: enough for the form of a call. What is left is for the reinforcement to win."""
_TASKS_IN_A_PART = 4
"""As many groups as a small machine's memory holds at a time."""


class TrainConfig(BaseModel):
    """Options of `sdk.train`. Example: `TrainConfig(grpo_steps=40, group_size=16, learning_rate=1e-6)`"""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    seed: int = Field(default=0, ge=0, lt=2**32)

    tool_prompt: TrainedToolPrompt = "full"
    """How much of the tools the prompts show, of demonstrations, rollouts and measurements: `full` schemas, their
    `names` only, or `none`. What is not shown has to come into the weights. Several by their shares, for example
    `{"full": 0.5, "names": 0.5}`: each demonstration and each group of rollouts draws one, and it is measured with the
    longest. The model's folder remembers it: evaluating and serving show as much."""

    heldout: float | int = Field(default=0.2, gt=0)
    """Held-out tasks: a share below 1, or a number of tasks. Ignored where tasks carry a `split` tag."""
    max_heldout: int | None = Field(default=None, ge=1)
    """Evaluate on at most this many held-out tasks, spread evenly over them; all where None."""
    validation: float | int | None = Field(default=None, ge=0)
    """Tasks kept aside, on which the weights are chosen that the run ends with: a share of the training families, or a
    number of tasks; they are not trained on. Where tasks carry a `split` tag, those tagged `validation`, whatever the
    number. None: those tagged, else about 15 % of the training tasks (see `sdk.tasks.keep_aside`). 0: none, the run
    ends with its last weights, also where they are worse than those it began with."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Measure success on the validation tasks, greedily, before the first step of GRPO and after every so many; never
    where None. The learning curve and the metrics have it, and an alarm is raised where the reward rises and it does
    not. The held-out tasks are not touched."""

    probe_tasks: int = Field(default=4, ge=0)
    """Before training, degenerate policies try to earn the reward on so many training tasks, and one that can stops the
    run; 0 leaves that out. See `sdk.probe`."""
    allow_probes: tuple[str, ...] = ()
    """Probes that may be rewarded, by name, where one of them is right: for example `("echoes",)` where the answer is
    what a tool returns."""

    warm_start_steps: int | None = Field(default=None, ge=0)
    """Optimiser steps on demonstrations before GRPO; 0 skips the warm start. None: 10 where training tasks have
    demonstrations, else 0."""
    warm_start_tasks: int | None = Field(default=None, ge=1)
    """Use demonstrations of at most this many training tasks; all where None."""
    warm_start_batch: int = Field(default=8, ge=1)
    warm_start_learning_rate: float = Field(default=2e-4, gt=0)

    grpo_steps: int = Field(default=26, ge=0)
    """Optimiser steps of GRPO; 0 stops after the warm start."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Tasks in one step. With few of them a step rests on one or two groups with a signal, and unlearns what the others
    could do. Where it is not set and there are fewer training tasks: all of them."""
    group_size: int = Field(default=6, ge=2)
    """Rollouts of one task in one step. They are compared with each other, so at least two."""
    micro_batches: int | None = Field(default=None, ge=1)
    """Parts of a step that are forwarded one after the other. More take less memory, and forward what the parts
    share (the tools' part of the prompt) once in each. Must divide `prompts_per_step`. None: as few as have at most
    four tasks in each, or 1 where `tokens_per_micro_batch` plans them."""
    tokens_per_micro_batch: int | None = Field(default=None, ge=1)
    """Plan the parts of a step by size: rows go into a part until it would have more than so many distinct tokens (with
    `shared_prefix=False`: tokens with padding), so that memory is bounded however long rollouts get. A rollout that
    is larger by itself is a part of its own, and counted in the metrics. None: `micro_batches` whole groups."""
    gradient_checkpointing: bool = False
    """Keep a layer's input alone and compute the rest of it again in the backward pass: a fraction of the memory for a
    third more arithmetic; the same gradients."""
    bf16: bool = False
    """Forward and backward passes in bfloat16 by autocast. Weights, gradients and the optimiser stay in float32, so
    that small updates do not round to nothing."""
    curriculum: str | None = None
    """A tag of the tasks, for example `intent`: the warm start takes the kinds in turn, and GRPO's steps take more
    tasks of the kinds whose latest groups differed in score. None: every task once in each epoch."""
    tiers: str | None = None
    """A tag that ranks the tasks, for example `tier`: GRPO begins with the tasks of its lowest value, and takes those
    of the next one in when the success of the highest one so far reaches `tier_success`. Tools that only the tasks of a
    tier show come in with it."""
    tier_success: float = Field(default=0.7, gt=0, le=1)
    """The share of successes, over the latest eight groups of the highest tier so far, that opens the next one."""
    difficulty_filter: tuple[float, float] | None = None
    """A share of successes from and to, for example `(0.1, 0.9)`: a task whose latest group was below or above is left
    out of GRPO's steps for `difficulty_rest` steps. Counted in the metrics."""
    difficulty_rest: int = Field(default=20, ge=1)
    domain: str | None = None
    """A tag that names the domain of a task, where several are mixed: advantages are divided by the standard deviation
    in their domain in place of their group's, so that no domain drowns another."""
    lora_rank: int = Field(default=0, ge=0)
    """0 trains all weights. Above it low-rank adapters of all linear layers are trained, in the warm start and in GRPO,
    and the weights stay (LoRA, arXiv 2106.09685): a fraction of the optimiser's memory, at about ten times the rate."""
    lora_alpha: float | None = Field(default=None, gt=0)
    """What an adapter adds is multiplied by `lora_alpha / lora_rank`; twice the rank where None."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Of GRPO. With three times as much, or without a rise, the embedded model unlearns within four steps kinds of
    tasks that resemble others, on most seeds: Adam's first steps are its largest and noisiest."""
    learning_rate_rise: int | None = Field(default=None, ge=0)
    """Steps of GRPO until the learning rate is reached; of a rise of 3 the first has a quarter of it. None: a sixth of
    `grpo_steps`, or 0 beside a schedule in `trl`."""
    learning_rate_fall: int | None = Field(default=None, ge=0)
    """Steps at the end of GRPO over which the rate falls towards 0, so that the last steps' noise is averaged out.
    None: a third of `grpo_steps`, or 0 beside a schedule in `trl`."""
    scale_advantages: Scale = "std"
    """`std`: divide a group's centred rewards by their standard deviation (GRPO); `none`: do not (Dr. GRPO)."""
    baseline: Baseline = "mean"
    """What a rollout's reward is compared with: the mean of its group, or of the others in it (`leave_one_out`)."""
    advantages: Literal["rollout", "turn"] = "rollout"
    """`rollout`: every token of a rollout has the advantage of its score. `turn`: those of a turn have that of what was
    earned from there on, by the `turn_rewards` of the verdict (process supervision, arXiv 2402.03300, section 4.1.3).
    Every turn is then a row: losses that average by rows (`grpo`, `dr_grpo`) weigh a long rollout by its turns."""
    negative_weight: float = Field(default=1.0, ge=0)
    """What advantages below zero are multiplied with. Below 1 the policy learns more from what worked than from what
    did not, which keeps a small model whole at rates that make a short run pay; 0 learns from successes alone."""
    resample_rounds: int = Field(default=0, ge=0)
    """Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups without signal are replaced by groups of other
    tasks, in at most so many further rounds of a step. All rollouts are kept and counted."""
    mask_cut_off: bool = False
    """Do not train rollouts that a token limit ended (DAPO, section 3.4). They count in their group's baseline."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from a reference: the weights with which GRPO began. It holds for every rollout, those
    of groups without signal too, which keeps kinds of tasks alive that are all right or all wrong for a while; unless
    `resample_rounds` replaces these. Takes memory for a second model."""
    reference_every: int | None = Field(default=None, ge=1)
    """Take the present weights as the reference every so many steps; never where None."""
    importance_correction: Literal["none", "truncate", "mask"] = "none"
    """For tokens to which trainer and sampler give different probabilities: weigh them by the ratio, at most
    `importance_cap` (`truncate`), or leave them out where the ratio is above the cap or below 1/cap (`mask`). The clip
    then sees the trainer's own probabilities."""
    importance_cap: float = Field(default=2.0, gt=1)
    loss_type: LossType = "dapo"
    """TRL's loss by its name there: GRPO's (arXiv 2402.03300) averaged by rows (`grpo`), by tokens (`dapo`, arXiv
    2503.14476; `bnpo`: those of rows in the loss), or by a constant (`dr_grpo`, arXiv 2503.20783); `cispo` (arXiv
    2506.13585), `sapo` (arXiv 2511.20347), `luspo` (arXiv 2602.05261), `vespo` (arXiv 2602.10693). GSPO (arXiv
    2507.18071) is `grpo` with `trl={"importance_sampling_level": "sequence"}`."""
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    """The upper clip may be wider than the lower one (DAPO, section 3.1). In `cispo`: the largest weight of a ratio,
    such as 5.0."""
    temperature: float = Field(default=1.0, ge=LOWEST_TEMPERATURE)
    shared_prefix: bool = True
    """Forward each distinct token of a group once. Off: TRL's padded forward."""
    trl: dict[str, Any] = Field(default_factory=dict)
    """Further options of TRL's GRPOConfig by their names there: those of the optimiser, its schedule and the
    clipping, for example `{"max_grad_norm": 0.5}`. Options that the rollouts decide are refused. `entropy_coef` holds
    for every rollout, as `kl_coefficient` does. `top_entropy_quantile` is one of the tokens that a part forwards: those
    of groups without signal are among them where `kl_coefficient` or `entropy_coef` is set."""

    allow_destructive: tuple[str, ...] = ()
    """Names or patterns of destructive tools that training may call for real. Without them, a live server whose tools
    say that they may destroy something is refused; simulated ones are not asked."""

    limits: Limits = Limits()
    concurrency: int = Field(default=64, ge=1)
    """The most rollouts in flight at once; fewer while the policy's cache is full or servers give way."""
    max_staleness: int = Field(default=0, ge=0)
    """How many versions old the weights may be that sampled a token. Above 0 the rollouts of so many later steps are
    begun while the trainer works; 0: sampling and training take turns."""
    retries: int = Field(default=0, ge=0)
    """How often a rollout of GRPO is played again after the engine, a server or the time broke it. The broken attempts
    are kept in `rollouts/grpo_broken.jsonl`."""
    branches: int = Field(default=0, ge=0)
    """Further continuations at each branch point of a rollout: the same conversation and a copy of its world, played on
    several times. They are compared with each other, and share their past in training. 0: rollouts do not branch."""
    branch_points: int = Field(default=1, ge=1)
    """Branch points of each rollout."""
    branch_where: Literal["uncertain", "random"] = "uncertain"
    """At the turns whose tokens were least probable on average, or at any; never at the first."""
    engine: Literal["embedded", "vllm"] = "embedded"
    """What samples: the engine in this process, or vLLM, which is started or found as `vllm` says."""
    engine_restarts: int = Field(default=2, ge=0)
    """How often the embedded engine goes on after a failure, in all. The rollouts that it was speaking in are played
    again, up to `retries` times, or left unscored; the report says how often. For vLLM: `vllm.max_restarts`."""
    vllm: VllmOptions = VllmOptions()
    checkpoint_every: int = Field(default=10, ge=1)
    """GRPO steps between checkpoints. A killed run repeats at most this many."""
    weights_digests: Literal["published", "kept"] = "published"
    """Which weights have a digest in the evidence: every version that is sampled from, so that a rollout is tied to its
    weights (each step then hashes what is trained, at 1 to 2 GB a second), or only the files that the run keeps."""
    success_threshold: float = 1.0
    """A rollout whose score reaches this counts as a success in the report."""

    audits_per_step: int = Field(default=0, ge=0)
    """Rollouts of a step that the policy also audits, each in a group of `group_size`, with advantages of their own: it
    learns to call out wrong answers in the same run. Half of them are wrong ones; fewer are taken where there are not
    enough. 0: none."""
    audit_peers: bool = False
    """Show an auditor the answers of the other rollouts of the group, too."""
    audit_scores: tuple[float, float, float] = (1.0, -1.0, -1.0)
    """What a right call, a false alarm and a missed error earn; see `sdk.judging.audit_call`."""

    alarms: Literal["warn", "stop", "off"] = "warn"
    """What to do where the reward rises and what should go with it does not, see `sdk.alarms`: note it in the metrics
    and the log, or end the run. The reward of a canary task, when it is earned, ends the run in both."""
    alarm_components: tuple[str, ...] = ()
    """Components of the verdict that should rise with the reward, such as an independent judge's in `watched`."""

    @field_validator("tool_prompt", mode="before")
    @classmethod
    def _known_tool_prompt(cls, value: Any) -> Any:
        return as_trained(value)

    @field_validator("trl")
    @classmethod
    def _known_trl_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        check_trl_options(options)
        return options

    @model_validator(mode="after")
    def _micro_batches_divide(self) -> TrainConfig:
        if self.prompts_per_step % self.parts:
            raise ValueError(f"micro_batches must divide prompts_per_step, which is {self.prompts_per_step}")
        if self.tokens_per_micro_batch is not None and self.parts > 1:
            raise ValueError(
                f"micro_batches is {self.micro_batches} beside tokens_per_micro_batch, which plans the parts itself; "
                "leave micro_batches out"
            )
        return self

    @model_validator(mode="after")
    def _loss_reads_its_options(self) -> TrainConfig:
        check_loss(self, {name: field.default for name, field in type(self).model_fields.items()})
        return self

    @model_validator(mode="after")
    def _audits_are_possible(self) -> TrainConfig:
        if self.audits_per_step % 2:
            raise ValueError(f"audits_per_step is {self.audits_per_step}; half of them are wrong answers: give an even "
                             "number")  # fmt: skip
        if not self.audits_per_step:
            for name in ("audit_peers", "audit_scores"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} does nothing while audits_per_step is 0; set it, such as 4")
        if self.audit_scores[0] <= max(self.audit_scores[1:]):
            raise ValueError(f"audit_scores is {self.audit_scores}; the first, for a right call, must be the highest")
        return self

    @model_validator(mode="after")
    def _nothing_idle(self) -> TrainConfig:
        if self.allow_probes and not self.probe_tasks:
            raise ValueError("allow_probes does nothing while probe_tasks is 0; set probe_tasks, such as 4")
        if self.alarm_components and self.alarms == "off":
            raise ValueError('alarm_components does nothing while alarms is "off"; use "warn" or "stop"')
        if self.evaluate_every is not None and (self.validation == 0 or not self.grpo_steps):
            needed = "validation is 0; set validation, such as 0.1" if self.grpo_steps else "grpo_steps is 0"
            raise ValueError(f"evaluate_every does nothing while {needed}")
        if self.reference_every is not None and not self.kl_coefficient:
            raise ValueError(
                "reference_every does nothing while kl_coefficient is 0; set kl_coefficient, such as 0.001"
            )
        restarts = type(self).model_fields["engine_restarts"].default
        if self.engine == "vllm" and self.engine_restarts != restarts:
            raise ValueError('engine_restarts does nothing while engine is "vllm"; set vllm.max_restarts')
        if self.engine != "vllm" and self.vllm != VllmOptions():
            raise ValueError('vllm does nothing while engine is "embedded"; set engine to "vllm"')
        if self.vllm.publish == "adapter" and not self.lora_rank:
            raise ValueError('vllm.publish is "adapter" while lora_rank is 0; set lora_rank, such as 16')
        if self.vllm.in_flight and self.vllm.takes_adapters(self.lora_rank):
            raise ValueError('vllm.in_flight does nothing for adapters, which never interrupt; take it out, or set '
                             'vllm.publish to "checkpoint"')  # fmt: skip
        if self.lora_alpha is not None and not self.lora_rank:
            raise ValueError("lora_alpha does nothing while lora_rank is 0; set lora_rank, such as 16")
        if self.advantages == "turn":
            self._require_plain_turns()
        if self.branches and self.domain is not None:
            raise ValueError("domain and branches cannot be used together yet; set branches to 0 or domain to None")
        if self.branch_points > 1 and not self.branches:
            raise ValueError("branch_points does nothing while branches is 0; set branches, such as 2")
        if self.branch_where != "uncertain" and not self.branches:
            raise ValueError("branch_where does nothing while branches is 0; set branches, such as 2")
        if self.difficulty_filter is not None and not 0 <= self.difficulty_filter[0] < self.difficulty_filter[1] <= 1:
            raise ValueError(
                f"difficulty_filter is {self.difficulty_filter}; give two shares that rise, such as (0.1, 0.9)"
            )
        for name, needed in (("difficulty_rest", "difficulty_filter"), ("tier_success", "tiers")):
            if getattr(self, needed) is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does nothing while {needed} is None; set {needed}, or leave {name} out")
        if self.domain is not None and self.scale_advantages == "none":
            raise ValueError(
                'domain divides advantages, and scale_advantages "none" says not to; leave one of them out'
            )
        cap = type(self).model_fields["importance_cap"].default
        if self.importance_cap != cap and self.importance_correction == "none":
            raise ValueError(
                'importance_cap does nothing while importance_correction is "none"; use "truncate" or "mask"'
            )
        return self

    def _require_plain_turns(self) -> None:
        for name in ("branches", "domain", "baseline"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f'{name} says how rollouts are compared, and advantages "turn" compares turns; leave one out'
                )

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
        if (self.learning_rate_rise or self.learning_rate_fall) and self._trl_has_a_schedule:
            raise ValueError(
                "learning_rate_rise and learning_rate_fall do nothing beside trl's lr_scheduler_type, "
                "lr_scheduler_kwargs or warmup_steps; give one of them"
            )
        check_schedule(self.trl, self.grpo_steps)
        return self

    @property
    def parts(self) -> int:
        """The micro-batches of a step, where they are not planned by tokens."""
        if self.micro_batches is not None:
            return self.micro_batches
        if self.tokens_per_micro_batch is not None:
            return 1
        size = self.prompts_per_step
        return next(parts for parts in range(1, size + 1) if size % parts == 0 and size // parts <= _TASKS_IN_A_PART)

    @property
    def rise_and_fall(self) -> tuple[int, int]:
        """The steps of GRPO over which the learning rate rises and falls."""
        rise, fall = (0, 0) if self._trl_has_a_schedule else (self.grpo_steps // 6, self.grpo_steps // 3)
        return (
            rise if self.learning_rate_rise is None else self.learning_rate_rise,
            fall if self.learning_rate_fall is None else self.learning_rate_fall,
        )

    @property
    def _trl_has_a_schedule(self) -> bool:
        return bool({"lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"} & set(self.trl))

    @property
    def trains_without_signal(self) -> bool:
        """Whether groups without signal have a part in the loss: the divergence from the reference or TRL's entropy
        bonus, which every token has, where there is one. Dynamic sampling leaves such groups out altogether."""
        return (self.kl_coefficient > 0 or bool(self.trl.get("entropy_coef"))) and self.resample_rounds == 0

    @classmethod
    def of(cls, config: TrainConfig | Mapping[str, Any] | str | Path | None) -> TrainConfig:
        """From a record, a mapping, a JSON file or nothing. Raises ConfigError that names the option."""
        if isinstance(config, TrainConfig):
            return config
        if isinstance(config, str | Path):
            config = _read_json(Path(config))
        if not isinstance(config, Mapping | None):
            raise ConfigError(
                f"config is a {type(config).__name__}; give a sdk.TrainConfig, a mapping or the path of a JSON file"
            )
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
    except UnicodeDecodeError:
        raise ConfigError(f"config file {str(path)!r} is no JSON: it is not text in UTF-8") from None
    if not isinstance(data, dict):
        raise ConfigError(f"config file {str(path)!r} holds a {type(data).__name__}; it must hold one JSON object")
    return data


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    problems = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            parts: dict[str, type[BaseModel]] = {"limits": Limits, "vllm": VllmOptions}
            fields = parts.get(name.rpartition(".")[0], model).model_fields
            near = difflib.get_close_matches(name.rpartition(".")[2], fields, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            problems.append(f"there is no option {name!r}; {meant}the options are {', '.join(sorted(fields))}")
            continue
        said = item["msg"].removeprefix("Value error, ")
        if not name:  # a check of several options, which names those that it is about
            problems.append(said)
        elif name.startswith(_MAY_HOLD_KEYS) or name == "vllm":
            problems.append(f"option {name}: {said}")
        else:
            problems.append(f"option {name} is {item['input']!r}: {said}")
    return "config: " + "; ".join(problems)
