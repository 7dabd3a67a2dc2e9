"""Parts of a model packed for inference on a CPU, in float32 or bfloat16: weights in oneDNN's blocked order, and few
operations between.

A decode step of a few rows reads all weights; with the model's own modules half of it went by between the products, in
some seventy small operations a layer, while the other threads waited. Here they are half as many. Linear layers are
packed in every model; attention, MLP and norms in the families whose parts are known to compute what these do. The
decoder compares the whole model with the one it was made from.

Axes: N tokens, J all heads of queries, keys and values, D head size.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from ..models.own_forward import window_of
from .attention import Layer, Step

_FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
"""Of transformers, where `LlamaMLP` and its like are. SmolLM2 is a Llama."""
_MODULES = frozenset(f"transformers.models.{name}.modeling_{name}" for name in _FAMILIES)


@functools.cache
def packs_weights() -> bool:
    """Whether torch has the operations on weights in oneDNN's order, which are not public. Else weights stay as they
    are, and the steps take longer."""
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether parts of a model in `dtype` are packed: float32, and bfloat16 where oneDNN computes in it here."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return False
    if dtype == torch.float32:
        return True
    try:
        return packs_weights() and bool(
            PackedLinear(nn.Linear(16, 16, dtype=dtype))(torch.zeros(1, 16, dtype=dtype)).numel()
        )
    except RuntimeError:  # a processor without such instructions
        return False


class PackedLinear(nn.Module):  # type: ignore[misc]
    """One or several `nn.Linear` of the same input, their weights laid out once, side by side (about twice as fast)."""

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        self.shapes = [tuple(linear.weight.shape) for linear in linears]
        """Of the weights, each [out, in]."""
        self.biases: list[torch.Tensor | None] = [None] * len(linears)
        """Views of the one bias that there is; None for a linear that has none."""
        self._dtype = linears[0].weight.dtype
        self._bias = None
        if any(linear.bias is not None for linear in linears):
            self._bias = torch.cat([_bias_of(linear) for linear in linears])
            views = self._bias.split([out for out, _ in self.shapes])
            self.biases = [v if one.bias is not None else None for one, v in zip(linears, views, strict=True)]
        self.load([linear.weight for linear in linears])

    @classmethod
    def of(cls, module: nn.Module) -> Self | None:
        """What takes the place of a plain linear layer."""
        return cls(module) if _is_linear(module) else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        """The packed weights by the names, within the module, of the linear layers whose place they take."""
        return {("",): self}

    def load(self, weights: Sequence[torch.Tensor]) -> None:
        """Take new weights."""
        own = [weight.detach().to(self._dtype) for weight in weights]
        plain = (own[0] if len(own) == 1 else torch.cat(own)).contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(plain) if packs_weights() else plain.clone()

    def drop(self) -> None:
        """Free the weights; `load` brings others."""
        self._packed = torch.empty(0)

    def forward(self, x: torch.Tensor, then: str = "none") -> torch.Tensor:
        """x @ weight^T + bias, then the function that oneDNN knows by this name: "none" or "swish"."""
        if packs_weights():
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, then, [], "")
        product = F.linear(x, self._packed, self._bias)
        return F.silu(product) if then == "swish" else product

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """(x @ weight^T + bias) * other."""
        if packs_weights():
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self._bias, "mul")
        return F.linear(x, self._packed, self._bias) * other


class PackedMlp(nn.Module):  # type: ignore[misc]
    """down(silu(gate(x)) * up(x)) (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate, self.up, self.down = (PackedLinear(one) for one in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """What takes the place of an MLP of a known family whose activation is SiLU."""
        if not _is_known(module, "MLP") or not _consists_of(module, "gate_proj", "up_proj", "down_proj"):
            return None
        return cls(module) if type(module.act_fn).__name__ in ("SiLU", "SiLUActivation") else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        return {("gate_proj",): self.gate, ("up_proj",): self.up, ("down_proj",): self.down}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down(self.up.times(x, self.gate(x, "swish")))
        return down


class PackedAttention(nn.Module):  # type: ignore[misc]
    """Rotary attention without a window: one product for queries, keys and values, whose positions are set in place."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self._layer = Layer(int(attention.layer_idx), float(attention.scaling))
        self._size = int(attention.head_dim)
        self._heads = attention.q_proj.out_features // self._size
        self._key_heads = attention.k_proj.out_features // self._size
        self.qkv = PackedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = PackedLinear(attention.o_proj)
        self.q_norm, self.k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """What takes the place of an attention of a known family that sees all tokens before."""
        if not _is_known(module, "Attention"):
            return None
        if not _consists_of(module, "q_proj", "k_proj", "v_proj", "o_proj", others=("q_norm", "k_norm")):
            return None
        window = window_of(module, getattr(module.config, "sliding_window", None))
        return cls(module) if window is None else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        return {("q_proj", "k_proj", "v_proj"): self.qkv, ("o_proj",): self.out}

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        step: Step | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """As transformers' layers call their attention: `hidden_states` [1, N, hidden], cosines and sines [1, N, D]."""
        if step is None:
            raise NotImplementedError("attention without a step")
        q, k = self._heads, self._key_heads
        x_NJD = self.qkv(hidden_states)[0].unflatten(-1, (q + 2 * k, self._size))
        if self.q_norm is not None:
            x_NJD[:, :q] = self.q_norm(x_NJD[:, :q])
        if self.k_norm is not None:
            x_NJD[:, q : q + k] = self.k_norm(x_NJD[:, q : q + k])
        cos, sin = position_embeddings
        _rotate(x_NJD[:, : q + k], cos[0, :, None], sin[0, :, None])
        x_JND = x_NJD.transpose(0, 1)
        seen_NHD = step.attend(self._layer, x_JND[:q], x_JND[q : q + k], x_JND[q + k :])
        return self.out(seen_NHD.flatten(1)[None]), None


class PackedNorm(nn.RMSNorm):  # type: ignore[misc]
    """torch's own RMS norm, one operation for the model's six."""

    def __init__(self, norm: Any) -> None:
        super().__init__(norm.weight.shape, eps=norm.variance_epsilon)
        self.weight = norm.weight

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """What takes the place of a norm of a known family."""
        return cls(module) if _is_known(module, "RMSNorm") and [*module.state_dict()] == ["weight"] else None

    def linears(self) -> Mapping[tuple[str, ...], PackedLinear]:
        return {}


Packed = PackedAttention | PackedMlp | PackedNorm | PackedLinear
EVERY_FORM: tuple[type[Packed], ...] = (PackedAttention, PackedMlp, PackedNorm, PackedLinear)


def packed(module: nn.Module, forms: Sequence[type[Packed]]) -> Packed | None:
    """What computes the same as `module` with fewer operations, the first of `forms` that does; None where none does,
    or somebody listens."""
    hooks = "_forward_hooks", "_forward_pre_hooks"
    if any(getattr(part, name, True) for part in module.modules() for name in hooks):
        return None  # or torch does not show any more who listens
    return next((made for form in forms if (made := form.of(module)) is not None), None)


def _rotate(x_NJD: torch.Tensor, cos_N1D: torch.Tensor, sin_N1D: torch.Tensor) -> None:
    """Rotary positions (RoPE, arXiv 2104.09864) in place, a number's partner half of D away."""
    low, high = x_NJD.tensor_split(2, dim=-1)
    turned_low, turned_high = torch.cat([high, low], dim=-1).mul_(sin_N1D).tensor_split(2, dim=-1)
    x_NJD.mul_(cos_N1D)
    low.sub_(turned_low)
    high.add_(turned_high)


def _bias_of(linear: nn.Linear) -> torch.Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()


def _is_known(module: Any, part: str) -> bool:
    """Whether it is such a part of a known family, as transformers wrote it."""
    kind = type(module)
    return kind.__module__ in _MODULES and kind.__name__.endswith(part) and "forward" not in module.__dict__


def _consists_of(module: nn.Module, *linears: str, others: Sequence[str] = ()) -> bool:
    """Whether it has these linear layers, and no other state than that of these and `others`."""
    if any(name.split(".")[0] not in {*linears, *others} for name in module.state_dict()):
        return False
    return all(_is_linear(getattr(module, name, None)) for name in linears)


def _is_linear(module: Any) -> bool:
    return type(module) is nn.Linear and "forward" not in module.__dict__
