"""Attention over stored keys and values, with a prefix that many rows share stored and read once.

Registered with transformers under `ATTENTION_NAME`: a model set to it runs its own projections and rotary
positions, then hands queries, keys and values here, together with a *step* that knows where each token belongs.
All tokens of a step are packed into one sequence, so no layer ever computes padding.

The keys of a row are the prefix's followed by its own. While decoding, all rows that share a prefix read it in one
matrix product and each row reads its own keys; one softmax over both sets of scores joins them, which is the
same as merging the two partial results by their log-sum-exp (Hydragen, arXiv 2402.05099).

Axes: Y layers, 2 keys and values, R rows, N tokens of the step, H query heads, K key heads, G query heads for each
key head, P prefix tokens, S stored tokens, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..models.sliding_window import window_of

ATTENTION_NAME = "toolbake_rows"


@dataclass(frozen=True)
class Layer:
    """A layer's attention."""

    index: int
    scaling: float
    """Of the scores."""
    window: int | None = None
    """How many tokens a query sees, itself included; all before it where None."""


class Step(Protocol):
    """One forward pass: where its tokens' keys go and what each token may see."""

    def attend(self, layer: Layer, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor) -> torch.Tensor:
        """Store the new keys and values of `layer`, and return what the tokens see, [N, H, D]."""
        ...


@dataclass(frozen=True)
class Segment:
    """Consecutive new tokens of one row: they see the prefix, the row's tokens so far, and each other."""

    token_ids: Sequence[int]
    store: torch.Tensor
    """Where the row's own keys and values are, [Y, 2, K, S, D]; written at `past`."""
    past: int
    """How many of the row's own tokens are stored already."""
    prefix: torch.Tensor | None = None
    """The shared prefix's keys and values, [Y, 2, K, P, D]."""

    @property
    def position(self) -> int:
        """The position of the first new token."""
        return self.past + (0 if self.prefix is None else self.prefix.shape[3])


class PrefillStep:
    """Several segments, computed together: one after the other in attention, packed everywhere else."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self._segments = segments
        self.tokens = sum(len(s.token_ids) for s in segments)
        self._device = device
        self._masks: dict[int | None, list[torch.Tensor | None]] = {}

    def _masks_within(self, window: int | None) -> list[torch.Tensor | None]:
        if window not in self._masks:
            self._masks[window] = [
                _causal_mask(s.position, len(s.token_ids), self._device, window) for s in self._segments
            ]
        return self._masks[window]

    def attend(self, layer: Layer, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor) -> torch.Tensor:
        seen_NHD = torch.empty_like(q_HND.transpose(0, 1), memory_format=torch.contiguous_format)
        groups = q_HND.shape[0] // k_KND.shape[0]
        start = 0
        for segment, mask in zip(self._segments, self._masks_within(layer.window), strict=True):
            end, stored = start + len(segment.token_ids), segment.past + len(segment.token_ids)
            own_2KSD = segment.store[layer.index]
            own_2KSD[0, :, segment.past : stored] = k_KND[:, start:end]
            own_2KSD[1, :, segment.past : stored] = v_KND[:, start:end]
            known = own_2KSD[:, :, :stored]
            if segment.prefix is not None:
                known = torch.cat([segment.prefix[layer.index], known], dim=2)
            keys, values = known.repeat_interleave(groups, dim=1)[:, None]
            seen_1HnD = F.scaled_dot_product_attention(
                q_HND[None, :, start:end],
                keys,
                values,
                attn_mask=mask,
                is_causal=mask is None and end - start > 1,
                scale=layer.scaling,
            )
            seen_NHD[start:end] = seen_1HnD[0].transpose(0, 1)
            start = end
        return seen_NHD


@dataclass(frozen=True)
class NextTokens:
    """One new token for each of the first rows of the cache."""

    token_ids: Sequence[int]
    positions: Sequence[int]
    own_lengths: Sequence[int]
    """How many tokens each row itself stores, the new one not counted."""
    prefixes: Sequence[tuple[torch.Tensor, Sequence[int]]]
    """Pairs of a prefix [Y, 2, K, P, D] and the rows that share it."""


class DecodeStep:
    """How `NextTokens` attend: each to its prefix and to its row's own tokens."""

    def __init__(self, cache: torch.Tensor, new: NextTokens) -> None:
        """`cache` [Y, 2, R, K, S, D]."""
        own_lengths, prefixes = new.own_lengths, new.prefixes
        rows, device = len(own_lengths), cache.device
        self._cache = cache
        self._rows_R = torch.arange(rows, device=device)
        self._lengths_R = torch.tensor(own_lengths, device=device)
        self._stored = max(own_lengths) + 1
        unseen = torch.arange(self._stored, device=device) > self._lengths_R[:, None]
        self._mask_R11S = _as_scores(unseen, cache.dtype)
        self._prefixes = [(kv, None if len(r) == rows else torch.tensor(r, device=device)) for kv, r in prefixes]
        self._longest_prefix = max((kv.shape[3] for kv, _ in prefixes), default=0)
        self._positions = new.positions
        self._windows: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def attend(self, layer: Layer, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor) -> torch.Tensor:
        heads, rows, size = q_HND.shape
        key_heads = k_KND.shape[0]
        keys_RKSD, values_RKSD = self._cache[layer.index, 0], self._cache[layer.index, 1]
        keys_RKSD[self._rows_R, :, self._lengths_R] = k_KND.transpose(0, 1)
        values_RKSD[self._rows_R, :, self._lengths_R] = v_KND.transpose(0, 1)
        q_RKGD = (q_HND * layer.scaling).transpose(0, 1).reshape(rows, key_heads, heads // key_heads, size)
        mask_R11S, of_prefixes = self._masks_within(layer.window)
        own_RKGS = q_RKGD @ keys_RKSD[:rows, :, : self._stored].transpose(-1, -2) + mask_R11S
        shared_RKGP = self._prefix_scores(layer.index, q_RKGD, of_prefixes)
        scores = own_RKGS if shared_RKGP is None else torch.cat([own_RKGS, shared_RKGP], dim=-1)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q_HND.dtype)
        seen_RKGD = weights[..., : self._stored] @ values_RKSD[:rows, :, : self._stored]
        if shared_RKGP is not None:
            self._add_prefix_values(layer.index, weights[..., self._stored :], seen_RKGD)
        return seen_RKGD.reshape(rows, heads, size)

    def _masks_within(self, window: int | None) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
        """What is added to the scores of the rows' own tokens, and of each prefix [its rows, 1, 1, P] where a window
        ends within one of them."""
        if window is None or window > max(self._positions):
            return self._mask_R11S, None
        if window not in self._windows:
            dtype, device = self._cache.dtype, self._cache.device
            stored_S = torch.arange(self._stored, device=device)
            positions_R = torch.tensor(self._positions, device=device)
            own = _as_scores(self._lengths_R[:, None] - stored_S >= window, dtype) + self._mask_R11S
            of_prefixes = []
            for prefix, rows in self._prefixes:
                positions_r = positions_R if rows is None else positions_R[rows]
                unseen = positions_r[:, None] - torch.arange(prefix.shape[3], device=device) >= window
                of_prefixes.append(_as_scores(unseen, dtype))
            self._windows[window] = own, of_prefixes
        return self._windows[window]

    def _prefix_scores(self, layer: int, q_RKGD: torch.Tensor, masks: list[torch.Tensor] | None) -> torch.Tensor | None:
        """Scores against the prefixes, [R, K, G, longest P]; -inf where a row's prefix is shorter or another."""
        if not self._prefixes:
            return None
        if len(self._prefixes) == 1 and self._prefixes[0][1] is None:
            scores = _scores(q_RKGD, self._prefixes[0][0][layer, 0])
            return scores if masks is None else scores + masks[0]
        out = q_RKGD.new_full((*q_RKGD.shape[:3], self._longest_prefix), float("-inf"))
        for number, (prefix, rows) in enumerate(self._prefixes):
            scores = _scores(q_RKGD if rows is None else q_RKGD[rows], prefix[layer, 0])
            if masks is not None:
                scores = scores + masks[number]
            out[slice(None) if rows is None else rows, :, :, : prefix.shape[3]] = scores
        return out

    def _add_prefix_values(self, layer: int, weights_RKGP: torch.Tensor, seen_RKGD: torch.Tensor) -> None:
        for prefix, rows in self._prefixes:
            here = slice(None) if rows is None else rows
            weights_KrgP = _heads_first(weights_RKGP[here, :, :, : prefix.shape[3]])
            seen_KrgD = weights_KrgP @ prefix[layer, 1]
            count, groups = seen_RKGD[here].shape[0], seen_RKGD.shape[2]
            seen_RKGD[here] += seen_KrgD.unflatten(1, (count, groups)).transpose(0, 1)


class JointStep:
    """Segments, and behind them one new token for each of some other rows: the weights are read once for both."""

    def __init__(self, prefill: PrefillStep, decode: DecodeStep) -> None:
        self._prefill, self._decode = prefill, decode

    def attend(self, layer: Layer, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor) -> torch.Tensor:
        n = self._prefill.tokens
        before = self._prefill.attend(layer, q_HND[:, :n], k_KND[:, :n], v_KND[:, :n])
        after = self._decode.attend(layer, q_HND[:, n:], k_KND[:, n:], v_KND[:, n:])
        return torch.cat([before, after])


def _heads_first(x_RKGA: torch.Tensor) -> torch.Tensor:
    """[R, K, G, A] to [K, R * G, A]: one matrix for each key head, over the queries of all rows."""
    return x_RKGA.transpose(0, 1).flatten(1, 2)


def _scores(q_RKGD: torch.Tensor, keys_KPD: torch.Tensor) -> torch.Tensor:
    rows, _, groups, _ = q_RKGD.shape
    scores_KrgP = _heads_first(q_RKGD) @ keys_KPD.transpose(-1, -2)
    return scores_KrgP.unflatten(1, (rows, groups)).transpose(0, 1)


def _causal_mask(past: int, new: int, device: torch.device, window: int | None) -> torch.Tensor | None:
    """[new, past + new], True where a token may see another; None where all or plain causality does."""
    if window is not None and window >= past + new:
        window = None
    if window is None and (past == 0 or new == 1):
        return None
    seen = torch.ones(new, past + new, dtype=torch.bool, device=device).tril_(past)
    return seen if window is None else seen.triu_(past - window + 1)


def _as_scores(unseen_RS: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[R, 1, 1, S] 0, or minus infinity where unseen."""
    return unseen_RS.to(dtype).masked_fill_(unseen_RS, float("-inf"))[:, None, None]


def rows_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    step: Step | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention interface: query [1, H, N, D], key and value [1, K, N, D] to [1, N, H, D]."""
    features = {"softcap": softcap, "s_aux": s_aux, "position_bias": position_bias}
    used = [name for name, value in features.items() if value is not None]
    if step is None or used or attention_mask is not None:
        raise NotImplementedError(f"attention with {', '.join(used) or 'a mask of its own, or without a step'}")
    layer = Layer(int(module.layer_idx), scaling, window_of(module, sliding_window))
    seen_NHD = step.attend(layer, query[0], key[0], value[0])
    return seen_NHD[None], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, rows_attention)
