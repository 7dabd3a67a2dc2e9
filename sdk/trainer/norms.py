"""Root-mean-square norms (arXiv 1910.07467) with a backward pass of their own.

Composed of torch's elementary operations, a norm of transformers walks about fifteen times over its activations,
forward and backward; here it is eight times, and one tensor of that size is kept instead of three. A norm is little,
but every layer has two: of a training step on a CPU they were a thirtieth.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..policies.models.rms_norm import epsilon_of, inverse_rms, is_rms_norm


def quicken_norms(model: Any) -> int:
    """Let the norms of `model` compute float32 on a CPU by `rms_norm`; everything else stays with their own forward.

    Only those that were seen to compute just that: each is tried on random numbers. Returns how many.
    """
    done = 0
    for module in model.modules():
        if is_rms_norm(module):
            module.forward = types.MethodType(forward, module)
            done += 1
    return done


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis; differentiable once."""
    normed: torch.Tensor = _RmsNorm.apply(x, weight, epsilon)
    return normed


def forward(self: Any, x: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
    """The forward of a norm. Called as the method that it stands for: what unpickles a norm finds its class's own."""
    if (
        not more
        and not named
        and x.device.type == "cpu"
        and x.dtype == self.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    ):
        return rms_norm(x, self.weight, epsilon_of(self))
    own: torch.Tensor = type(self).forward(self, x, *more, **named)
    return own


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        scale = inverse_rms(x, epsilon)
        unit = x * scale
        ctx.save_for_backward(unit, weight, scale)
        return unit * weight

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        unit, weight, scale = ctx.saved_tensors
        size = unit.shape[-1]
        taken = grad * unit
        dweight = taken.reshape(-1, size).sum(0) if ctx.needs_input_grad[1] else None
        dx = None
        if ctx.needs_input_grad[0]:
            # With u = x s and s = 1 / rms: dx = s (g w - u mean(g w u)).
            mean = torch.mv(taken.reshape(-1, size), weight).view(scale.shape).div_(size)
            dx = torch.mul(grad, weight, out=taken).addcmul_(unit, mean, value=-1).mul_(scale)
        return dx, dweight, None
