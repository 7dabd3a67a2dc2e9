"""The other processes of a training: each computes its part of what the first one commands."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from transformers import PrinterCallback

from ..errors import ToolbakeError
from ..policies.models import load_model
from ..policies.models.quiet_loading import quiet_loading
from .config import TrainConfig
from .grpo import make_trainer
from .lora import load_kept, plain_model, with_adapters
from .processes import Command, holding_device, join, sharded, share
from .rollout_worker import TrainingStopped
from .sharding import forget_weights
from .warm_start import make_warm_start


def follow(model: str | Path | None, config: TrainConfig) -> Any:
    """Of the other processes: compute with the first one until it is done. Returns its result.

    Raises `ToolbakeError` when the first one has failed.
    """
    join()  # first: loading asks which process this is, and which GPU is its own
    loaded = load_model(str(model) if model is not None else None, dtype="float32", device=holding_device())
    network = with_adapters(loaded.model, config)
    if sharded():
        forget_weights(network)
    while True:
        command = share(None)
        if not isinstance(command, Command) or command.do == "failed":
            raise ToolbakeError(f"the first process failed: {getattr(command, 'what', command)}")
        if command.do == "end":
            return command.what
        if command.do == "load":
            if not sharded():
                load_kept(network, command.what)
            continue
        with quiet_loading():
            trainer = _trainer(command, network, loaded.tokenizer)
            _without_prints(trainer)
            checkpoint = command.what[-1]
            with contextlib.suppress(TrainingStopped):  # the first process says why
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        plain_model(network).__dict__.pop("forward", None)
        network.eval()


def _trainer(command: Command, network: Any, tokenizer: Any) -> Any:
    if command.do == "warm_start":
        rows, output_dir, config, _ = command.what
        return make_warm_start(network, tokenizer, rows, config=config, output_dir=output_dir, callbacks=[])
    output_dir, config, _ = command.what
    nobody = _Nobody()
    return make_trainer(
        network, tokenizer, config=config, output_dir=output_dir, collect=nobody, publisher=nobody, callbacks=[]
    )


def _without_prints(trainer: Any) -> None:
    trainer.remove_callback(PrinterCallback)


class _Nobody:
    """In place of the collector and the sampler, which only the first process has."""

    def __call__(self, step: int) -> Any:  # noqa: ARG002
        raise RuntimeError("only the first process collects rollouts")

    def publish(self, state: Any, *, version: int) -> None:  # noqa: ARG002
        raise RuntimeError("only the first process publishes weights")
