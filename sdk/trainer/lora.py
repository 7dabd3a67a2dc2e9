"""LoRA: train two small matrices beside each linear layer and leave the layer as it is (arXiv 2106.09685).

The adapted model is PEFT's; this module names the few things that the rest needs of it, for a model with adapters and
for one without: its plain transformers model, its weights with the adapters merged, and what is kept of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils import load_peft_weights

from ..errors import ConfigError, ModelError
from ..policies.models import load_model, save_model
from ..policies.models.saving import ADAPTER_FOLDER
from ..policies.protocol import Sampling
from ..policies.tool_prompt import TrainedToolPrompt
from .config import TrainConfig


def with_adapters(model: Any, config: TrainConfig) -> Any:
    """`model` as it is, or with fresh adapters on every linear layer but the head where `lora.r` asks for them.

    The adapters change nothing at first, and equal seeds give equal ones. The model's own weights are frozen; they are
    shared with `model`, whose linear layers are exchanged in place.

    Raises `ConfigError` for a mixture of experts that has the weights of its experts in one tensor, as most in
    transformers: PEFT adapts such tensors, and `merged_state` cannot merge that.
    """
    if not config.lora.r:
        return model
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        adapted = get_peft_model(
            model,
            LoraConfig(
                r=config.lora.r,
                lora_alpha=config.lora.lora_alpha or 2 * config.lora.r,
                lora_dropout=0.0,  # a shared token is computed once, so its rows could not have noise of their own
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
        )
    for one in adapted.peft_config.values():  # PEFT writes a set in an order that each process has its own of
        one.target_modules = sorted(one.target_modules)
    packed = [
        name
        for name, one in plain_model(adapted).named_modules()
        if isinstance(one, LoraLayer) and getattr(one, "parameter_name", "weight") != "weight"
    ]
    if packed:
        raise ConfigError(
            f"lora.r is {config.lora.r}, but {packed[0]} of the model has the weights of all its experts in one "
            "tensor, which adapters here cannot reach; set lora.r to 0, which trains all weights, or take a model "
            "without experts"
        )
    return adapted


def plain_model(model: Any) -> Any:
    """The transformers model: `model` itself, or the one inside the adapters."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def merged_state(model: Any) -> Mapping[str, torch.Tensor]:
    """The weights by the names that they have without adapters, what the adapters add included.

    Without adapters this is `state_dict()`. With them each adapted weight is a new tensor `W + scaling * B @ A`, and
    the model is left as it is: merging in place and back would change the weights by rounding.
    """
    if not isinstance(model, PeftModel):
        state: dict[str, torch.Tensor] = model.state_dict()
        return state
    inner = model.get_base_model()
    adapted = {name: module for name, module in inner.named_modules() if isinstance(module, LoraLayer)}
    merged: dict[str, torch.Tensor] = {}
    for name, tensor in inner.state_dict().items():
        layer, _, rest = name.partition(".base_layer.")
        if rest:
            added = adapted[layer].get_delta_weight(model.active_adapter).detach() if rest == "weight" else None
            merged[f"{layer}.{rest}"] = tensor if added is None else tensor + added.to(tensor.dtype)
        elif name.partition(".lora_")[0] not in adapted:
            merged[name] = tensor
    return merged


def keep_model(
    model: Any,
    tokenizer: Any,
    folder: Path,
    *,
    family: str | None,
    tool_prompt: TrainedToolPrompt | None = None,
    sampling: Sampling | None = None,
) -> None:
    """Write the model with its adapters merged, so that any library can load it, and the adapter beside it."""
    adapter = model if isinstance(model, PeftModel) else None
    state = merged_state(model) if adapter is not None else None
    save_model(
        plain_model(model),
        tokenizer,
        folder,
        family=family,
        tool_prompt=tool_prompt,
        sampling=sampling,
        state=state,
        adapter=adapter,
    )


def load_kept(model: Any, folder: Path) -> None:
    """Take the weights of a folder that `keep_model` or a checkpoint of TRL's trainer wrote.

    Raises `ModelError` for a folder that is not whole, or that has no adapter for a model with adapters.
    """
    if not isinstance(model, PeftModel):
        # As they were written: in bfloat16, which loading prefers on a GPU, small updates would be lost.
        model.load_state_dict(load_model(str(folder), dtype="float32", device="cpu").model.state_dict())
        return
    places = [place for place in (folder / ADAPTER_FOLDER, folder) if (place / "adapter_config.json").is_file()]
    if not places:
        raise ModelError(f"the folder {str(folder)!r} has no adapter; remove it, and the run makes it again")
    set_peft_model_state_dict(model, load_peft_weights(str(places[0]), device="cpu"))
