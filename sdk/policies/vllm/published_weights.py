"""Weights in the form in which a server takes them: a folder with all of them, or a LoRA adapter under a new name.

All of them without a folder: see `planes`.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from ...errors import PolicyFailure
from ..models.saving import fresh_folder
from .control import call, exchanged, new_name

_WEIGHTS_FILE = "model.safetensors"


class Weights(Protocol):
    """A version of the weights. `put` gives it to a server; what is sampled from it then is named `served`."""

    @property
    def version(self) -> int: ...

    def at_hand(self) -> AbstractContextManager[None]:
        """In the block they are published for the first time; later they are put only to servers that come back."""
        ...

    def put(self, url: str, client: httpx.Client, base: str) -> str:
        """Returns the model name to ask for. Raises `PolicyFailure` where the server refuses it, `httpx.HTTPError`
        where it cannot be reached."""
        ...

    def remove(self) -> None:
        """No server needs the files any more."""
        ...


class _Kept:
    """In files, or in the server: whatever the trainer does with its own."""

    def at_hand(self) -> AbstractContextManager[None]:
        """See `Weights.at_hand`."""
        return nullcontext()


@dataclass(frozen=True)
class AsStarted(_Kept):
    """The weights that the server began with."""

    version: int = 0

    def put(self, url: str, client: httpx.Client, base: str) -> str:  # noqa: ARG002
        return base

    def remove(self) -> None:
        """There is nothing of ours."""


@dataclass(frozen=True)
class Checkpoint(_Kept):
    """All weights, in a folder that the servers can read."""

    folder: Path
    version: int
    mark: str = field(default_factory=new_name)
    """What the server says that it has, until it is started again."""

    def put(self, url: str, client: httpx.Client, base: str) -> str:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        with exchanged(url, client, mark=self.mark, version=self.version):
            call(client, f"{url}/collective_rpc", reload)
        return base

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Adapter(_Kept):
    """A LoRA adapter in PEFT's format, under a name that no other version has: the prefix cache is keyed on it."""

    folder: Path
    version: int
    name: str = field(default_factory=new_name)

    def put(self, url: str, client: httpx.Client, base: str) -> str:  # noqa: ARG002
        try:
            call(client, f"{url}/v1/load_lora_adapter", {"lora_name": self.name, "lora_path": str(self.folder)})
        except PolicyFailure as error:
            # A server that was cut off while it answered has it; no other adapter has this name.
            if "has already been loaded" not in str(error):
                raise
        return self.name

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def unload(url: str, client: httpx.Client, name: str) -> None:
    """Take an adapter away from a server. Raises as `Weights.put` does."""
    call(client, f"{url}/v1/unload_lora_adapter", {"lora_name": name})


def write_checkpoint(state: Mapping[str, Any], folder: Path) -> None:
    """All tensors of `state` as `model.safetensors`. A head that is tied to the embedding is written beside it: a
    server may have untied them (see `untied`).

    Raises `ModelError` where the folder cannot be written.
    """
    with fresh_folder(folder) as made:
        _save(state, made)


def untied(model: Any, tokenizer: Any, folder: Path) -> Path:
    """A copy of a transformers model whose head has a weight of its own, equal to the embedding's.

    vLLM for CPUs packs the head's weight when it starts, and does not when it takes new weights for a head that is
    tied to the embedding: it would go on with the old head.
    """
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    with fresh_folder(folder) as made:
        config.save_pretrained(made)
        model.generation_config.save_pretrained(made)
        tokenizer.save_pretrained(made)
        _save(model.state_dict(), made)
    return folder


def _save(state: Mapping[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    seen: set[int] = set()
    kept: dict[str, Any] = {}
    for name, tensor in state.items():
        shared = tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        kept[name] = tensor.detach().clone().cpu() if shared else tensor.detach().cpu().contiguous()
    save_file(kept, folder / _WEIGHTS_FILE, metadata={"format": "pt"})
