"""Log-probability and entropy of labels under a linear head, with a backward pass of its own.

The gradient of a label's log-probability by the logits is one at the label minus the probabilities p. So that of the
hidden state is W[label] - p W, and that of the weights p^T h taken from row `label`: products with p itself, which the
forward pass has at hand. Nothing of the size of the logits is made beside it, and where p is kept the head's product
is not computed again.

Axes: U predicting nodes, K scored labels, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_SLICE_NUMBERS = 2**20
"""Logits that are worked on at a time on a CPU: as many as a core's cache holds. The whole chunk elsewhere."""


@dataclass(frozen=True)
class Labels:
    """Which labels each node predicts; sorted by node."""

    place_K: torch.Tensor
    """The node of each label, as a place in [U]."""
    target_K: torch.Tensor
    """The label's token."""
    counts: list[int]
    """[U] labels of each node."""

    def chunks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """(nodes, labels) of `size` nodes each."""
        first = 0
        for start in range(0, len(self.counts), size):
            end = min(start + size, len(self.counts))
            last = first + sum(self.counts[start:end])
            yield slice(start, end), slice(first, last)
            first = last


@dataclass(frozen=True)
class Limits:
    """What may be in memory at the same time."""

    chunk: int
    """Nodes whose logits are computed together."""
    kept_bytes: int
    """Of probabilities, kept for the backward pass; those of the chunks beyond are computed again there."""


def linear_scores(
    hidden_UH: torch.Tensor, head: torch.nn.Linear, labels: Labels, temperature: float, limits: Limits
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[K] log-probability, entropy of the distribution it is from, and whether it is that distribution's most probable.

    Equal to log_softmax(head(hidden) / temperature), differentiable once.
    """
    scores: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _LinearScores.apply(
        hidden_UH, head.weight, head.bias, labels, temperature, limits
    )
    return scores


class _LinearScores(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        hidden_UH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        labels: Labels,
        temperature: float,
        limits: Limits,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        node_bytes = weight_VH.shape[0] * hidden_UH.element_size()
        learns = any(ctx.needs_input_grad[:3])
        kept: list[torch.Tensor] = []
        parts = []
        for nodes, these in labels.chunks(limits.chunk):
            logits_UV = F.linear(hidden_UH[nodes], weight_VH, bias_V)
            place_K = labels.place_K[these] - nodes.start
            chosen_K = logits_UV[place_K, labels.target_K[these]].div_(temperature)
            keeps = learns and node_bytes * nodes.stop <= limits.kept_bytes
            norm_U, entropy_U, largest_U = _normalise(logits_UV, temperature, becomes_probabilities=keeps)
            parts.append((chosen_K, place_K, norm_U, entropy_U, largest_U))
            if keeps:
                kept.append(logits_UV)
        norm_U = torch.cat([part[2] for part in parts])
        entropy_U = torch.cat([part[3] for part in parts])
        log_probs_K = torch.cat([chosen - norm[place] for chosen, place, norm, _, _ in parts])
        top1_K = torch.cat([(chosen >= largest[place]).float() for chosen, place, _, _, largest in parts])
        ctx.save_for_backward(hidden_UH, weight_VH, bias_V, labels.place_K, labels.target_K, norm_U, entropy_U, *kept)
        ctx.labels, ctx.temperature, ctx.limits = labels, temperature, limits
        ctx.mark_non_differentiable(top1_K)
        ctx.set_materialize_grads(False)
        return log_probs_K, entropy_U[labels.place_K], top1_K

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_K: torch.Tensor | None, grad_entropy_K: torch.Tensor | None, _: Any) -> Any:
        hidden_UH, weight_VH, bias_V, place_K, target_K, norm_U, entropy_U, *kept = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        if grad_K is None:
            grad_K = torch.zeros_like(target_K, dtype=hidden_UH.dtype)
        grad_K = grad_K / ctx.temperature
        of_node_U = torch.zeros_like(norm_U).index_add_(0, place_K, grad_K)
        dhidden_UH = torch.empty_like(hidden_UH) if wants_hidden else None
        dweight_VH = dbias_V = None
        for number, (nodes, these) in enumerate(ctx.labels.chunks(ctx.limits.chunk)):
            h_UH, grad, place, target = hidden_UH[nodes], grad_K[these], place_K[these] - nodes.start, target_K[these]
            factor_U1 = of_node_U[nodes, None]
            if grad_entropy_K is not None:
                # The entropy's gradient by a logit is -p (log p + entropy), to be added to that of the log-probability.
                of_entropy_U = torch.zeros_like(norm_U[nodes]).index_add_(0, place, grad_entropy_K[these])
                log_p_UV = F.linear(h_UH, weight_VH, bias_V).div_(ctx.temperature).sub_(norm_U[nodes, None])
                p_UV = log_p_UV.exp()
                log_p_UV.add_(entropy_U[nodes, None]).mul_(of_entropy_U[:, None] / ctx.temperature)
                p_UV.mul_(log_p_UV.add_(factor_U1))
                factor_U1 = torch.ones_like(factor_U1)
            elif number < len(kept):
                p_UV = kept[number]
            else:
                p_UV = F.linear(h_UH, weight_VH, bias_V)
                _normalise(p_UV, ctx.temperature, becomes_probabilities=True)
            if dhidden_UH is not None:
                taken_UH = torch.mm(p_UV, weight_VH).mul_(-factor_U1)
                dhidden_UH[nodes] = taken_UH.index_add_(0, place, weight_VH[target] * grad[:, None])
            if wants_weight:
                scaled_UH = h_UH * -factor_U1
                if dweight_VH is None:
                    dweight_VH = torch.mm(p_UV.t(), scaled_UH)
                else:
                    dweight_VH.addmm_(p_UV.t(), scaled_UH)
                dweight_VH.index_add_(0, target, h_UH[place] * grad[:, None])
            if wants_bias:
                dbias_V = torch.zeros_like(bias_V) if dbias_V is None else dbias_V
                dbias_V.addmv_(p_UV.t(), -factor_U1[:, 0]).index_add_(0, target, grad)
        return dhidden_UH, dweight_VH, dbias_V, None, None, None


def _normalise(
    logits_UV: torch.Tensor, temperature: float, *, becomes_probabilities: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[U] log of the normaliser, entropy and largest logit, all at the temperature. `logits_UV` is overwritten."""
    nodes, vocabulary = logits_UV.shape
    rows = max(1, _SLICE_NUMBERS // vocabulary) if logits_UV.device.type == "cpu" else nodes
    parts = []
    for z_UV in logits_UV.split(rows):
        if temperature != 1.0:
            z_UV.div_(temperature)
        largest_U1 = z_UV.amax(-1, keepdim=True)
        p_UV = z_UV.sub_(largest_U1).exp()
        sum_U1 = p_UV.sum(-1, keepdim=True)
        log_sum_U1 = sum_U1.log()
        mean_U1 = z_UV.mul_(p_UV).sum(-1, keepdim=True) / sum_U1
        if becomes_probabilities:
            torch.div(p_UV, sum_U1, out=z_UV)
        parts.append(torch.cat([log_sum_U1 + largest_U1, log_sum_U1 - mean_U1, largest_U1], 1))
    norm_U, entropy_U, largest_U = torch.cat(parts).unbind(1)
    return norm_U, entropy_U, largest_U
