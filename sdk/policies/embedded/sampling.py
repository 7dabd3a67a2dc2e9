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


def generator(seed: int) -> np.random.Generator:
    """The random numbers of one request (Philox, Salmon et al. 2011); any whole number is a seed."""
    return np.random.Generator(np.random.Philox(key=seed % 2**128))


def choose(
    logits_RV: torch.Tensor, samplings: Sequence[Sampling], generators: Sequence[np.random.Generator]
) -> tuple[list[int], list[float]]:
    """One token for each row and its log-probability, in nats.

    The log-probability is of the distribution sampled from, after temperature and `top_p`; at temperature 0 it is
    the model's own, untempered. Logits of any floating type; all arithmetic in float32, sums over V in float64.
    """
    logits_RV = logits_RV.float()
    device = logits_RV.device
    if any(s.temperature not in (0.0, 1.0) for s in samplings):
        temperatures_R = torch.tensor([s.temperature or 1.0 for s in samplings], device=device)
        logits_RV = logits_RV / temperatures_R[:, None]
    logits_RV = _nucleus(logits_RV, samplings)
    norm_R = torch.logsumexp(logits_RV, dim=-1)
    cdf_RV = torch.cumsum(torch.exp(logits_RV - norm_R[:, None]), dim=-1, dtype=torch.float64)
    # A greedy row draws nothing; its number is never used.
    draws = [0.0 if s.temperature == 0 else g.random() for s, g in zip(samplings, generators, strict=True)]
    draws_R1 = torch.tensor(draws, dtype=torch.float64, device=device)[:, None] * cdf_RV[:, -1:]
    tokens_R = torch.searchsorted(cdf_RV, draws_R1, right=True)[:, 0].clamp_(max=logits_RV.shape[1] - 1)
    greedy = [i for i, s in enumerate(samplings) if s.temperature == 0]
    if greedy:
        tokens_R[greedy] = logits_RV[greedy].argmax(dim=-1)
    logprobs_R = logits_RV.gather(1, tokens_R[:, None])[:, 0] - norm_R
    return tokens_R.tolist(), logprobs_R.tolist()


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
