"""TRL's GRPOTrainer on the batches of the rollout engine.

It overrides documented methods of transformers' Trainer, and gives TRL a model with a fused forward of its own
(`shared_prefix`) whose log-probabilities it reads. Losses, clipping, optimiser, schedules, checkpoints and distribution
are TRL's.

Axes: B rows of a micro-batch, P padded prompt, T padded completion.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import Accelerator
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from ..evidence.saved_weights import REFERENCE_FILE
from ..policies.protocol import WeightPublisher
from ..process import give_freed_memory_back
from .base_trainer import NOT_BY_TRANSFORMERS, PUBLISHING, BaseTrainer, OneGpu
from .batch import Batch
from .config import OffPolicyOptions, TrainConfig, rate_factor
from .lora import plain_model
from .micro_batches import Plan, collate_batch, over_budget
from .offloading import sparing_memory
from .processes import by_deepspeed, sharded, share, stage_ended, world_size
from .rollout_worker import TrainingStopped
from .sampler import NoteWeights, publish, rest
from .sharding import accumulating, full, let_go, present_state, shard_frozen
from .shared_prefix import IGNORED, Allowed, checkpoint_layers, share_prefixes

# ---------------------------------------------------------------------------------------------------------------------
# The policy that training must not drift far from: a copy of the weights, taken anew every so many steps.
#
# A fixed reference holds a long run back; one that follows did better (Bespoke Labs refresh it every 100 steps).


class Reference:
    """A frozen copy of a model, made before the model's forward is replaced; `prepare` does the same to the copy.

    Weights that are not trained, as beside LoRA's adapters, are not copied but shared, unless the model's weights will
    be sharded over processes: then those of the copy are sharded, too.
    """

    def __init__(self, model: torch.nn.Module, *, every: int | None, prepare: Callable[[Any], None]) -> None:
        shared = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
        self._to_shard = sharded()
        self.model: Any = copy.deepcopy(model, {} if self._to_shard else dict(shared)).eval().requires_grad_(False)
        self._own = {
            name for name, weight in model.named_parameters(remove_duplicate=False) if id(weight) not in shared
        }
        self._every = every
        prepare(self.model)

    def follow(self, model: torch.nn.Module, step: int) -> None:
        """At the beginning of a step: take the model's weights where it is time to."""
        if self._every is not None and step > 0 and step % self._every == 0:
            self._take(present_state(model, self._own))

    def place(self, accelerator: Accelerator) -> None:
        """Move to the accelerator's device, or shard the weights, for which all processes call this."""
        if not sharded():
            self.model.to(accelerator.device)
        elif self._to_shard:
            shard_frozen(self.model, accelerator)
            self._to_shard = False

    def rest(self) -> None:
        """After use: free the shards that a pass has gathered."""
        let_go(self.model)

    def save(self, checkpoint: Path, *, write: bool = True) -> None:
        """Keep the weights beside a checkpoint's. All processes call this together where weights are sharded, and one
        of them with `write`."""
        weights = {}
        for name, weight in self.model.state_dict().items():
            if name in self._own:
                tensor = full(weight)
                if write:
                    # A clone: weights that are tied share memory, which the format refuses.
                    weights[name] = tensor.detach().cpu().clone()
        if write:
            checkpoint.mkdir(parents=True, exist_ok=True)
            save_file(weights, checkpoint / REFERENCE_FILE)

    def load(self, checkpoint: Path) -> None:
        """Go on with the weights kept beside a checkpoint. Raises FileNotFoundError where there are none."""
        self._take(load_file(checkpoint / REFERENCE_FILE))

    def _take(self, state: Mapping[str, torch.Tensor]) -> None:
        self.model.load_state_dict({name: state[name] for name in self._own}, strict=False)


# ---------------------------------------------------------------------------------------------------------------------

_FURTHEST = 20.0
"""Nats that the trainer may find a token more probable than the sampler did, where nothing is corrected. TRL bounds the
ratios of `vespo` there, too. From 89 on a ratio is infinite in float32; clipped, its gradient is 0 times infinity."""


def importance_weights(trainer_BT: torch.Tensor, sampler_BT: torch.Tensor, options: OffPolicyOptions) -> torch.Tensor:
    """[B, T] weights of the tokens' advantages, from the log-probabilities of both: finite, however far they are apart.

    `token_truncate`: `min(r, cap)`. `token_mask`: `r` where `1/cap <= r <= cap`, else 0.
    """
    ratio_BT, cap = torch.exp(trainer_BT - sampler_BT), options.importance_sampling_clip_max
    if options.importance_sampling_mode == "token_truncate":
        return ratio_BT.clamp(max=cap)
    within_BT = (ratio_BT <= cap) & (ratio_BT >= 1 / cap)
    # Not `ratio * within`: above e^88 the ratio is infinite in float32, and infinity times 0 is nan.
    return torch.where(within_BT, ratio_BT, 0.0)


def correct(inputs: dict[str, torch.Tensor], trainer_BT: torch.Tensor, options: OffPolicyOptions) -> None:
    """Weigh the advantages of a micro-batch in place, before TRL's loss reads them. Without a correction no ratio is
    larger than e^20, which no clip leaves, so that one token cannot make the whole gradient nan.

    Every one of TRL's losses by token is linear in the advantages for a positive weight, so a weight on them is a
    weight on the token's loss; those by sequence have ratios of their own, and are not corrected. The ratio that is
    clipped then starts at 1: it no longer holds what the correction has taken care of. What TRL masks by the sampler's
    probabilities (`off_policy_mask_threshold`) still sees those.
    """
    sampler_BT = inputs["sampling_per_token_logps"] = inputs["old_per_token_logps"]
    if options.importance_sampling_mode in (None, "none"):
        inputs["old_per_token_logps"] = torch.maximum(sampler_BT, trainer_BT - _FURTHEST)
        return
    # Of the first update on these rollouts: later ones are clipped by how far they moved from there.
    trainer_BT = inputs.get("first_per_token_logps", trainer_BT)
    weights_BT = importance_weights(trainer_BT, sampler_BT, options)
    inputs["advantages"] = inputs["advantages"].unsqueeze(1) * weights_BT
    inputs["old_per_token_logps"] = trainer_BT


# ---------------------------------------------------------------------------------------------------------------------


CollectBatch = Callable[[int], Batch]
"""How the trainer asks for the batch of a step."""


def make_trainer(
    model: Any,
    tokenizer: Any,
    *,
    config: TrainConfig,
    output_dir: str,
    collect: CollectBatch | None,
    publisher: WeightPublisher | None,
    callbacks: list[TrainerCallback],
    note_weights: NoteWeights | None = None,
) -> RolloutTrainer:
    """A trainer that takes its batches from `collect` and hands its weights to `publisher`; both are None in processes
    that follow the first one. `note_weights` is called for all weights that are published."""
    # TRL's dataset only paces the loop, one row for each prompt of a step; `collect` knows which tasks they are.
    pace = [{"prompt": str(place)} for place in range(config.grpo.prompts_per_step * world_size())]

    def prepare(one: Any) -> None:
        if config.batching.shared_prefix:
            share_prefixes(plain_model(one), temperature=config.grpo.temperature)

    def prepare_reference(one: Any) -> None:
        add_fused_lm_head(plain_model(one), temperature=config.grpo.temperature)  # TRL does it to the policy alone
        prepare(one)

    reference = None
    if config.grpo.beta:
        reference = Reference(model, every=config.grpo.ref_model_sync_steps, prepare=prepare_reference)
    trainer = RolloutTrainer(
        model=model,
        reward_funcs=_scored_elsewhere,
        args=_grpo_config(config, output_dir),
        train_dataset=Dataset.from_list(pace),
        processing_class=tokenizer,
        callbacks=[*callbacks, *sparing_memory(config, Path(output_dir))],
        collect=collect,
        publisher=publisher,
        note_weights=note_weights,
        reference=reference,
        options=config,
    )
    prepare(trainer.model)
    if config.batching.gradient_checkpointing:
        checkpoint_layers(plain_model(trainer.model))
    # Set afterwards: with a coefficient from the start, TRL would load a reference of its own by the model's name.
    trainer.beta = config.grpo.beta
    return trainer


class RolloutTrainer(BaseTrainer, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer whose batches come from `collect` and whose weights go to `publisher`.

    Overridden, all of them documented methods of transformers' Trainer:

    | method | because |
    | --- | --- |
    | `training_step` | TRL's generates completions; groups are never torn apart here, so that their prefix is shared |
    | `compute_loss` | a step's parts are computed one after the other, and weighed by what is in them |
    | `create_scheduler` | the first step already learns, and the rate may rise, stay and fall |
    | `save_model`, `train` | a checkpoint keeps the reference, too |
    | `log` | figures of the step beside TRL's |
    """

    entropy_coef: float
    router_aux_loss_coef: float

    def __init__(
        self,
        *,
        collect: CollectBatch | None,
        publisher: WeightPublisher | None,
        note_weights: NoteWeights | None,
        reference: Reference | None,
        options: TrainConfig,
        **kwargs: Any,
    ) -> None:
        self._options = options
        self._reference = reference
        super().__init__(**kwargs)
        self._collect = collect
        self._publisher = publisher
        self._note_weights = note_weights
        self._micro_batches: list[list[dict[str, torch.Tensor]]] = []
        self._parts_taken = 0
        self.has_signal = True
        """Whether anything is trained in this step."""
        self.add_callback(_NoSignalNoStep(self))
        self._figures: dict[str, list[tuple[float, float]]] = {}

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:  # noqa: ARG002
        """The schedule of the options, whose first step already learns. `num_training_steps` are theirs."""
        if getattr(self, "lr_scheduler", None) is None:
            factor = rate_factor(self._options.grpo)
            self.lr_scheduler = Schedule(optimizer or self.optimizer, factor)
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Forward and backward passes of the next part of the step's batch. `inputs` only paces the loop."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()  # of those that need no schedule
        inputs = self.next_inputs()
        if self._parts_taken % self.args.steps_per_generation == 1 % self.args.steps_per_generation:
            for _ in range(self._options.grpo.num_iterations - 1):
                self._update(model)
        if by_deepspeed() and not self.has_signal:  # its backward pass would step, by the momentum of earlier steps
            return torch.zeros((), device=self.accelerator.device)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss, **({"scale_wrt_gas": False} if by_deepspeed() else {}))
        return loss.detach()

    def _update(self, model: Any) -> None:
        """An update on the step's rollouts before the last one, which is transformers' own."""
        if not self.has_signal:
            return
        for parts in self._micro_batches:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, {"parts": parts})
            self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm or math.inf)  # 0: not clipped
        # The optimiser inside: accelerate's skips a step between the parts of a batch.
        self.optimizer.optimizer.step()
        model.zero_grad()

    def next_inputs(self) -> dict[str, Any]:
        """What `compute_loss` takes for the next accumulation step; rollouts are collected when a step begins."""
        steps = self.args.steps_per_generation
        place = self._parts_taken % steps
        if place == 0:
            step = self.state.global_step
            if self._reference is not None:
                self._reference.place(self.accelerator)
                self._reference.follow(self.accelerator.unwrap_model(self.model), step)
            batch = self._next_batch(step)
            plan = Plan(
                parts=steps,
                token_budget=self._options.batching.tokens_per_micro_batch,
                shared_prefix=self._options.batching.shared_prefix,
                processes=self.accelerator.num_processes,
                process=self.accelerator.process_index,
            )
            if plan.token_budget is not None:
                self._note("rows_over_budget", over_budget(batch, plan.token_budget))
                self._note("micro_batches", sum(map(len, plan.parts_of(batch))))
            pad_id = int(self.processing_class.pad_token_id)
            self._micro_batches = collate_batch(
                batch, plan, loss_type=self.loss_type, pad_id=pad_id, device=self.accelerator.device
            )
            self.has_signal = any(bool(part["height"]) for parts in self._micro_batches for part in parts)
        self._parts_taken += 1
        return {"parts": self._micro_batches[place]}

    def _next_batch(self, step: int) -> Batch:
        """Publish the weights and collect the step's rollouts: the first process does, and sends the batch to all.

        Raises what collecting raises; the other processes then raise `TrainingStopped`.
        """
        batch: Any = None
        model = self.whole_model()
        if self.accelerator.is_main_process:
            assert self._collect is not None
            assert self._publisher is not None
            try:
                began = time.monotonic()
                publish(self._publisher, model, version=step, note=self._note_weights)
                self._note(PUBLISHING, time.monotonic() - began)
                batch = self._collect(step)
            except BaseException as error:
                if self.accelerator.num_processes > 1:
                    share(str(error) or type(error).__name__)
                    stage_ended()
                raise
            if self._options.off_policy.max_off_policy_steps == 0:
                rest(self._publisher)
        if self.accelerator.num_processes > 1:
            batch = share(batch)
        if not isinstance(batch, Batch):
            raise TrainingStopped(f"the first process has stopped: {batch}")
        return batch

    def compute_loss(self, model: Any, inputs: dict[str, Any], **_: Any) -> torch.Tensor:
        """The loss of the parts of an accumulation step.

        All parts but the last have had their backward pass when this returns, so that one part's activations are held
        at a time; the caller does the last one's.
        """
        *before, last = inputs["parts"]
        done = torch.zeros((), device=self.accelerator.device)
        for part in before:
            with self._without_exchange(model):
                loss = self._part_loss(model, part)
                self.accelerator.backward(loss)
                done += loss.detach()
            give_freed_memory_back()
        # The value is the loss of all parts, the gradient that of the last one.
        loss = self._part_loss(model, last)
        return loss + done if before else loss

    def _without_exchange(self, model: Any) -> AbstractContextManager[None]:
        """Several processes exchange gradients once, with the last part; sharded ones with each, so that no process
        holds them whole."""
        if by_deepspeed():
            return accumulating(self.accelerator)
        if self.accelerator.num_processes == 1 or sharded():
            return contextlib.nullcontext()
        context: AbstractContextManager[None] = self.accelerator.no_sync(model)
        return context

    def _part_loss(self, model: Any, part: dict[str, torch.Tensor]) -> torch.Tensor:
        if not part["height"]:  # no process has a row here: TRL would count what fills its place in the figures
            return self._log_probs(model, part).sum() * 0.0
        if self._reference is not None and "ref_per_token_logps" not in part:
            with torch.no_grad(), self.accelerator.autocast():
                part["ref_per_token_logps"] = self._log_probs(self._reference.model, part)
            self._reference.rest()
        width = part["completion_ids"].size(1)
        inputs = dict(part)
        logps_BT = torch.empty(0)

        def observed(*args: Any, **kwargs: Any) -> Any:
            """`model`, whose log-probabilities the correction needs: TRL reads the advantages after it has them."""
            nonlocal logps_BT
            outputs = model(*args, **kwargs, **_bounds(part), **self._positions(model, kwargs["attention_mask"]))
            logps_BT = outputs.log_probs[:, -width:].detach()
            if self._options.grpo.num_iterations > 1:
                inputs["first_per_token_logps"] = part.setdefault("first_per_token_logps", logps_BT)
            correct(inputs, logps_BT, self._options.off_policy)
            return outputs

        coefficients = self.entropy_coef, self.router_aux_loss_coef
        self.entropy_coef *= float(part["entropy_scale"])
        self.router_aux_loss_coef *= float(part["balance_scale"])
        try:
            loss: torch.Tensor = super().compute_loss(observed, inputs) * part["loss_scale"]
        finally:
            self.entropy_coef, self.router_aux_loss_coef = coefficients
        mask_BT = part["completion_mask"].bool() & part["tool_mask"].bool()
        if part.get("first_per_token_logps", logps_BT) is logps_BT:
            self._note_gap((logps_BT - part["old_per_token_logps"])[mask_BT].abs())
        return loss

    def _note_gap(self, gap: torch.Tensor) -> None:
        """`gap`: of this process's sampled tokens. The figures are of those of all processes, which all call this."""
        here = torch.stack([gap.sum(), gap.new_tensor(len(gap)), gap.max() if len(gap) else gap.new_zeros(())])
        sums, counts, highest = self.accelerator.gather(here[None].double()).unbind(1)
        if tokens := int(counts.sum()):
            self._note("sampler_gap/mean", float(sums.sum()) / tokens, of=tokens)
            self._note("sampler_gap/max", float(highest.max()))

    def _log_probs(self, model: Any, part: dict[str, torch.Tensor]) -> torch.Tensor:
        """[B, T] of the completion."""
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
        mask = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
        width = part["completion_ids"].size(1)
        labels = ids.masked_fill(mask == 0, IGNORED)
        labels[:, :-width] = IGNORED
        more = {**_bounds(part), **self._positions(model, mask)}
        outputs = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, **more)
        log_probs_BT: torch.Tensor = outputs.log_probs[:, -width:]
        return log_probs_BT

    def _positions(self, model: Any, mask_BT: torch.Tensor) -> dict[str, torch.Tensor]:
        """For a padded forward: each row's first token is at position 0, as the sampler had it. Otherwise it would be
        at the width of its padding, which a model with learned positions takes for another text. The shared-prefix
        forward places tokens itself."""
        if self._options.batching.shared_prefix:
            return {}
        own = plain_model(self.accelerator.unwrap_model(model))
        if "position_ids" not in inspect.signature(type(own).forward).parameters:
            return {}
        return {"position_ids": (mask_BT.long().cumsum(-1) - 1).clamp(min=0)}

    def _note(self, name: str, value: float, *, of: int = 1) -> None:
        """A part's figure, the mean `of` so many values."""
        self._figures.setdefault(name, []).append((value, of))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for name, noted in self._figures.items():
            values, weights = zip(*noted, strict=True)
            logs[name] = max(values) if name.endswith("/max") else fmean(values, weights)
        self._figures.clear()
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, **kwargs: Any) -> None:
        # With the weights, which come first: `trainer_state.json` comes last, and makes a checkpoint a whole one.
        if self._reference is not None and output_dir is not None:
            self._reference.save(Path(output_dir), write=self.args.should_save)
        super().save_model(output_dir, **kwargs)

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        if resume_from_checkpoint and self._reference is not None:
            self._reference.load(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)


class _NoSignalNoStep(TrainerCallback):  # type: ignore[misc]
    """Takes the gradients away, all of them zero, of a step in which nothing is trained. With them, Adam would go on by
    the momentum of earlier steps, at the full rate; weights without a gradient it leaves as they are. DeepSpeed keeps
    gradients of its own: `training_step` leaves its step out."""

    def __init__(self, trainer: RolloutTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if not self._trainer.has_signal:
            self._trainer.model.zero_grad()


def _bounds(part: Mapping[str, torch.Tensor]) -> dict[str, Allowed]:
    """For the shared-prefix forward: what the labels of a part, prompt and completion but for the first token, were
    chosen from; nothing where no grammar bounded any."""
    if "allowed" not in part:
        return {}
    before = part["prompt_ids"].size(1) - 1
    return {"allowed": Allowed(torch.nn.functional.pad(part["allowed"], (before, 0)), part["allowed_masks"])}


class Schedule(torch.optim.lr_scheduler.LambdaLR):  # type: ignore[misc]
    """Rates by step. A run that is trained longer has another schedule than its checkpoint: this one's rate is next."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rates = [
            base * factor(state_dict["last_epoch"])
            for base, factor in zip(state_dict["base_lrs"], self.lr_lambdas, strict=True)
        ]
        super().load_state_dict({**state_dict, "_last_lr": rates})
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class _Arguments(OneGpu, GRPOConfig):  # type: ignore[misc]
    """TRL's, of one process on one GPU."""


def _grpo_config(config: TrainConfig, output_dir: str) -> GRPOConfig:
    grpo = config.grpo
    options: dict[str, Any] = {
        "output_dir": output_dir,
        "seed": config.seed,
        "max_steps": grpo.max_steps,
        "learning_rate": grpo.learning_rate,
        "lr_scheduler_type": "constant",  # `create_scheduler` makes that of the options
        "per_device_train_batch_size": grpo.num_generations * grpo.prompts_per_step // config.parts,
        "gradient_accumulation_steps": config.parts,
        "steps_per_generation": config.parts,
        "num_generations": grpo.num_generations,
        "temperature": grpo.temperature,
        "loss_type": grpo.loss_type,
        "importance_sampling_level": grpo.sampling_level,
        "epsilon": grpo.epsilon,
        "epsilon_high": grpo.epsilon_high,
        "delta": grpo.delta,
        "entropy_coef": grpo.entropy_coef,
        "top_entropy_quantile": grpo.top_entropy_quantile,
        "off_policy_mask_threshold": config.off_policy.off_policy_mask_threshold,
        "beta": 0.0,
        "max_completion_length": config.limits.max_tokens,
        "disable_dropout": True,  # the sampler has none: a ratio would be noise
        **NOT_BY_TRANSFORMERS,
        "bf16": config.batching.bf16,
        "use_cpu": not torch.cuda.is_available(),
        "logging_steps": 1,
        "logging_strategy": "steps",
        "save_strategy": "steps",
        "save_steps": grpo.save_steps,
        "save_total_limit": None
        if config.evaluation.validation
        else 2,  # where one is chosen, `ThinCheckpoints` does it
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    if sharded():  # as `_without_exchange`, between the micro-batches
        options["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return _Arguments(**options, **config.trl.model_dump())


def _scored_elsewhere(**_: Any) -> list[float]:
    """TRL wants a reward function; ours are scored by the rollout engine before they reach the trainer."""
    raise RuntimeError("rewards come from the rollout engine; TRL's reward path must not be reached")
