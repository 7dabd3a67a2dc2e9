"""TRL's GRPOTrainer, fed by our rollouts.

Three seams of TRL 1.16 are used, and a contract test pins each of them:
`_prepare_inputs` (rollouts instead of generation; groups are never torn apart, so that their prefix is
shared), `_get_per_token_logps_and_entropies` (only to measure how far
sampler and trainer are apart), and the fused forward (`shared_prefix`). Losses, clipping, optimiser,
schedules, checkpoints and distribution stay TRL's.

Axes: B rows of a micro-batch, P padded prompt, T padded completion.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from ..policies.protocol import WeightPublisher
from .batch import Batch
from .config import TrainConfig, sampling_level
from .finite_gradients import FiniteGradients
from .lora import plain_model
from .micro_batches import Plan, collate_batch, over_budget
from .processes import by_deepspeed, sharded, share, stage_ended, world_size
from .rollout_worker import TrainingStopped
from .sampler import NoteWeights, publish
from .sharding import ShardsWeights, full, let_go, present_state, shard_frozen
from .shared_prefix import checkpoint_layers, share_prefixes
from .zero import accumulating

# ---------------------------------------------------------------------------------------------------------------------
# The policy that training must not drift far from: a copy of the weights, taken anew every so many steps.
#
# A fixed reference holds a long run back; one that follows did better (Bespoke Labs refresh it every 100 steps).

FILE = "reference.safetensors"


class Reference:
    """A frozen copy of a model, made before the model's forward is replaced; `prepare` does the same to the copy.

    Weights that are not trained, as beside LoRA's adapters, are not copied but shared, unless the model's weights will
    be sharded over processes: then those of the copy are sharded, too.
    """

    def __init__(self, model: torch.nn.Module, *, every: int | None, prepare: Callable[[Any], None]) -> None:
        shared = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
        self._to_shard = sharded()
        self._model: Any = copy.deepcopy(model, {} if self._to_shard else dict(shared)).eval().requires_grad_(False)
        self._own = {
            name for name, weight in model.named_parameters(remove_duplicate=False) if id(weight) not in shared
        }
        self._every = every
        prepare(self._model)

    @property
    def model(self) -> Any:
        return self._model

    def follow(self, model: torch.nn.Module, step: int) -> None:
        """At the beginning of a step: take the model's weights where it is time to."""
        if self._every is not None and step > 0 and step % self._every == 0:
            self._take(present_state(model, self._own))

    def place(self, accelerator: Accelerator) -> None:
        """Go where the accelerator computes: to its device, or into shards, for which all processes call this."""
        if not sharded():
            self._model.to(accelerator.device)
        elif self._to_shard:
            shard_frozen(self._model, accelerator)
            self._to_shard = False

    def rest(self) -> None:
        """After use: free what a pass has gathered of the shards."""
        let_go(self._model)

    def save(self, checkpoint: Path, *, write: bool = True) -> None:
        """Keep the weights beside a checkpoint's. All processes call this together where weights are sharded, and one
        of them with `write`."""
        weights = {}
        for name, weight in self._model.state_dict().items():
            if name in self._own:
                tensor = full(weight)
                if write:
                    # A clone: weights that are tied share memory, which the format refuses.
                    weights[name] = tensor.detach().cpu().clone()
        if write:
            checkpoint.mkdir(parents=True, exist_ok=True)
            save_file(weights, checkpoint / FILE)

    def load(self, checkpoint: Path) -> None:
        """Go on with the weights kept beside a checkpoint. Raises FileNotFoundError where there are none."""
        self._take(load_file(checkpoint / FILE))

    def _take(self, state: Mapping[str, torch.Tensor]) -> None:
        self._model.load_state_dict({name: state[name] for name in self._own}, strict=False)


# ---------------------------------------------------------------------------------------------------------------------

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


# ---------------------------------------------------------------------------------------------------------------------


class CollectBatch(Protocol):
    """How the trainer asks for rollouts: the step in, a batch out. The loop is closed here."""

    def __call__(self, step: int) -> Batch: ...


def make_trainer(
    model: Any,
    tokenizer: Any,
    *,
    config: TrainConfig,
    output_dir: str,
    collect: CollectBatch,
    publisher: WeightPublisher,
    callbacks: list[TrainerCallback],
    note_weights: NoteWeights | None = None,
) -> RolloutTrainer:
    """A trainer that takes its batches from `collect`. `note_weights` hears of all that are published."""
    # TRL's dataset only paces the loop, one row for each prompt of a step; `collect` knows which tasks they are.
    pace = [{"prompt": str(place)} for place in range(config.prompts_per_step * world_size())]

    def prepare(one: Any) -> None:
        if config.shared_prefix:
            share_prefixes(plain_model(one), temperature=config.temperature)

    def prepare_reference(one: Any) -> None:
        add_fused_lm_head(plain_model(one), temperature=config.temperature)  # TRL does it to the policy alone
        prepare(one)

    reference = None
    if config.kl_coefficient:
        reference = Reference(model, every=config.reference_every, prepare=prepare_reference)
    trainer = RolloutTrainer(
        model=model,
        reward_funcs=_scored_elsewhere,
        args=_grpo_config(config, output_dir),
        train_dataset=Dataset.from_list(pace),
        processing_class=tokenizer,
        callbacks=callbacks,
        collect=collect,
        publisher=publisher,
        note_weights=note_weights,
        reference=reference,
        options=config,
    )
    prepare(trainer.model)
    if config.gradient_checkpointing:
        checkpoint_layers(plain_model(trainer.model))
    # Set afterwards: with a coefficient from the start, TRL would load a reference of its own by the model's name.
    trainer.beta = config.kl_coefficient
    return trainer


class RolloutTrainer(FiniteGradients, ShardsWeights, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer whose batches come from `collect` and whose weights go to `publisher`."""

    entropy_coef: float
    router_aux_loss_coef: float

    def __init__(
        self,
        *,
        collect: CollectBatch,
        publisher: WeightPublisher,
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
        self._pad_id = int(self._tokenizer.pad_token_id)
        self._micro_batches: list[list[dict[str, torch.Tensor]]] = []

    def _send_telemetry(self) -> None:
        """TRL reports each trainer to its hub by default; this library sends nothing."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A rate that rises, stays and falls, unless TRL's own options ask for another schedule.

        The first step already learns: the schedules of transformers begin with a rate of 0, a whole step of rollouts
        for nothing.
        """
        rise, fall = self._options.rise_and_fall
        if not rise and not fall:
            return super().create_scheduler(num_training_steps, optimizer)
        if getattr(self, "lr_scheduler", None) is None:

            def factor(step: int) -> float:
                return min(1.0, (step + 1) / (rise + 1), max(0.0, (num_training_steps - step) / (fall + 1)))

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:  # noqa: ARG002
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or not self._micro_batches:
            step = self.state.global_step
            if self._reference is not None:
                self._reference.place(self.accelerator)
                self._reference.follow(self.accelerator.unwrap_model(self.model), step)
            batch = self._next_batch(step)
            plan = Plan(
                parts=steps,
                token_budget=self._options.tokens_per_micro_batch,
                shared_prefix=self._options.shared_prefix,
                processes=self.accelerator.num_processes,
                process=self.accelerator.process_index,
            )
            if plan.token_budget is not None:
                self._metrics["train"]["rows_over_budget"].append(over_budget(batch, plan.token_budget))
                self._metrics["train"]["micro_batches"].append(sum(map(len, plan.parts_of(batch))))
            self._micro_batches = collate_batch(
                batch, plan, loss_type=self.loss_type, pad_id=self._pad_id, device=self.accelerator.device
            )
        return {"parts": self._micro_batches[self._step % steps]}

    def _next_batch(self, step: int) -> Batch:
        """Publish the weights and collect the step's rollouts: the first process does, and the others hear of it.

        Raises what collecting raises, and `TrainingStopped` in the others then.
        """
        batch: Any = None
        model = self.whole_model()
        if self.accelerator.is_main_process:
            try:
                publish(self._publisher, model, version=step, note=self._note_weights)
                batch = self._collect(step)
            except BaseException as error:
                if self.accelerator.num_processes > 1:
                    share(str(error) or type(error).__name__)
                    stage_ended()
                raise
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
        if self._reference is not None and "ref_per_token_logps" not in part:
            part["ref_per_token_logps"] = self._reference_logps(self._reference, part)
        return self._compute_loss(model, part)

    def _reference_logps(self, reference: Reference, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """[B, T] log-probabilities of the completion under the reference."""
        with torch.no_grad():
            outputs = super()._get_per_token_logps_and_entropies(
                reference.model,
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
                inputs["completion_ids"].size(1),
            )
        reference.rest()
        logps_BT: torch.Tensor = outputs[0]
        return logps_BT

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._last_logps_BT = outputs[0].detach()
        # TRL reads the advantages after it has these log-probabilities, which the correction needs.
        correct(self._inputs, self._last_logps_BT, self._options)
        return outputs

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self._inputs = dict(inputs)
        coefficients = self.entropy_coef, self.router_aux_loss_coef
        self.entropy_coef *= float(inputs["entropy_scale"])
        self.router_aux_loss_coef *= float(inputs["balance_scale"])
        try:
            loss: torch.Tensor = super()._compute_loss(model, self._inputs) * inputs["loss_scale"]
        finally:
            self.entropy_coef, self.router_aux_loss_coef = coefficients
        mask_BT = inputs["completion_mask"].bool() & inputs["tool_mask"].bool()
        if bool(mask_BT.any()):
            gap = (self._last_logps_BT - inputs["old_per_token_logps"])[mask_BT].abs()
            self._metrics["train"]["sampler_gap/mean"].append(gap.mean().item())
            self._metrics["train"]["sampler_gap/max"].append(gap.max().item())
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Before the rest: TRL's `trainer_state.json` comes last, and makes a checkpoint one that can be gone on from.
        if self._reference is not None:
            folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self._reference.save(folder, write=self.args.should_save)
        super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self._reference is not None:
            self._reference.load(Path(resume_from_checkpoint))


def _grpo_config(config: TrainConfig, output_dir: str) -> GRPOConfig:
    options: dict[str, Any] = {
        "output_dir": output_dir,
        "seed": config.seed,
        "max_steps": config.grpo_steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": config.group_size * config.prompts_per_step // config.parts,
        "gradient_accumulation_steps": config.parts,
        "steps_per_generation": config.parts,
        "num_generations": config.group_size,
        "temperature": config.temperature,
        "loss_type": config.loss_type,
        "importance_sampling_level": sampling_level(config),
        "epsilon": config.clip_low,
        "epsilon_high": config.clip_high,
        "beta": 0.0,
        "max_completion_length": config.limits.max_tokens,
        "gradient_checkpointing": False,  # `checkpoint_layers` does it, for attention by tree, too
        "bf16": config.bf16,
        "use_cpu": not torch.cuda.is_available(),
        "logging_steps": 1,
        "logging_strategy": "steps",
        "save_strategy": "steps",
        "save_steps": config.checkpoint_every,
        "save_total_limit": None if config.validation else 2,  # where one is chosen, `ThinCheckpoints` does it
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    if sharded():  # as `_without_exchange`, between the micro-batches
        options["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return GRPOConfig(**{**options, **config.trl})


def _scored_elsewhere(**_: Any) -> list[float]:
    """TRL wants a reward function; ours are scored by the rollout engine before they reach the trainer."""
    raise RuntimeError("rewards come from the rollout engine; TRL's reward path must not be reached")
