"""The supervised warm start: TRL's SFTTrainer on demonstrations that were replayed in the world.

Only the tokens that the policy itself would have sampled are trained; tool results are context.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from ..records import TokenRow
from .base_trainer import NOT_BY_TRANSFORMERS, BaseTrainer, OneGpu, SaveWithin
from .config import TrainConfig
from .lora import plain_model
from .offloading import sparing_memory
from .processes import world_size
from .shared_prefix import IGNORED, checkpoint_layers, share_prefixes


def make_warm_start(
    model: Any,
    tokenizer: Any,
    rows: Sequence[TokenRow],
    *,
    config: TrainConfig,
    output_dir: str,
    callbacks: list[TrainerCallback],
) -> WarmStartTrainer:
    """A trainer over demonstration rows, `warm_start.max_steps` long.

    The rows are taken as they come where a curriculum ordered them, else in an order that depends on the seed only.
    """
    trainer = WarmStartTrainer(
        model=model,
        args=_sft_config(config, output_dir),
        train_dataset=Dataset.from_list([supervised_example(row) for row in rows]),
        processing_class=tokenizer,
        callbacks=[
            *callbacks,
            SaveWithin(config.warm_start.save_steps),
            *sparing_memory(config, Path(output_dir)),
        ],
    )
    if config.batching.shared_prefix:
        share_prefixes(plain_model(trainer.model))
    if config.batching.gradient_checkpointing:
        checkpoint_layers(plain_model(trainer.model))
    return trainer


class WarmStartTrainer(BaseTrainer, SFTTrainer):  # type: ignore[misc]
    """SFTTrainer as it is, but for what `BaseTrainer` overrides."""


def supervised_example(row: TokenRow) -> dict[str, list[int]]:
    """`input_ids` and `labels` [P + T]; labels are -100 where the token was not the policy's choice."""
    labels = [token if sampled else IGNORED for token, sampled in zip(row.completion_ids, row.sampled, strict=True)]
    return {"input_ids": row.prompt_ids + row.completion_ids, "labels": [IGNORED] * len(row.prompt_ids) + labels}


class _Arguments(OneGpu, SFTConfig):  # type: ignore[misc]
    """TRL's, of one process on one GPU."""


_OF_THE_OPTIMISER = ("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm")


def _sft_config(config: TrainConfig, output_dir: str) -> SFTConfig:
    return _Arguments(
        output_dir=output_dir,
        seed=config.seed,
        max_steps=config.warm_start.max_steps,
        train_sampling_strategy="sequential" if config.curriculum.by is not None else "random",
        learning_rate=config.warm_start.learning_rate,
        lr_scheduler_type="linear",  # without warm-up, whose first step would have a rate of 0
        per_device_train_batch_size=config.warm_start.batch_size // world_size(),
        **NOT_BY_TRANSFORMERS,
        bf16=config.batching.bf16,
        use_cpu=not torch.cuda.is_available(),
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=1,
        save_strategy="no",  # `SaveWithin` does
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{name: getattr(config.trl, name) for name in _OF_THE_OPTIMISER},
    )
