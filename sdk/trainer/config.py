"""All options of a training run, with defaults that suit the embedded model on two CPU cores.

Options whose meaning is that of TRL's `GRPOConfig` have its names. Where a name differs, so does the meaning.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from mcp_bridge.errors import kind_of
from mcp_bridge.safe_text import json_problem, strict_json

from ..errors import ConfigError
from ..policies.protocol import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE
from ..policies.tool_prompt import TrainedToolPrompt, as_trained
from ..policies.vllm.vllm_options import MOST_VLLM_TEMPERATURE, Dtype, VllmOptions
from ..records import Options
from ..rollouts.limits import Limits

WARM_START_PASSES = 3
"""Passes over the demonstrations, chosen on two systems that are measured nowhere else: docs/experiments.md."""
FEWEST_WARM_START_STEPS, MOST_WARM_START_STEPS = 10, 40
_TASKS_IN_A_PART = 4
"""How many groups fit into the memory of a small machine at a time."""


class _Options(Options):
    _needs: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    """Options that do nothing while another one is off: 0, "none" or "off"; and how to switch that on."""

    @model_validator(mode="after")
    def _nothing_unneeded(self) -> Self:
        for name, other, fix in self._needs:
            value = getattr(self, other)
            if value in (0, "none", "off") and self.changed_from_default(name):
                is_ = f'"{value}"' if isinstance(value, str) else 0
                raise ValueError(f"{name} does nothing while {other} is {is_}; {fix}")
        return self

    def changed_from_default(self, *names: str) -> list[str]:
        """Those of these options that are not at their defaults."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]


# ---------------------------------------------------------------------------------------------------------------------


class EvaluationOptions(_Options):
    """Which tasks a run is measured on, when, and what counts as a success."""

    heldout: float | int = Field(default=0.2, gt=0)
    """Held-out tasks: a share below 1, or a number of tasks. Ignored where tasks carry a `split` tag."""
    max_heldout: int | None = Field(default=None, ge=1)
    """Evaluate on at most this many held-out tasks, spread evenly over them; all where None."""
    max_served: int = Field(default=8, ge=0)
    """At the end, serve the saved model and ask it at most this many of the held-out tasks once more, through the
    endpoint and with a client's defaults. The report has their row. 0: not."""
    validation: float | int | None = Field(default=None, ge=0)
    """Tasks kept aside, on which the weights are chosen that the run ends with: a share of the training families, or a
    number of tasks; they are not trained on. Where tasks carry a `split` tag, those tagged `validation`, whatever the
    number. None: those tagged, else about 15 % of the training tasks (see `sdk.tasks.keep_aside`). 0: none, the run
    ends with its last weights, also where they are worse than those it began with."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Measure success on the validation tasks, greedily, before the first step of GRPO and after every so many; where
    None at the checkpoints from which the weights are chosen, unless `early_stopping_patience` is 0. The learning curve
    and the metrics have it. Where it is set, an alarm is raised if the reward rises and success does not. The held-out
    tasks are not touched."""
    early_stopping_patience: int = Field(default=2, ge=0)
    """End GRPO where so many measurements in a row, on the validation tasks, are below the best one before them, by a
    tenth of the tasks and two tasks at least; 0: never. The name is that of transformers' `EarlyStoppingCallback`.
    Where `eval_steps` is None they are made at the checkpoints from which the weights are chosen in the end, which
    costs nothing more. Training ends at a checkpoint (`grpo.save_steps`); measurements in which a task could not be
    scored do not count."""
    strict_tools: bool | None = None
    """Hold the calls of measured rollouts to the tools and their schemas. Who serves the model then does so by default,
    too: it is served as it was measured. None: where a grammar can be made of the model's calls. Rollouts that train
    have an option of their own, `rollouts.strict_tools`."""
    success_threshold: float = 1.0
    """A rollout whose score reaches this counts as a success, in the report and in the choice of tasks."""

    def measures_meanwhile(self) -> dict[str, int]:
        """The options that someone set so that validation tasks are measured during GRPO."""
        asked = self.changed_from_default("eval_steps", "early_stopping_patience")
        return {name: value for name in asked if (value := getattr(self, name))}


class ProbeOptions(_Options):
    """Before training, degenerate policies try to earn the reward, and one that can stops the run. `sdk.certify` has
    more of them."""

    _needs = (("allow", "tasks", "set tasks, such as 4"),)
    tasks: int = Field(default=4, ge=0)
    """On so many training tasks; 0 leaves the probes out."""
    allow: tuple[str, ...] = ()
    """Probes that may be rewarded, by name, where one of them is right: for example `("echoes",)` where the answer is
    what a tool returns."""

    @field_validator("allow")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from ..probing.probes import PROBES

        known = [probe.name for probe in PROBES]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"there is no probe {unknown[0]!r}; the probes are {', '.join(known)}")
        return names


class WarmStartOptions(_Options):
    """Supervised training on demonstrations, before GRPO."""

    max_steps: int | None = Field(default=None, ge=0)
    """Optimiser steps; 0 skips the warm start. None: as many as three passes over the demonstrations take, 10 to 40;
    where they are yet to be found, one for each training task is counted. Without any, 0."""
    find_demonstrations: bool = True
    """Where no training task has a demonstration and the model solves less than a tenth of the tasks that it is tried
    on, search the tools for calls that the verifier pays for. See `sdk.synthesis.found_demonstrations`."""
    max_tasks: int | None = Field(default=None, ge=1)
    """Use demonstrations of at most this many training tasks; all where None."""
    batch_size: int = Field(default=8, ge=1)
    """Demonstrations in one step, over all processes."""
    learning_rate: float = Field(default=2e-4, gt=0)
    """At the first step; it falls linearly towards 0."""
    save_steps: int = Field(default=20, ge=1)
    """A checkpoint after every so many steps. A killed warm start goes on from the last one, which is removed when the
    warm start is done."""


# ---------------------------------------------------------------------------------------------------------------------

DEFAULT_SCHEDULE = "warmup_stable_decay"
_WITHOUT_ARGUMENTS = ("constant", "constant_with_warmup")
_WATCHING = ("reduce_lr_on_plateau", "greedy")
"""Schedules that go by an evaluated loss, of which there is none here."""

Scale = Literal["group", "none"]
Baseline = Literal["mean", "leave_one_out"]
LossType = Literal["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]
BY_TOKENS_OF_THE_STEP = ("dapo", "cispo", "vespo")
"""Losses that TRL divides by the sampled tokens of the whole step; it averages the others within each micro-batch."""

WEIGH_THEMSELVES = ("cispo", "sapo", "vespo")
"""Losses that weigh ratios themselves."""
_UNREAD = {"cispo": ("delta", "epsilon"), **dict.fromkeys(("sapo", "vespo"), ("delta", "epsilon", "epsilon_high"))}
"""The options of clipping that these losses do not read."""


class GrpoOptions(_Options):
    """The steps of GRPO: what is sampled for one, and what the optimiser makes of it.

    Example: `GrpoOptions(max_steps=40, num_generations=16, learning_rate=1e-6)`
    """

    _needs = (("ref_model_sync_steps", "beta", "set beta, such as 0.001"),)
    max_steps: int = Field(default=26, ge=0)
    """Optimiser steps of GRPO; 0 stops after the warm start."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Tasks in one step. With few of them a step rests on one or two groups with a signal, and unlearns what the others
    could do. Where it is not set and there are fewer training tasks: all of them that fit `batching.micro_batches`."""
    num_generations: int = Field(default=6, ge=2)
    """Rollouts of one task in one step: the size of a group. They are compared with each other, so at least two."""
    temperature: float = Field(default=1.0, ge=LOWEST_TEMPERATURE, le=HIGHEST_TEMPERATURE)
    """Of the sampling of rollouts; measurements are greedy."""
    num_iterations: int = Field(default=1, ge=1)
    """Updates on the rollouts of one step (mu in arXiv 2402.03300, algorithm 1): the ratio is clipped from the second
    on. A step stays one batch of rollouts, and `max_steps` counts batches (in TRL: updates)."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """With three times as much, or without a warmup, the embedded model unlearns within four steps kinds of tasks that
    resemble others, on most seeds: Adam's first steps are its largest and noisiest."""
    lr_scheduler_type: str = DEFAULT_SCHEDULE
    """A schedule of transformers by its name there. The default rises over the warmup, stays, and falls at the end, so
    that the last steps' noise is averaged out."""
    lr_scheduler_kwargs: dict[str, Any] | None = None
    """Arguments of the schedule. None: those of transformers; for `warmup_stable_decay` a linear fall over the last
    third of the steps, `{"num_decay_steps": 9, "decay_type": "linear"}` of 26."""
    warmup_steps: float | None = Field(default=None, ge=0)
    """Steps until the learning rate is reached; below 1 a share of them. The first step already learns: of a warmup of
    5 it has a fifth of the rate (in TRL: none). None: a sixth of the steps, or 0 for another `lr_scheduler_type`."""
    loss_type: LossType = "dapo"
    """TRL's loss by its name there: GRPO's (arXiv 2402.03300) averaged by rows (`grpo`), by tokens (`dapo`, arXiv
    2503.14476; `bnpo`: those of rows in the loss), or by a constant (`dr_grpo`, arXiv 2503.20783); `cispo` (arXiv
    2506.13585), `sapo` (arXiv 2511.20347), `luspo` (arXiv 2602.05261), `vespo` (arXiv 2602.10693). GSPO (arXiv
    2507.18071) is `grpo` with `importance_sampling_level="sequence"`."""
    epsilon: float = Field(default=0.2, gt=0)
    """The lower clip of the ratio."""
    epsilon_high: float = Field(default=0.28, gt=0)
    """The upper clip, which may be wider than the lower one (DAPO, section 3.1). In `cispo`: the largest weight of a
    ratio, such as 5.0."""
    delta: float | None = Field(default=None, gt=0)
    """A bound of the ratio also where the advantage is below zero (INTELLECT-2, arXiv 2505.07291), above
    1 + `epsilon_high`; none where None."""
    importance_sampling_level: Literal["token", "sequence"] | None = None
    """Whether ratios are of tokens or of rows. None: of tokens, and of rows in `luspo`."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the divergence from a reference: the weights with which GRPO began. It holds for every rollout, those
    of groups without signal too, which keeps kinds of tasks alive that are all right or all wrong for a while; unless
    `curriculum.dynamic_sampling_rounds` replaces these. Takes memory for a second model."""
    ref_model_sync_steps: int | None = Field(default=None, ge=1)
    """Take the present weights as the reference every so many steps, all of them (TRL's `ref_model_mixup_alpha` of 1);
    never where None."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus. It holds for every rollout, as `beta` does."""
    top_entropy_quantile: float = Field(default=1.0, gt=0, le=1)
    """Train this share of the tokens that a part of the step forwards, those of the highest entropy (arXiv 2506.01939).
    Those of groups without signal are among them where `beta` or `entropy_coef` is set."""
    advantages: Literal["rollout", "turn"] = "rollout"
    """`rollout`: every token of a rollout has the advantage of its score. `turn`: those of a turn have that of what was
    earned from there on, by the `turn_rewards` of the verdict (process supervision, arXiv 2402.03300, section 4.1.3).
    Every turn is then a row: losses that average by rows (`grpo`, `dr_grpo`) weigh a long rollout by its turns."""
    baseline: Baseline = "mean"
    """What a rollout's reward is compared with: the mean of its group, or of the others in it (`leave_one_out`)."""
    scale_rewards: Scale = "group"
    """`group`: divide a group's centred rewards by their standard deviation (GRPO); `none`: do not (Dr. GRPO)."""
    domain: str | None = None
    """A tag that names the domain of a task, where several are mixed: advantages are divided by the standard deviation
    in their domain in place of their group's, so that no domain drowns another (AgentRL, arXiv 2510.04206)."""
    mask_truncated_completions: bool = False
    """Do not train rollouts that a token limit ended (DAPO, section 3.4). They count in their group's baseline."""
    save_steps: int = Field(default=10, ge=1)
    """Steps between checkpoints. A killed run repeats at most this many."""

    @model_validator(mode="after")
    def _the_schedule_can_be_made(self) -> GrpoOptions:
        if {"lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"} & self.model_fields_set:
            check_schedule(self)
        return self

    @model_validator(mode="after")
    def _nothing_idle(self) -> GrpoOptions:
        loss, level = self.loss_type, self.importance_sampling_level
        if loss == "luspo" and level == "token":
            raise ValueError("loss_type luspo weighs whole rows; leave importance_sampling_level out")
        if loss == "vespo" and level == "sequence":
            raise ValueError("loss_type vespo makes its ratios of rows itself; leave importance_sampling_level out")
        if loss == "cispo" and self.epsilon_high < 1:
            raise ValueError(
                f"epsilon_high is {self.epsilon_high}, and loss_type cispo takes it as the largest weight of a ratio, "
                "which is 1 on policy; set epsilon_high to 5.0, as TRL advises, or another number of at least 1"
            )
        if idle := self.changed_from_default(*_UNREAD.get(loss, ())):
            raise ValueError(f"{idle[0]} does nothing in loss_type {loss}; leave it out, or choose another loss_type")
        if self.delta is not None and self.delta <= 1 + self.epsilon_high:
            raise ValueError(
                f"delta is {self.delta:g}, and TRL bounds every ratio by it: above zero the advantage counts up to a "
                f"ratio of 1 + epsilon_high = {1 + self.epsilon_high:g}; set delta above that, such as 4"
            )
        if self.domain is not None and self.scale_rewards == "none":
            raise ValueError('domain divides advantages, and scale_rewards "none" asks not to; leave one of them out')
        if self.advantages == "turn" and (other := self.changed_from_default("domain", "baseline")):
            raise ValueError(
                f'{other[0]} decides how rollouts are compared, and advantages "turn" compares turns; leave one out'
            )
        return self

    @property
    def sampling_level(self) -> Literal["token", "sequence"]:
        """Whether ratios are of tokens or of rows (`sequence`; GSPO, arXiv 2507.18071)."""
        return self.importance_sampling_level or ("sequence" if self.loss_type == "luspo" else "token")

    @property
    def weighs_ratios_itself(self) -> bool:
        """Whether the loss is about the ratios of trainer and sampler, which a correction would make 1 before."""
        return self.loss_type in WEIGH_THEMSELVES or self.sampling_level == "sequence"


# The schedule of the learning rate: transformers' by their names, but the first step already learns.
#
# A warmup of transformers begins with a rate of 0, which is a whole step of rollouts for nothing. Here the first step
# of a warmup of 5 steps has a fifth of the rate and the fifth step all of it; what follows ends as many steps later.


def settled_schedule(options: GrpoOptions) -> tuple[int, dict[str, Any] | None]:
    """The steps of the warmup and the arguments of the schedule, with numbers where `options` leave them open."""
    steps, given, arguments = options.max_steps, options.warmup_steps, options.lr_scheduler_kwargs
    if given is not None:
        warmup = int(given) if given >= 1 else math.ceil(steps * given)
    else:
        warmup = math.ceil(steps / 6) if options.lr_scheduler_type == DEFAULT_SCHEDULE else 0
    if arguments is None and options.lr_scheduler_type == DEFAULT_SCHEDULE:
        decay = min(math.ceil(steps / 3), max(0, steps + 1 - warmup))
        return warmup, {"num_decay_steps": decay, "decay_type": "linear"}
    return warmup, dict(arguments) if arguments is not None else None


def check_schedule(options: GrpoOptions) -> None:
    """Raises `ValueError` for a schedule that cannot be made, or of which a part does nothing."""
    kind, arguments = options.lr_scheduler_type, options.lr_scheduler_kwargs
    if kind == "constant" and options.warmup_steps:
        raise ValueError(
            "warmup_steps does nothing while lr_scheduler_type is 'constant'; set that to 'constant_with_warmup'"
        )
    if kind in _WITHOUT_ARGUMENTS and arguments:
        raise ValueError(f"lr_scheduler_kwargs does nothing while lr_scheduler_type is {kind!r}; leave it out")
    if kind == DEFAULT_SCHEDULE and arguments is not None and "num_stable_steps" in arguments:
        raise ValueError("lr_scheduler_kwargs has num_stable_steps, which follows from max_steps; leave it out")
    warmup, arguments = settled_schedule(options)
    decay = (arguments or {}).get("num_decay_steps", 0)
    if kind == DEFAULT_SCHEDULE and isinstance(decay, int) and max(1, warmup) + decay > max(1, options.max_steps) + 1:
        raise ValueError(
            f"a warmup of {warmup} steps and a decay of {decay} are more than max_steps, which is {options.max_steps}; "
            "lower warmup_steps or num_decay_steps of lr_scheduler_kwargs"
        )
    # Only where it is asked for: this takes seconds to import.
    from transformers.trainer_utils import SchedulerType

    choices = [one.value for one in SchedulerType if one.value not in _WATCHING]
    if kind not in choices:
        raise ValueError(f"lr_scheduler_type is {kind!r}; choose one of {', '.join(choices)}")
    try:
        rate_factor(options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"lr_scheduler_type {kind!r} cannot be made with lr_scheduler_kwargs {arguments}: {error}"
        ) from None


def rate_factor(options: GrpoOptions) -> Callable[[int], float]:
    """From a step, counted from 0, to what the learning rate is multiplied with in it."""
    import torch
    from transformers.optimization import get_scheduler

    warmup, arguments = settled_schedule(options)
    late = 1 if warmup else 0
    schedule: Any = get_scheduler(
        options.lr_scheduler_type,
        torch.optim.SGD([torch.zeros(1)], lr=options.learning_rate),  # `min_lr` and `lr_end` are divided by it
        num_warmup_steps=warmup,
        num_training_steps=options.max_steps + late,
        scheduler_specific_kwargs=arguments,
    )
    (factor,) = schedule.lr_lambdas
    return lambda step: float(factor(step + late))


# ---------------------------------------------------------------------------------------------------------------------


class BatchingOptions(_Options):
    """How the rows of a step are forwarded: what it takes of memory and time, not what is learned."""

    micro_batches: int | None = Field(default=None, ge=1)
    """Parts of a step that are forwarded one after the other. More take less memory, and forward what the parts
    share (the tools' part of the prompt) once in each. The step stays as large as it is; TRL's
    `gradient_accumulation_steps` make it larger. Must divide `grpo.prompts_per_step`. None: as few as have at most
    four tasks in each, or 1 where `tokens_per_micro_batch` plans them."""
    tokens_per_micro_batch: int | None = Field(default=None, ge=1)
    """Plan the parts of a step by size: rows go into a part until it would have more than so many distinct tokens (with
    `shared_prefix=False`: tokens with padding), so that memory is bounded however long rollouts get. A rollout that
    is larger by itself is a part of its own, and counted in the metrics. None: `micro_batches` whole groups."""
    shared_prefix: bool = True
    """Forward each distinct token of a group once. Off: TRL's padded forward."""
    gradient_checkpointing: bool = True
    """Keep a layer's input alone and compute the rest of it again in the backward pass: a fraction of the memory for a
    third more arithmetic; the same gradients."""
    offload_optimizer: bool = False
    """Keep Adam's moments in a file of the run folder while the model computes, on a CPU: 8 bytes a parameter less of
    memory, read and written once a step; the same steps. Nothing changes on a GPU."""
    bf16: bool = False
    """Forward and backward passes in bfloat16 by autocast. Weights, gradients and the optimiser stay in float32, so
    that small updates do not round to nothing."""

    @model_validator(mode="after")
    def _one_plan(self) -> BatchingOptions:
        if self.tokens_per_micro_batch is not None and (self.micro_batches or 1) > 1:
            raise ValueError(
                f"micro_batches is {self.micro_batches} beside tokens_per_micro_batch, which plans the parts itself; "
                "leave micro_batches out"
            )
        return self


class CurriculumOptions(_Options):
    """Which tasks a step takes. Without any of these: every task once in each epoch, but for those, others each time,
    that make no whole step."""

    by: str | None = None
    """A tag of the tasks, for example `intent`: the warm start takes the kinds in turn, and GRPO's steps take more
    tasks of the kinds whose latest groups differed in score."""
    tiers: str | None = None
    """A tag that ranks the tasks, for example `tier`: GRPO begins with the tasks of its lowest value, and takes those
    of the next one in when the success of the highest one so far, over its latest eight groups, reaches 0.7. Tools that
    only the tasks of a tier show come in with it."""
    difficulty_filter: tuple[float, float] | None = None
    """A share of successes from and to, for example `(0.1, 0.9)`: a task whose latest group was below or above is left
    out of GRPO's next 20 steps. Counted in the metrics."""
    dynamic_sampling_rounds: int = Field(default=0, ge=0)
    """Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups without signal are replaced by groups of other
    tasks, in at most so many further rounds of a step. All rollouts are kept and counted."""

    @field_validator("difficulty_filter")
    @classmethod
    def _shares_that_rise(cls, shares: tuple[float, float] | None) -> tuple[float, float] | None:
        if shares is not None and not 0 <= shares[0] < shares[1] <= 1:
            raise ValueError("give two shares that rise, such as (0.1, 0.9)")
        return shares


Correction = Literal["none", "token_truncate", "token_mask"]


class OffPolicyOptions(_Options):
    """How far the weights that sample may be from those that are trained, and what is done about it."""

    _needs = (("importance_sampling_clip_max", "importance_sampling_mode", 'use "token_truncate" or "token_mask"'),)
    max_off_policy_steps: int = Field(default=0, ge=0)
    """How many versions old the weights may be that sampled a token. Above 0 the rollouts of so many later steps are
    begun while the trainer works; 0: sampling and training take turns."""
    importance_sampling_mode: Correction | None = None
    """For tokens to which trainer and sampler give different probabilities: weigh them by the ratio, at most
    `importance_sampling_clip_max` (`token_truncate`), or leave them out where the ratio is above that or below one over
    it (`token_mask`). The clip then sees the trainer's own probabilities, which only further updates on the same
    rollouts move (`grpo.num_iterations`). TRL's `vllm_importance_sampling_mode`, for every sampler. None:
    `token_truncate` where sampler or trainer does not compute in float32, or may not (`sampler_dtype`, `batching.bf16`,
    servers of `vllm.urls`), else `none`; and `none` in losses that weigh these ratios themselves."""
    importance_sampling_clip_max: float = Field(default=2.0, gt=1)
    """The largest weight of a token in that correction."""
    off_policy_mask_threshold: float | None = Field(default=None, ge=0)
    """Leave out rows with an advantage below zero whose tokens are less probable in the trainer than in the sampler by
    more than so many nats on average (DeepSeek-V3.2, arXiv 2512.02556); none where None."""


class AuditOptions(_Options):
    """Audits of a step's rollouts: whether a wrong answer is called out, see `docs/verifiers.md`."""

    _needs = (("cost", "per_step", "set that, such as 4"),)
    per_step: int = Field(default=0, ge=0, multiple_of=2)
    """Rollouts of a step that the policy also audits, each in a group of `grpo.num_generations`, with advantages of
    their own: it learns to call out wrong answers in the same run. Half of them are wrong ones; fewer are taken where
    there are not enough. 0: none."""
    cost: float = Field(default=0.0, ge=0)
    """What a wrong rollout is worth less where all of its audits call out the error; the share of it where some do. It
    counts in the comparison within its group, where scores differ there, and not in the reward that is recorded. Right
    ones lose nothing."""


class RolloutOptions(_Options):
    """How the rollouts of a step are played."""

    _needs = (("branch_points", "branches", "set branches, such as 2"),)
    concurrency: int = Field(default=64, ge=1)
    """The most rollouts in flight at once; fewer while the policy's cache is full or servers give way."""
    retries: int = Field(default=0, ge=0)
    """How often a rollout of GRPO is played again after the engine, a server or the time broke it. The broken attempts
    are kept in `rollouts/grpo_broken.jsonl`."""
    branches: int = Field(default=0, ge=0)
    """Further continuations at each branch point of a rollout: the same conversation and a copy of its world, played on
    several times. They are compared with each other, and share their past in training. 0: rollouts do not branch."""
    branch_points: int = Field(default=1, ge=1)
    """Branch points of each rollout: the turns whose tokens were least probable on average, but for the first."""
    strict_tools: bool = False
    """Hold a rollout of GRPO to valid calls: where it begins one, only tokens are sampled that make it a call of a tool
    that there is, with arguments that its schema allows. The loss has the probabilities of the same distribution.
    Measurements have an option of their own, `evaluation.strict_tools`. It needs `batching.shared_prefix`, and with
    vLLM a chat template that ends replies with the tokenizer's end token."""


class AlarmOptions(_Options):
    """What happens where the reward rises and what should go with it does not, see `sdk.alarms`."""

    _needs = (("components", "action", 'use "warn" or "stop"'),)
    action: Literal["warn", "stop", "off"] = "warn"
    """Note it in the metrics and the log, end the run, or do not look. The reward of a canary task, when it is earned,
    ends the run in the first two; limits that cut off (`cut_off`) and a tool that is given up (`tool_given_up`) end
    none."""
    components: tuple[str, ...] = ()
    """Components of the verdict that should rise with the reward, such as an independent judge's in `watched`."""


class LoraOptions(_Options):
    """Low-rank adapters of all linear layers (LoRA, arXiv 2106.09685), by PEFT's names."""

    _needs = (("lora_alpha", "r", "set r, such as 16"),)
    r: int = Field(default=0, ge=0)
    """Their rank; 0 trains all weights. Above it adapters are trained, in the warm start and in GRPO, and the weights
    stay: a fraction of the optimiser's memory, at about ten times the rate."""
    lora_alpha: float | None = Field(default=None, gt=0)
    """What an adapter adds is multiplied by `lora_alpha / r`; twice the rank where None."""


Above0 = Annotated[float, Field(gt=0)]
From0 = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]

_OF_ONE_LOSS = {
    "sapo": ("sapo_temperature_pos", "sapo_temperature_neg"),
    "vespo": ("vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg"),
}


class TrlOptions(_Options):
    """Further options of TRL's `GRPOConfig`, of the optimiser and of single losses: its names and its defaults.

    What is not here is an option of another group, or belongs to TRL's own sampling and rewards, which are not used.
    """

    optim: str = "adamw_torch_fused"
    optim_args: str | None = None
    adam_beta1: Decay = 0.9
    adam_beta2: Decay = 0.999
    adam_epsilon: Above0 = 1e-8
    weight_decay: From0 = 0.0
    max_grad_norm: From0 = 1.0
    """0: gradients are not clipped."""
    router_aux_loss_coef: From0 | None = None
    """Of mixtures of experts; the model's own where None."""
    use_bias_correction_kl: bool = True
    sapo_temperature_pos: Above0 = 1.0
    sapo_temperature_neg: Above0 = 1.05
    vespo_k_pos: From0 = 2.0
    vespo_k_neg: From0 = 3.0
    vespo_lambda_pos: From0 = 3.0
    vespo_lambda_neg: From0 = 2.0

    @field_validator("optim")
    @classmethod
    def _known_optimiser(cls, optimiser: str) -> str:
        from transformers.training_args import OptimizerNames  # takes seconds: only where it is asked for

        choices = [one.value for one in OptimizerNames]
        if optimiser not in choices:
            raise ValueError(f"choose one of {', '.join(choices)}")
        return optimiser

    @model_validator(mode="after")
    def _the_optimiser_can_be_made(self) -> TrlOptions:
        """Before the run: transformers looks for its library when the first trainer begins."""
        arguments = ("optim_args", "adam_beta1", "adam_beta2", "adam_epsilon")
        if not {"optim", *arguments} & self.model_fields_set:
            return self
        try:
            made = self._optimiser()
        except (ImportError, ValueError) as error:
            given = f" with optim_args {self.optim_args!r}" if self.optim_args is not None else ""
            raise ValueError(f"optim {self.optim!r}{given} cannot be made: {error}") from None
        for name in self.changed_from_default(*arguments):
            if self._optimiser(**{name: type(self).model_fields[name].default}) == made:
                raise ValueError(f"{name} does nothing in optim {self.optim!r}; leave it out, or choose another optim")
        return self

    def _optimiser(self, **changed: Any) -> Any:
        """The class and its arguments."""
        import torch
        from transformers import Trainer

        options = {**self.model_dump(), "learning_rate": 1e-5, "optim_target_modules": None, **changed}
        return Trainer.get_optimizer_cls_and_kwargs(SimpleNamespace(**options), torch.nn.Linear(1, 1))


# ---------------------------------------------------------------------------------------------------------------------


class TrainConfig(_Options):
    """Options of `sdk.train`, in groups. Example: `TrainConfig(grpo=GrpoOptions(max_steps=40), seed=1)`"""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the split, the sampling and the order of tasks."""
    tool_prompt: TrainedToolPrompt = "full"
    """How much of the tools the prompts show, of demonstrations, rollouts and measurements: `full` schemas, their
    `names` only, or `none`. What is not shown has to come into the weights. Several by their shares, for example
    `{"full": 0.5, "names": 0.5}`: each demonstration and each group of rollouts draws one, and it is measured with the
    longest. The model's folder remembers it: evaluating and serving show as much."""
    evaluation: EvaluationOptions = EvaluationOptions()
    probes: ProbeOptions = ProbeOptions()
    warm_start: WarmStartOptions = WarmStartOptions()
    grpo: GrpoOptions = GrpoOptions()
    batching: BatchingOptions = BatchingOptions()
    curriculum: CurriculumOptions = CurriculumOptions()
    off_policy: OffPolicyOptions = OffPolicyOptions()
    audits: AuditOptions = AuditOptions()
    rollouts: RolloutOptions = RolloutOptions()
    limits: Limits = Limits()
    alarms: AlarmOptions = AlarmOptions()
    lora: LoraOptions = LoraOptions()
    allow_destructive: tuple[str, ...] = ()
    """Names or patterns of destructive tools that training may call for real. Without them, a live server whose tools
    declare that they may destroy something is refused; simulated ones are not asked."""
    allow_shared_state: tuple[str, ...] = ()
    """Names or patterns of sources that training may use although one rollout sees what another one wrote. Their worlds
    are not tried. Of all others that are not simulated they are, and where worlds share state, training is refused."""
    engine: Literal["embedded", "vllm"] = "embedded"
    """What samples: the engine in this process, or vLLM, which is started or found by the options of `vllm`."""
    sampler_dtype: Dtype = "auto"
    """What it computes in, `float32` or `bfloat16`, which is faster; `off_policy.importance_sampling_mode` corrects for
    the difference. vLLM is compiled then on a CPU, too. `auto`: float32, but for vLLM on GPUs bfloat16. Measurements
    are sampled in it, too."""
    vllm: VllmOptions = VllmOptions()
    weights_digests: Literal["published", "kept"] = "published"
    """Which weights have a digest in the evidence: every version that is sampled from, so that a rollout is tied to its
    weights (each step then hashes what is trained, at 1 to 2 GB a second), or only the files that the run keeps."""
    trl: TrlOptions = TrlOptions()

    @field_validator("tool_prompt", mode="before")
    @classmethod
    def _known_tool_prompt(cls, value: Any) -> Any:
        return as_trained(value)

    @model_validator(mode="after")
    def _micro_batches_divide(self) -> TrainConfig:
        if self.grpo.prompts_per_step % self.parts:
            raise ValueError(
                f"batching.micro_batches must divide grpo.prompts_per_step, which is {self.grpo.prompts_per_step}"
            )
        return self

    @model_validator(mode="after")
    def _loss_reads_its_options(self) -> TrainConfig:
        loss = self.grpo.loss_type
        if self.grpo.weighs_ratios_itself and self.off_policy.importance_sampling_mode not in (None, "none"):
            of_rows = loss not in WEIGH_THEMSELVES and loss != "luspo"
            what = 'importance_sampling_level "sequence"' if of_rows else f"loss_type {loss}"
            raise ValueError(
                f"off_policy.importance_sampling_mode would hide from grpo.{what} the ratios that it weighs itself; "
                "set it to none"
            )
        if self.trl.changed_from_default("use_bias_correction_kl") and not self.grpo.beta:
            raise ValueError("trl.use_bias_correction_kl does nothing while grpo.beta is 0; leave it out")
        of_others = [name for owner, names in _OF_ONE_LOSS.items() if owner != loss for name in names]
        if idle := self.trl.changed_from_default(*of_others):
            raise ValueError(f"trl.{idle[0]} does nothing in grpo.loss_type {loss}; leave it out")
        return self

    @model_validator(mode="after")
    def _nothing_idle(self) -> TrainConfig:
        measuring = self.evaluation.measures_meanwhile()
        if measuring and (self.evaluation.validation == 0 or not self.grpo.max_steps):
            zero = "evaluation.validation is 0; set it, such as 0.1" if self.grpo.max_steps else "grpo.max_steps is 0"
            raise ValueError(f"evaluation.{next(iter(measuring))} does nothing while {zero}")
        clips = self.off_policy.changed_from_default("importance_sampling_clip_max")
        if clips and self.engine == "embedded" and self.correction(on_cpu=True) == "none":
            raise ValueError(
                "off_policy.importance_sampling_clip_max does nothing while nothing is corrected; set "
                'off_policy.importance_sampling_mode to "token_truncate" or "token_mask"'
            )
        if self.engine == "vllm" and self.vllm.urls and self.sampler_dtype != "auto":
            raise ValueError("sampler_dtype does nothing for servers that run already; take it or vllm.urls out")
        if self.engine != "vllm" and self.vllm != VllmOptions():
            raise ValueError('vllm does nothing while engine is "embedded"; set engine to "vllm"')
        if self.vllm.publish == "adapter" and not self.lora.r:
            raise ValueError('vllm.publish is "adapter" while lora.r is 0; set lora.r, such as 16')
        if self.vllm.in_flight and self.vllm.takes_adapters(self.lora.r):
            raise ValueError('vllm.in_flight does nothing for adapters, which never interrupt; take it out, or set '
                             'vllm.publish to "checkpoint"')  # fmt: skip
        if self.engine == "vllm" and self.grpo.temperature > MOST_VLLM_TEMPERATURE:
            raise ValueError(
                f"grpo.temperature is {self.grpo.temperature:g}, and vLLM takes at most {MOST_VLLM_TEMPERATURE:g}; "
                "lower it, or set engine to embedded"
            )
        if self.rollouts.strict_tools and self.vllm.in_flight:
            raise ValueError(
                "rollouts.strict_tools and vllm.in_flight are true: a reply that new weights interrupt cannot go on in "
                "its grammar; set one of them to false"
            )
        if self.rollouts.strict_tools and not self.batching.shared_prefix:
            raise ValueError(
                "rollouts.strict_tools is true, and batching.shared_prefix is false: TRL's padded forward has no "
                "probabilities under a grammar; set batching.shared_prefix to true, or rollouts.strict_tools to false"
            )
        if self.audits.cost and self.grpo.advantages == "turn":
            raise ValueError('audits.cost lowers a rollout\'s score, and grpo.advantages "turn" does not look at it')
        if self.rollouts.branches and self.grpo.advantages == "turn":
            raise ValueError(
                'rollouts.branches decides how rollouts are compared, and grpo.advantages "turn" compares turns; leave '
                "one out"
            )
        if self.rollouts.branches and self.grpo.domain is not None:
            raise ValueError(
                "grpo.domain and rollouts.branches cannot be used together yet; set rollouts.branches to 0, or leave "
                "grpo.domain out"
            )
        return self

    def sampled_in(self, *, on_cpu: bool) -> Dtype:
        """What the sampler computes in; `on_cpu`: where vLLM does. `auto` for servers that run already."""
        if self.sampler_dtype != "auto" or self.vllm.urls:
            return self.sampler_dtype
        return "float32" if self.engine == "embedded" or on_cpu else "bfloat16"

    def correction(self, *, on_cpu: bool) -> Correction:
        """`off_policy.importance_sampling_mode`, and what it is where it is None; `on_cpu` as in `sampled_in`."""
        if self.off_policy.importance_sampling_mode is not None:
            return self.off_policy.importance_sampling_mode
        same = self.sampled_in(on_cpu=on_cpu) == "float32" and not self.batching.bf16
        return "none" if same or self.grpo.weighs_ratios_itself else "token_truncate"

    @property
    def parts(self) -> int:
        """The micro-batches of a step, where they are not planned by tokens."""
        if self.batching.micro_batches is not None:
            return self.batching.micro_batches
        if self.batching.tokens_per_micro_batch is not None:
            return 1
        size = self.grpo.prompts_per_step
        return size // max(tasks for tasks in range(1, _TASKS_IN_A_PART + 1) if size % tasks == 0)

    @property
    def trains_without_signal(self) -> bool:
        """Whether groups without signal have a part in the loss: the divergence from the reference or TRL's entropy
        bonus, which every token has, where there is one. Dynamic sampling leaves such groups out altogether."""
        return (self.grpo.beta > 0 or self.grpo.entropy_coef != 0) and self.curriculum.dynamic_sampling_rounds == 0

    def changed(self, values: Mapping[str, Any]) -> TrainConfig:
        """A copy with other values under dotted names. The values are not validated."""
        options = self
        for name, value in values.items():
            group, _, last = name.partition(".")
            inner = getattr(options, group).model_copy(update={last: value}) if last else value
            options = options.model_copy(update={group: inner})
        return options

    @classmethod
    def of(cls, config: TrainConfig | Mapping[str, Any] | str | Path | None) -> TrainConfig:
        """From a record, a mapping, a JSON or YAML file or nothing. Raises ConfigError that names the option.

        Names may be dotted: `{"grpo.max_steps": 40}` is `{"grpo": {"max_steps": 40}}`.
        """
        if isinstance(config, TrainConfig):
            return config
        if isinstance(config, str | Path):
            config = _read(Path(config))
        if not isinstance(config, Mapping | None):
            raise ConfigError(
                f"config is {kind_of(config)}; give a sdk.TrainConfig, a mapping or the path of a JSON or YAML file"
            )
        try:
            return cls.model_validate(nested((config or {}).items()))
        except ValidationError as error:
            raise ConfigError(_explain(error, cls)) from None


# ---------------------------------------------------------------------------------------------------------------------


def nested(options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Options under dotted names, put into their groups, in the order given: a later one takes an earlier one's place,
    and a group adds its options to those that were given before it.

    Raises `ConfigError` for a name that goes on after a value.
    """
    result: dict[str, Any] = {}
    for name, value in options:
        *path, last = name.split(".") if isinstance(name, str) else [name]
        place = result
        for part in path:
            inner = place.get(part, {})
            if isinstance(inner, BaseModel):
                inner = inner.model_dump(exclude_unset=True)
            if not isinstance(inner, Mapping):
                raise ConfigError(f"config: option {name}: {part!r} is {inner!r} and has no options of its own")
            place[part] = dict(inner)  # the mapping that was given stays as it is
            place = place[part]
        before = place.get(last)
        if name in _GROUPS and isinstance(before, Mapping) and isinstance(value, Mapping):
            value = {**before, **value}
        place[last] = value
    return result


def _read(path: Path) -> dict[str, Any]:
    kind = "YAML" if path.suffix.lower() in (".yaml", ".yml") else "JSON"
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"config file {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config file {str(path)!r} is not valid {kind}: it is not text in UTF-8") from None
    try:
        data = _yaml(text, path) if kind == "YAML" else _json(text, path)
    except RecursionError:
        raise ConfigError(f"config file {str(path)!r} is nested too deeply to be read") from None
    except ValueError as error:  # a key that occurs twice, NaN, a number of thousands of digits
        raise ConfigError(f"config file {str(path)!r} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"config file {str(path)!r} holds {kind_of(data)}; it must hold one object")
    return data


def _json(text: str, path: Path) -> Any:
    try:
        return strict_json(text, unique_keys=True)
    except json.JSONDecodeError as error:
        raise ConfigError(f"config file {str(path)!r} is not valid JSON: {json_problem(error)}") from None


def _yaml(text: str, path: Path) -> Any:
    import yaml

    from mcp_bridge.unique_keys import UniqueKeys

    class Loader(UniqueKeys, yaml.SafeLoader):  # type: ignore[misc]
        pass

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"config file {str(path)!r} is not valid YAML: {error}") from None


_MAY_HOLD_KEYS = ("vllm.environment", "vllm.urls")
"""Options whose values are never shown in errors."""

_OTHER_WORDS = {
    "group_size": "grpo.num_generations",
    "kl_coefficient": "grpo.beta",
    "clip_low": "grpo.epsilon",
    "clip_high": "grpo.epsilon_high",
    "max_staleness": "off_policy.max_off_policy_steps",
    "checkpoint_every": "grpo.save_steps",
    "evaluate_every": "evaluation.eval_steps",
    "lora_rank": "lora.r",
}
"""Names of options in other libraries that are too different from the names here for a search by similarity."""


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    return "config: " + "; ".join(_problem(item, model) for item in error.errors())


def _problem(item: Any, model: type[BaseModel]) -> str:
    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return _unknown(name, model)
    said = item["msg"].removeprefix("Value error, ")
    if not name:  # a check of several groups, which names the options that it is about
        return str(said)
    group = groups(model).get(name)
    if group is not None and item["type"] == "model_type":
        return f"{name} is a group of options; give a mapping of {', '.join(group.model_fields)}"
    if group is not None or name.startswith(_MAY_HOLD_KEYS):
        return f"option {name}: {said}"
    return f"option {name} is {item['input']!r}: {said}"


def _unknown(name: str, model: type[BaseModel]) -> str:
    """The problem with a name that is not an option: where the option is, or the most similar one."""
    known = list(dotted_options(model))
    group, _, last = name.rpartition(".")
    same = [one for one in known if one.rpartition(".")[2] == last] or [
        one for one in known if one.replace(".", "_") in (last, name.replace(".", "_"))
    ]
    if last in _OTHER_WORDS:
        same = [_OTHER_WORDS[last]]
    if same:
        return f"there is no option {name!r}: it is {' or '.join(same)}"
    by_likeness = {one.rpartition(".")[2]: one for one in known} | {one.replace(".", "_"): one for one in known}
    by_likeness |= {one: one for one in known}
    fields = groups(model)[group].model_fields if group in groups(model) else model.model_fields
    by_likeness |= {field: f"{group}.{field}" if group else field for field in fields}
    if near := difflib.get_close_matches(name, by_likeness, n=1) or difflib.get_close_matches(last, by_likeness, n=1):
        return f"there is no option {name!r}; did you mean {by_likeness[near[0]]!r}?"
    where = f"the options of {group} are" if group in groups(model) else "the options and their groups are"
    return f"there is no option {name!r}; {where} {', '.join(fields)}"


def groups(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields of a record that are groups of options."""
    return {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


_GROUPS = groups(TrainConfig)


def dotted_options(model: type[BaseModel]) -> Iterator[str]:
    """The names of all options, those of groups dotted."""
    inner = groups(model)
    for name in model.model_fields:
        if name in inner:
            yield from (f"{name}.{one}" for one in dotted_options(inner[name]))
        else:
            yield name
