"""The policy that training must not drift far from: a copy of the weights, taken anew every so many steps.

A fixed reference holds a long run back; one that follows did better (Bespoke Labs refresh it every 100 steps).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file

from .processes import sharded
from .sharding import full, let_go, present_state, shard_frozen

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
