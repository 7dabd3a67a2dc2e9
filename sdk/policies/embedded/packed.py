"""Parts of a model for inference in float32 on a CPU: weights in oneDNN's blocked order, and few operations between.

A decode step of a few rows reads all weights, and as long as that takes half of a step went by between the products:
some seventy small operations a layer, while the other threads wait. Here they are half as many.

A part is exchanged only where it was seen to compute the same on random numbers; everything else stays the model's own.

Axes: N tokens, H query heads, K key heads, D head size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import nn

from ..models.rms_norm import epsilon_of, inverse_rms, is_rms_norm
from .attention import Layer, PrefillStep, Segment, Step

_TRIAL_TOKENS = 5
_TRIAL_FAILS = (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)


class PackedLinear(nn.Module):  # type: ignore[misc]
    """One or several `nn.Linear` of the same input, their weights laid out once, side by side (about twice as fast)."""

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        self.shapes = [tuple(linear.weight.shape) for linear in linears]
        """Of the weights, each [out, in]."""
        self.biases: list[torch.Tensor | None] = [None] * len(linears)
        """Views of the one bias that there is; None for a linear that has none."""
        self._bias = None
        if any(linear.bias is not None for linear in linears):
            self._bias = torch.cat([_bias_of(linear) for linear in linears])
            views = self._bias.split([out for out, _ in self.shapes])
            self.biases = [v if one.bias is not None else None for one, v in zip(linears, views, strict=True)]
        self.load([linear.weight for linear in linears])

    @classmethod
    def of(cls, module: nn.Module) -> Self | None:
        """What stands for a plain linear layer."""
        return cls(module) if _is_linear(module) else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        """The packed weights by the names, within the module, of the linear layers that they stand for."""
        return {("",): self}

    def load(self, weights: Sequence[torch.Tensor]) -> None:
        """Take new weights."""
        joined = weights[0].detach() if len(weights) == 1 else torch.cat([w.detach().float() for w in weights])
        self._packed = torch.ops.mkldnn._reorder_linear_weight(joined.float().contiguous())

    def forward(self, x: torch.Tensor, then: str = "none") -> torch.Tensor:
        """x @ weight^T + bias, then the elementwise function that oneDNN knows by this name."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, then, [], "")

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """(x @ weight^T + bias) * other."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self._bias, "mul")


class PackedMlp(nn.Module):  # type: ignore[misc]
    """down(silu(gate(x)) * up(x)) (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate, self.up, self.down = (PackedLinear(one) for one in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """What stands for `module`, where that computes just this."""
        if not _consists_of(module, "gate_proj", "up_proj", "down_proj"):
            return None
        x = _random(1, _TRIAL_TOKENS, module.gate_proj.in_features)
        try:
            alike = all(_same(cls(trial)(x), trial(x)) for trial in _trials(module, "gate_proj", "up_proj"))
        except _TRIAL_FAILS:
            return None  # it takes or needs something else
        return cls(module) if alike else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        return {("gate_proj",): self.gate, ("up_proj",): self.up, ("down_proj",): self.down}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down(self.up.times(x, self.gate(x, "swish")))
        return down


class PackedAttention(nn.Module):  # type: ignore[misc]
    """Rotary attention without a window: one product for queries, keys and values, whose positions are set in place."""

    def __init__(self, attention: Any, layer: Layer) -> None:
        super().__init__()
        self._layer, self._size = layer, int(attention.head_dim)
        self._heads = attention.q_proj.out_features // self._size
        self._key_heads = attention.k_proj.out_features // self._size
        self.qkv = PackedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = PackedLinear(attention.o_proj)
        self.q_norm, self.k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """What stands for `module`, where that computes just this. Its model's attention is ours already."""
        if not _consists_of(module, "q_proj", "k_proj", "v_proj", "o_proj", others=("q_norm", "k_norm")):
            return None
        try:
            layers = [cls._tried(trial) for trial in _trials(module, "v_proj")]
        except _TRIAL_FAILS:
            return None  # it takes or needs something else
        return cls(module, layers[0]) if layers[0] is not None and None not in layers else None

    @classmethod
    def _tried(cls, attention: Any) -> Layer | None:
        """As which layer it attends; None where it computes something else."""
        width, size = attention.q_proj.in_features, int(attention.head_dim)
        step = _TrialStep(attention.k_proj.out_features // size, size)
        expected = _attended(attention, step, width, size)
        if step.layer is None or step.layer.window is not None:
            return None
        layer, made = step.layer, cls(attention, step.layer)
        if not _same(_attended(made, step, width, size), expected):
            return None
        try:
            of_half = _attended(attention, step, width, size // 2)
        except _TRIAL_FAILS:
            return layer  # it turns whole heads and nothing else
        return layer if _same(_attended(made, step, width, size // 2), of_half) else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        return {("q_proj", "k_proj", "v_proj"): self.qkv, ("o_proj",): self.out}

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        step: Step | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """As transformers' layers call their attention: `hidden_states` [1, N, hidden], cosines and sines [1, N, D], or
        fewer than D where only the first numbers of a head are turned."""
        if step is None:
            raise NotImplementedError("attention without a step")
        q, k = self._heads, self._key_heads
        x_NJD = self.qkv(hidden_states)[0].unflatten(-1, (q + 2 * k, self._size))
        if self.q_norm is not None:
            x_NJD[:, :q] = self.q_norm(x_NJD[:, :q])
        if self.k_norm is not None:
            x_NJD[:, q : q + k] = self.k_norm(x_NJD[:, q : q + k])
        cos, sin = position_embeddings
        _rotate(x_NJD[:, : q + k, : cos.shape[-1]], cos[0, :, None], sin[0, :, None])
        x_JND = x_NJD.transpose(0, 1)
        seen_NHD = step.attend(self._layer, x_JND[:q], x_JND[q : q + k], x_JND[q + k :])
        return self.out(seen_NHD.flatten(1)[None]), None


class PackedNorm(nn.Module):  # type: ignore[misc]
    """x / sqrt(mean(x^2) + epsilon) * weight."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self._epsilon = norm.weight, epsilon_of(norm)

    @classmethod
    def of(cls, module: nn.Module) -> Self | None:
        """What stands for `module`, where that is a plain RMS norm."""
        return cls(module) if is_rms_norm(module) else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        return {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * inverse_rms(x, self._epsilon)).mul_(self.weight)


Packed = PackedAttention | PackedMlp | PackedNorm | PackedLinear
EVERY_FORM: tuple[type[Packed], ...] = (PackedAttention, PackedMlp, PackedNorm, PackedLinear)


def packed(module: nn.Module, forms: Sequence[type[Packed]]) -> Packed | None:
    """What computes the same as `module` with fewer operations, the first of `forms` that does; None where none does,
    or somebody listens."""
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return None
    return next((made for form in forms if (made := form.of(module)) is not None), None)


class _TrialStep:
    """A first segment of a few tokens; tells as which layer it was asked to attend."""

    def __init__(self, key_heads: int, size: int) -> None:
        self.layer: Layer | None = None
        store = torch.zeros(1, 2, key_heads, _TRIAL_TOKENS, size)
        self._step = PrefillStep([Segment(range(_TRIAL_TOKENS), store, 0)], store.device)

    def attend(self, layer: Layer, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor) -> torch.Tensor:
        self.layer = layer
        return self._step.attend(replace(layer, index=0), q_HND, k_KND, v_KND)


def _attended(attention: Any, step: _TrialStep, width: int, turned: int) -> torch.Tensor:
    """What `attention` makes of random states, with cosines and sines for so many numbers of a head."""
    found: torch.Tensor = attention(
        hidden_states=_random(1, _TRIAL_TOKENS, width),
        position_embeddings=tuple(_random(2, 1, _TRIAL_TOKENS, turned)),
        attention_mask=None,
        step=step,
    )[0]
    return found


def _rotate(x_NJD: torch.Tensor, cos_N1D: torch.Tensor, sin_N1D: torch.Tensor) -> None:
    """Rotary positions (RoPE, arXiv 2104.09864) in place, a number's partner half of D away."""
    low, high = x_NJD.tensor_split(2, dim=-1)
    turned_low, turned_high = torch.cat([high, low], dim=-1).mul_(sin_N1D).tensor_split(2, dim=-1)
    x_NJD.mul_(cos_N1D)
    low.sub_(turned_low)
    high.add_(turned_high)


def _bias_of(linear: nn.Linear) -> torch.Tensor:
    if linear.bias is None:
        return linear.weight.new_zeros(linear.out_features)
    return linear.bias.detach()


def _consists_of(module: nn.Module, *linears: str, others: Sequence[str] = ()) -> bool:
    """Whether it has these linear layers, and no other state than that of these and `others`."""
    if "forward" in module.__dict__ or any(True for _ in module.buffers()):
        return False
    known = {*linears, *others}
    if any(name.split(".")[0] not in known for name, _ in module.named_parameters()):
        return False
    return all(_is_linear(module._modules.get(name)) for name in linears)


def _trials(module: Any, *loud: str) -> Iterator[Any]:
    """Copies with random weights, since a module's own may be zeros that hide what it computes; then once more with a
    thousand times the weights of `loud`, since small numbers pass where large ones are clamped."""
    config = getattr(module, "config", None)
    for factor in (1.0, 1000.0):
        trial = copy.deepcopy(module, {id(config): config})
        for name, weight in trial.named_parameters():
            scale = 1.5 / weight.shape[-1] ** 0.5 if weight.dim() > 1 else 0.5
            if weight.dim() > 1 and name.split(".")[0] in loud:
                scale *= factor
            weight.copy_(_random(*weight.shape)).mul_(scale)
        yield trial


def _is_linear(module: Any) -> bool:
    return type(module) is nn.Linear and "forward" not in module.__dict__


def _random(*shape: int) -> torch.Tensor:
    """The same numbers over and over: to draw millions for each layer would take seconds."""
    count = math.prod(shape)
    drawn = torch.randn(4099, generator=torch.Generator().manual_seed(0))
    return drawn.repeat(-(-count // len(drawn)))[:count].view(shape)


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    most = float(expected.abs().max())
    return most > 0 and bool(torch.allclose(found, expected, rtol=0, atol=1e-4 * most))
