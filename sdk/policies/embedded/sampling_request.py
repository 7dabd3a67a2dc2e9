"""A request to the engine: what was asked, what came so far, and how its next token is drawn from logits.

A request draws one uniform number for each token from a counter-based generator of its own, and takes the token at
which the cumulative distribution passes it: its tokens do not depend on what else is in the batch.

Axes: N requests, R rows of logits, C distributions, V vocabulary.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch

from ...errors import PolicyFailure
from ..grammar import Derivation
from ..protocol import AdjustedSampling, Alternatives, Completion, Sampling

_BLOCK = 256


def generator(seed: int) -> np.random.Generator:
    """The random numbers of one request (Philox, Salmon et al. 2011); any whole number is a seed."""
    return np.random.Generator(np.random.Philox(key=seed % 2**128))


class Draws(Protocol):
    """What decides of a request's next token."""

    sampling: Sampling
    random: np.random.Generator
    derivation: Derivation | None
    token_ids: list[int]
    """What it has drawn."""


def choose(logits_RV: torch.Tensor, requests: Sequence[Draws], rows: Sequence[int]) -> tuple[list[int], list[float]]:
    """The next token of each request and its log-probability, in nats.

    `rows`: which row of the logits each request draws from. Requests of one row have drawn the same so far.
    The log-probability is of the distribution sampled from, after `AdjustedSampling`, grammar, temperature and `top_p`;
    at temperature 0 it is untempered. Logits of any floating type; all arithmetic in float32, cumulative sums in
    float64.
    """
    device = logits_RV.device
    # What a distribution costs is paid once, however many requests draw from it.
    places: dict[tuple[int, float, float, int, object], int] = {}
    allowed: dict[int, torch.Tensor] = {}
    added: dict[int, tuple[list[int], list[float]]] = {}
    of_N = []
    for row, request in zip(rows, requests, strict=True):
        derivation = request.derivation
        grammar = 0 if derivation is None else id(derivation.grammar)
        sampling = request.sampling
        adjustments = sampling.adjustments if isinstance(sampling, AdjustedSampling) else None
        key = (row, sampling.temperature, sampling.top_p, grammar, adjustments)
        place = places.setdefault(key, len(places))
        if adjustments is not None and place not in added:
            added[place] = _added(*adjustments, request.token_ids)
        if derivation is not None and place not in allowed:
            allowed[place] = derivation.allowed()
        of_N.append(place)
    logits_CV = _logits(logits_RV, [(row, t, top_p) for row, t, top_p, *_ in places], allowed, added)
    # A greedy request draws nothing; its number is never used.
    draws = [0.0 if r.sampling.temperature == 0 else r.random.random() for r in requests]
    tokens_N, norm_C = _draw(logits_CV, torch.tensor(draws, dtype=torch.float64, device=device), of_N)
    greedy = [i for i, request in enumerate(requests) if request.sampling.temperature == 0]
    if greedy:
        tokens_N[greedy] = logits_CV[[of_N[i] for i in greedy]].argmax(dim=-1)
    logprobs_N = logits_CV[of_N, tokens_N] - norm_C[of_N]
    return tokens_N.tolist(), logprobs_N.tolist()


def _logits(
    logits_RV: torch.Tensor,
    distributions: Sequence[tuple[int, float, float]],
    allowed: Mapping[int, torch.Tensor],
    added: Mapping[int, tuple[list[int], list[float]]],
) -> torch.Tensor:
    """The logits of each distribution (row, temperature, `top_p`), [C, V] in float32, with what is `added` to those of
    some tokens; -inf where some of them allow only other tokens."""
    rows = [row for row, _, _ in distributions]
    logits_CV = (logits_RV if rows == list(range(len(logits_RV))) else logits_RV[rows]).float()
    if allowed or added:
        logits_CV = logits_CV.clone() if logits_CV.data_ptr() == logits_RV.data_ptr() else logits_CV
        for place, (tokens, amounts) in added.items():
            logits_CV[place, tokens] += torch.tensor(amounts, device=logits_CV.device)
        for place, allowed_V in allowed.items():
            # A tokenizer may know fewer tokens than the model has logits for.
            known = allowed_V[: logits_CV.shape[1]].to(logits_CV.device)
            logits_CV[place, : len(known)].masked_fill_(~known, float("-inf"))
            logits_CV[place, len(known) :] = float("-inf")
    if any(temperature not in (0.0, 1.0) for _, temperature, _ in distributions):
        temperatures_C = torch.tensor([t or 1.0 for _, t, _ in distributions], device=logits_RV.device)
        logits_CV = logits_CV / temperatures_C[:, None]
    return _nucleus(logits_CV, [1.0 if t == 0 else top_p for _, t, top_p in distributions])


def _added(
    presence: float, frequency: float, bias: Sequence[tuple[int, float]], drawn: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Token ids, each once, and what is added to their logits: see `AdjustedSampling`."""
    amounts = dict(bias)
    if presence or frequency:
        for token, count in Counter(drawn).items():
            amounts[token] = amounts.get(token, 0.0) - presence - frequency * count
    return list(amounts), list(amounts.values())


def _alternatives(logits_V: torch.Tensor, token: int, most: int) -> Alternatives:
    logprobs_V = logits_V.float().log_softmax(-1)
    top = logprobs_V.topk(min(most, len(logprobs_V)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return Alternatives(float(logprobs_V[token]), list(pairs))


def _draw(logits_CV: torch.Tensor, draws_N: torch.Tensor, of_N: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens [N] at which the cumulative distributions `of_N` pass `draws_N`, in [0, 1), and the logarithms of the
    distributions' sums [C].

    In two steps, over sums of blocks and in the block that is passed: no cumulative sum over all of V is ever made.
    """
    count, vocabulary = logits_CV.shape
    blocks = -(-vocabulary // _BLOCK)
    probs_CV = logits_CV.new_zeros(count, blocks * _BLOCK)
    largest_C1 = logits_CV.amax(dim=-1, keepdim=True)
    torch.sub(logits_CV, largest_C1, out=probs_CV[:, :vocabulary]).exp_()
    probs_CBb = probs_CV.view(count, blocks, _BLOCK)
    cdf_CB = probs_CBb.sum(dim=-1).double().cumsum(dim=-1)
    cdf_NB = cdf_CB[of_N]
    total_N1 = cdf_NB[:, -1:]
    aim_N1 = _below(draws_N[:, None] * total_N1, total_N1)
    # Where logits are not finite no token is passed: the last one is taken then, and its log-probability tells.
    block_N1 = torch.searchsorted(cdf_NB, aim_N1, right=True).clamp_(max=blocks - 1)
    before_NB = torch.nn.functional.pad(cdf_NB[:, :-1], (1, 0))
    inside_N1 = aim_N1 - before_NB.gather(1, block_N1)
    cdf_Nb = probs_CBb[of_N, block_N1[:, 0]].double().cumsum(dim=-1)
    place_N1 = torch.searchsorted(cdf_Nb, _below(inside_N1, cdf_Nb[:, -1:]), right=True)
    tokens_N = (block_N1 * _BLOCK + place_N1)[:, 0].clamp_(max=vocabulary - 1)
    return tokens_N, (largest_C1 + cdf_CB[:, -1:].log().float())[:, 0]


def _below(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """At most the largest number below `bound`: rounding must not lead past the last token that can be drawn."""
    return torch.minimum(x, torch.nextafter(bound, torch.zeros_like(bound)))


def _nucleus(logits_CV: torch.Tensor, top_ps: Sequence[float]) -> torch.Tensor:
    """Where `top_p` is below 1, -inf outside the smallest set of most likely tokens that holds it.

    Nucleus sampling: Holtzman et al., arXiv 1904.09751. The most likely token always stays.
    """
    rows = [i for i, top_p in enumerate(top_ps) if top_p < 1]
    if not rows:
        return logits_CV
    top_p_r = torch.tensor([top_ps[i] for i in rows], device=logits_CV.device, dtype=torch.float64)
    sorted_rV, order_rV = torch.sort(logits_CV[rows], dim=-1, descending=True, stable=True)
    probs_rV = torch.softmax(sorted_rV, dim=-1, dtype=torch.float64)
    outside_rV = probs_rV.cumsum(dim=-1) - probs_rV >= top_p_r[:, None]
    outside_rV[:, 0] = False
    logits_CV = logits_CV.clone()
    logits_CV[rows] = torch.empty_like(sorted_rV).scatter_(
        1, order_rV, sorted_rV.masked_fill(outside_rV, float("-inf"))
    )
    return logits_CV


@dataclass(eq=False)
class Request:
    """Belongs to the worker thread, apart from `cancelled`, which the caller sets."""

    prompt: list[int]
    sampling: Sampling
    limit: int
    """The most new tokens: the sampling's own limit, or what the context leaves."""
    stop_ids: frozenset[int]
    random: np.random.Generator
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    on_token: Callable[[int], bool | None] | None = None
    """Called on the loop, before the future is done. True ends the completion with that token."""
    derivation: Derivation | None = None
    """What it may say, where a grammar bounds that."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    cancelled: bool = False
    cached: int = 0
    """How many tokens of the prompt were not computed for it."""
    told: int = 0
    """How many tokens `on_token` has heard of."""

    @property
    def _top_logprobs(self) -> int | None:
        return self.sampling.top_logprobs if isinstance(self.sampling, AdjustedSampling) else None

    def take(self, token: int, logprob: float, version: int, logits_V: torch.Tensor) -> bool:
        """Add a token that was sampled from this `version` of the weights, which gave `logits_V`; True when the caller
        has been answered: it was the last one, or one that no distribution gave."""
        if not math.isfinite(logprob):
            self.fail(_no_numbers(len(self.prompt) + len(self.token_ids)))
            return True
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if self._top_logprobs is not None:
            self.alternatives.append(_alternatives(logits_V, token, self._top_logprobs))
        if self.on_token is not None:
            self._on_loop(self._tell, token, version)
        stopped = token in self.stop_ids
        problem = None if self.derivation is None else self.derivation.take(token, ends=stopped)
        if problem is not None:
            self.fail(ValueError(f"the grammar of the reply has become too complex ({problem}); use a simpler one"))
            return True
        if not stopped and len(self.token_ids) < self.limit:
            return False
        self._deliver(self._completion(len(self.token_ids), "stop" if stopped else "length", version))
        return True

    def fail(self, error: Exception) -> None:
        """Raise `error` at the caller."""
        self._deliver(error)

    def _tell(self, token: int, version: int) -> None:
        if self.on_token is None or self.cancelled:
            return
        self.told += 1
        try:
            self.cancelled = bool(self.on_token(token))  # frees the row
        except Exception as error:
            self.cancelled = True
            if not self.future.done():
                self.future.set_exception(error)
        if self.cancelled and not self.future.done():
            self.future.set_result(self._completion(self.told, "stop", version))

    def _completion(self, count: int, reason: Literal["stop", "length"], version: int) -> Completion:
        """Of the first `count` tokens."""
        tokens, logprobs = self.token_ids[:count], self.logprobs[:count]
        alternatives = None if self._top_logprobs is None else self.alternatives[:count]
        return Completion(tokens, logprobs, reason, version, cached_tokens=self.cached, alternatives=alternatives)

    def _deliver(self, outcome: Completion | Exception) -> None:
        def deliver() -> None:
            if self.future.done():
                return
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

        self._on_loop(deliver)

    def _on_loop(self, call: Callable[..., None], *arguments: int) -> None:
        # A loop that has been closed has nobody left who waits.
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:
                if not self.loop.is_closed():
                    raise


def _no_numbers(tokens: int) -> PolicyFailure:
    return PolicyFailure(
        f"the model's log-probabilities after {tokens} tokens are nan or infinite: so are its weights, as after a "
        "training that diverged, or float16 is too narrow for it; load or publish other weights, or load it in "
        "bfloat16 or float32"
    )


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # a[:low] == b[:low] and a[:high] != b[:high] hold throughout.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
