"""Choosing tokens from logits, so that a request's tokens do not depend on what else is in the batch.

Each request draws one uniform number for each token from a counter-based generator of its own, and takes the token at
which the cumulative distribution passes it.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..protocol import Sampling

_BLOCK = 256


def generator(seed: int) -> np.random.Generator:
    """The random numbers of one request (Philox, Salmon et al. 2011); any whole number is a seed."""
    return np.random.Generator(np.random.Philox(key=seed % 2**128))


def choose(
    logits_RV: torch.Tensor, samplings: Sequence[Sampling], generators: Sequence[np.random.Generator]
) -> tuple[list[int], list[float]]:
    """One token for each row and its log-probability, in nats.

    The log-probability is of the distribution sampled from, after temperature and `top_p`; at temperature 0 it is
    the model's own, untempered. Logits of any floating type; all arithmetic in float32, cumulative sums in float64.
    """
    logits_RV = logits_RV.float()
    device = logits_RV.device
    if any(s.temperature not in (0.0, 1.0) for s in samplings):
        temperatures_R = torch.tensor([s.temperature or 1.0 for s in samplings], device=device)
        logits_RV = logits_RV / temperatures_R[:, None]
    logits_RV = _nucleus(logits_RV, samplings)
    # A greedy row draws nothing; its number is never used.
    draws = [0.0 if s.temperature == 0 else g.random() for s, g in zip(samplings, generators, strict=True)]
    tokens_R, norm_R = _draw(logits_RV, torch.tensor(draws, dtype=torch.float64, device=device))
    greedy = [i for i, s in enumerate(samplings) if s.temperature == 0]
    if greedy:
        tokens_R[greedy] = logits_RV[greedy].argmax(dim=-1)
    logprobs_R = logits_RV.gather(1, tokens_R[:, None])[:, 0] - norm_R
    return tokens_R.tolist(), logprobs_R.tolist()


def _draw(logits_RV: torch.Tensor, draws_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens at which the cumulative distributions pass `draws_R`, in [0, 1), and the logarithms of the sums.

    In two steps, over sums of blocks and in the block that is passed: no cumulative sum over all of V is ever made.
    """
    rows, vocabulary = logits_RV.shape
    blocks = -(-vocabulary // _BLOCK)
    probs_RV = logits_RV.new_zeros(rows, blocks * _BLOCK)
    largest_R1 = logits_RV.amax(dim=-1, keepdim=True)
    torch.sub(logits_RV, largest_R1, out=probs_RV[:, :vocabulary]).exp_()
    probs_RBb = probs_RV.view(rows, blocks, _BLOCK)
    cdf_RB = probs_RBb.sum(dim=-1).double().cumsum(dim=-1)
    total_R1 = cdf_RB[:, -1:]
    aim_R1 = _below(draws_R[:, None] * total_R1, total_R1)
    # Where logits are not finite no token is passed: the last one is taken then, and its log-probability tells.
    block_R1 = torch.searchsorted(cdf_RB, aim_R1, right=True).clamp_(max=blocks - 1)
    before_RB = torch.nn.functional.pad(cdf_RB[:, :-1], (1, 0))
    inside_R1 = aim_R1 - before_RB.gather(1, block_R1)
    cdf_Rb = probs_RBb[torch.arange(rows, device=logits_RV.device), block_R1[:, 0]].double().cumsum(dim=-1)
    place_R1 = torch.searchsorted(cdf_Rb, _below(inside_R1, cdf_Rb[:, -1:]), right=True)
    tokens_R = (block_R1 * _BLOCK + place_R1)[:, 0].clamp_(max=vocabulary - 1)
    return tokens_R, (largest_R1 + total_R1.log().float())[:, 0]


def _below(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """At most the largest number below `bound`: rounding must not lead past the last token that can be drawn."""
    return torch.minimum(x, torch.nextafter(bound, torch.zeros_like(bound)))


def _nucleus(logits_RV: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Where a row asks for `top_p`, -inf outside the smallest set of most likely tokens that holds it.

    Nucleus sampling: Holtzman et al., arXiv 1904.09751. The most likely token always stays.
    """
    rows = [i for i, s in enumerate(samplings) if s.top_p < 1 and s.temperature > 0]
    if not rows:
        return logits_RV
    top_p_r = torch.tensor([samplings[i].top_p for i in rows], device=logits_RV.device, dtype=torch.float64)
    sorted_rV, order_rV = torch.sort(logits_RV[rows], dim=-1, descending=True, stable=True)
    probs_rV = torch.softmax(sorted_rV, dim=-1, dtype=torch.float64)
    outside_rV = probs_rV.cumsum(dim=-1) - probs_rV >= top_p_r[:, None]
    outside_rV[:, 0] = False
    logits_RV = logits_RV.clone()
    logits_RV[rows] = torch.empty_like(sorted_rV).scatter_(
        1, order_rV, sorted_rV.masked_fill(outside_rV, float("-inf"))
    )
    return logits_RV
