"""The engine's own copy of a model: checked for what the engine can express, packed for the processor, replaceable.

The copy is deep, so training the original changes nothing that is sampled until new weights are published.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import ModelError
from .attention import ATTENTION_NAME
from .packed import Packed, PackedLinear, packed

# The rotary frequencies of these change with the length of the text, so stored keys would grow stale.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


def check_supported(model: Any) -> None:
    """Refuse what the engine's attention cannot express. Raises `ModelError` that names the feature."""
    config = model.config.get_text_config(decoder=True)
    found = []
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds - {"full_attention", "sliding_attention"}:
        found.append(f"layers of type {', '.join(sorted(kinds - {'full_attention', 'sliding_attention'}))}")
    for name in ("attn_logit_softcapping", "attention_chunk_size", "alibi", "kv_lora_rank"):
        if getattr(config, name, None):
            found.append(f"{name}={getattr(config, name)}")
    if getattr(model.config, "is_encoder_decoder", False):
        found.append("an encoder")
    rope_types = _rope_types(getattr(config, "rope_parameters", None) or {}) & _LENGTH_DEPENDENT_ROPE
    found += [f"rope_type={kind!r}" for kind in sorted(rope_types)]
    if not getattr(model, "_supports_attention_backend", False):
        found.append("an attention that cannot be exchanged")
    if found:
        raise ModelError(
            f"the embedded engine cannot run {type(model).__name__} with {'; '.join(found)}; it runs decoders with "
            "rotary positions and attention in full or in a sliding window (Llama, Qwen2, Qwen3, SmolLM2, Mistral, "
            "Gemma 3): choose one of these, or serve this model with vLLM"
        )


def _rope_types(parameters: Mapping[str, Any]) -> set[str]:
    """All values of `rope_type`; the parameters may be nested by layer type."""
    types = {value for key, value in parameters.items() if key == "rope_type"}
    for value in parameters.values():
        if isinstance(value, Mapping):
            types |= _rope_types(value)
    return types


class OwnWeights:
    """A copy of a model that nobody else holds."""

    def __init__(self, model: Any) -> None:
        self.model = _detached_copy(model)
        self._tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - {
            name for name, _ in model.named_parameters()
        }
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        self._may_lack = self._tied | buffers.keys()
        """The names that a state need not have. Buffers that it has are taken, such as the experts' bias of GLM-4."""
        self._tensors: dict[str, torch.Tensor] = dict(self.model.named_parameters(remove_duplicate=False)) | buffers
        self._packed: dict[tuple[str, ...], PackedLinear] = {}
        """By the names of the linear layers that they stand for."""

    def pack(self, forms: Sequence[type[Packed]]) -> None:
        """Set our attention, and exchange what can be packed where that exists: float32 on a CPU."""
        self.model.set_attn_implementation(ATTENTION_NAME)
        parameter = next(self.model.parameters())
        if (
            parameter.device.type != "cpu"
            or parameter.dtype != torch.float32
            or not torch.backends.mkldnn.is_available()
        ):
            return
        for name, module in list(self.model.named_modules()):
            if not _is_in(self.model, name, module):
                continue  # a part of what was exchanged before
            if (made := packed(module, forms)) is not None:
                self.model.set_submodule(name, made)
                self._keep(name, made)

    def _keep(self, name: str, made: Packed) -> None:
        for parts, linear in made.linears().items():
            names = tuple(f"{name}.{part}" if part else name for part in parts)
            self._packed[names] = linear
            for one, bias in zip(names, linear.biases, strict=True):
                if bias is not None:
                    self._tensors[f"{one}.bias"] = bias
                if f"{one}.weight" not in self._tied:
                    # The plain weight is freed; one that is tied to the embedding stays there.
                    del self._tensors[f"{one}.weight"]

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises `ModelError` unless `state` has every weight in its shape, and nothing else."""
        shapes = {name: tuple(t.shape) for name, t in self._tensors.items()}
        for names, linear in self._packed.items():
            shapes |= {f"{name}.weight": shape for name, shape in zip(names, linear.shapes, strict=True)}
        missing = sorted(shapes.keys() - state.keys() - self._may_lack)
        unknown = sorted(state.keys() - shapes.keys())
        wrong = [n for n in sorted(shapes.keys() & state.keys()) if tuple(state[n].shape) != shapes[n]]
        if not missing and not unknown and not wrong:
            return
        parts = [f"{len(names)} {what}, first {names[0]}" for names, what in
                 ((missing, "missing"), (unknown, "unknown"), (wrong, "of another shape")) if names]  # fmt: skip
        raise ModelError(
            f"the published weights do not fit the engine's model: {'; '.join(parts)}; publish the state_dict() of "
            "the same model, with adapters merged"
        )

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy a checked `state` in."""
        for name, tensor in state.items():
            if name in self._tensors:
                self._tensors[name].copy_(tensor)
        for names, linear in self._packed.items():
            weights = [f"{name}.weight" for name in names]
            linear.load([state[name] if name in state else self._tensors[name] for name in weights])


def _detached_copy(model: Any) -> Any:
    own = copy.deepcopy(model)
    for parameter in own.parameters():
        parameter.grad = None
        parameter.requires_grad_(False)
    return own.eval()


def _is_in(model: Any, name: str, module: nn.Module) -> bool:
    try:
        return model.get_submodule(name) is module
    except AttributeError:
        return False
