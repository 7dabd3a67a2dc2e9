"""Which modules of a model are root-mean-square norms (arXiv 1910.07467) and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

_EPSILONS = ("variance_epsilon", "eps")
"""What transformers' models call it."""


def epsilon_of(norm: Any) -> float:
    """What is added to the mean of the squares."""
    return next(float(getattr(norm, name)) for name in _EPSILONS if isinstance(getattr(norm, name, None), float))


def inverse_rms(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + epsilon) over the last axis, which stays with one number. Its steps change their own result,
    so that no gradient goes through it."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


def is_rms_norm(module: Any) -> bool:
    """Whether `module` computes x / sqrt(mean(x^2) + epsilon) * weight over the last axis: tried on random numbers."""
    if not type(module).__name__.endswith("RMSNorm") or "forward" in module.__dict__:
        return False
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1 or not weight.numel():
        return False
    if [name for name, _ in module.named_parameters()] != ["weight"]:
        return False
    if list(module.children()) or list(module.buffers()):
        return False
    if not any(isinstance(getattr(module, name, None), float) for name in _EPSILONS):
        return False
    chance = torch.Generator().manual_seed(0)
    trial = copy.copy(module)
    trial._parameters = {"weight": nn.Parameter(torch.randn(weight.shape, generator=chance))}
    x = torch.randn(3, *weight.shape, generator=chance) * torch.tensor([[1e-3], [1.0], [30.0]])
    try:
        with torch.no_grad():
            expected = type(trial).forward(trial, x)
            found = x * inverse_rms(x, epsilon_of(trial)) * trial.weight
    except Exception:
        return False  # it takes or needs something else: it is left alone
    return bool(torch.allclose(found, expected, rtol=1e-5, atol=1e-6))
