"""Attention over stored keys and values, with a prefix that many rows share stored and read once.

Registered with transformers under `ATTENTION_NAME`: a model set to it runs its own projections and rotary
positions, then hands queries, keys and values here, together with a *step* that knows where each token belongs.
All tokens of a step are packed into one sequence, so no layer ever computes padding.

The keys of a row are the prefix's followed by its own. While decoding, all rows that share a prefix read it in one
matrix product and each row reads its own keys; one softmax over both sets of scores joins them, which is the
same as merging the two partial results by their log-sum-exp (Hydragen, arXiv 2402.05099).

Axes: Y layers, 2 keys and values, R rows, N tokens of the step, T tokens of one row in it, H query heads, K key heads,
G query heads for each key head, Q = G * T, P prefix tokens, S stored tokens, D head size.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..models.own_forward import window_of

_UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0
"""`MAP_NORESERVE`, which Python names from 3.13 on. Without it Linux refuses more room than the machine has memory, and
one long conversation gives each row its room: of most of that nothing is ever written."""


class RowCache:
    """Preallocated keys and values, [Y, 2, R, K, S, D]. Room grows by doubling; nothing is copied for each token.

    `dense`: on a GPU the whole room is memory, also what no row has written to. There it grows by an eighth, and what
    rows leave is given back when it grows."""

    def __init__(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> None:
        heads = config.num_attention_heads
        self._layers: int = config.num_hidden_layers
        self._key_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self._head_size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._dtype = dtype
        self._device = device
        self.dense = device.type != "cpu"
        self.data, self._mapped = self._empty(0, 0)
        self.touched: list[int] = []
        """Of each row, as many tokens as were seen to be stored in it: where memory is taken only as it is written to,
        what a row takes until it is given back."""

    @property
    def token_bytes(self) -> int:
        """What the keys and values of one token take."""
        return self._layers * 2 * self._key_heads * self._head_size * int(self._dtype.itemsize)

    def ensure(self, *, rows: int, tokens: int, stored: Sequence[int] = ()) -> None:
        """Make room for so many rows and tokens of a row. Views of what was there before are lost.

        `stored`: how many tokens of each of the first rows stay; all else may be lost. It moves layer by layer, and
        where the system takes pages back, each layer is given back once it has moved: nothing is there twice.
        """
        have_rows, have_tokens = self.data.shape[2], self.data.shape[4]
        self._note(stored)
        if rows <= have_rows and tokens <= have_tokens:
            return
        if self.dense:
            grown, mapped = self._empty(_next_eighth(rows), _next_eighth(max(tokens, *stored, 0)))
        else:
            grown, mapped = self._empty(_room(have_rows, rows, least=8), _room(have_tokens, tokens, least=128))
        of_a_layer = self.data[0].nbytes
        for layer in range(self._layers):
            for row, length in enumerate(stored[:have_rows]):
                grown[layer, :, row, :, :length] = self.data[layer, :, row, :, :length]
            self._discard(layer * of_a_layer, (layer + 1) * of_a_layer)
        self.data, self._mapped, self.touched = grown, mapped, list(stored)

    def row(self, row: int) -> torch.Tensor:
        """A view of one row's keys and values, [Y, 2, K, S, D]."""
        return self.data[:, :, row]

    def swap(self, a: int, b: int, *, a_tokens: int, b_tokens: int) -> None:
        """Exchange two rows that hold so many tokens. What the longer one leaves behind is given back."""
        kept = self.data[:, :, a, :, :a_tokens].clone()
        self.data[:, :, a, :, :b_tokens] = self.data[:, :, b, :, :b_tokens]
        self.data[:, :, b, :, :a_tokens] = kept
        both = max(a_tokens, b_tokens)
        self._note([both if row in (a, b) else 0 for row in range(max(a, b) + 1)])
        self.release(a, b_tokens)
        self.release(b, a_tokens)

    def release(self, row: int, tokens: int) -> None:
        """Give back the memory of a row after its first `tokens`, which are all that it still needs. It stays the
        row's where the whole room was taken at once, and on systems that take no pages back."""
        if tokens >= self.touched[row]:
            return
        # There, too: for what would be counted for ever, every conversation that pauses would be forgotten, in vain.
        self.touched[row] = tokens
        if self._mapped is None:
            return
        step = self.data.stride(3) * self._dtype.itemsize  # of a key head
        for layer in range(self._layers):
            for kind in range(2):
                begin = self.data[layer, kind, row].storage_offset() * self._dtype.itemsize
                for head in range(self._key_heads):
                    self._discard(begin + head * step + tokens * step // self.data.shape[4], begin + (head + 1) * step)

    def _discard(self, begin: int, end: int) -> None:
        """The whole pages of these bytes go back if the system takes them; others may hold what stays beside them."""
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._mapped is not None and last > first and sys.platform == "linux":
            self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _note(self, stored: Sequence[int]) -> None:
        self.touched += [0] * (len(stored) - len(self.touched))
        self.touched[: len(stored)] = map(max, self.touched, stored)

    def separate(self, tokens: int) -> torch.Tensor:
        """Room for a prefix, [Y, 2, K, tokens, D], apart from the rows."""
        return self._empty(1, tokens)[0][:, :, 0]

    def _empty(self, rows: int, tokens: int) -> tuple[torch.Tensor, mmap.mmap | None]:
        """Zeros, and the pages they lie in where these are taken only as they are written to."""
        # Zeros, not `empty`: what lies behind a mask is multiplied by 0, and 0 times nan would be nan.
        shape = (self._layers, 2, rows, self._key_heads, tokens, self._head_size)
        if self._device.type != "cpu" or 0 in shape:
            return torch.zeros(shape, dtype=self._dtype, device=self._device), None
        # Zeroed pages from the system, which take no memory until a row writes to them. They are private where there is
        # a choice: of shared ones also reading takes memory.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNRESERVED} if sys.platform != "win32" else {}
        pages = mmap.mmap(-1, math.prod(shape) * self._dtype.itemsize, **private)
        if sys.platform == "linux":
            # Where the system makes all pages huge, one token of a row would take 2 MB for each key head of each layer,
            # and what was given back be taken again. A kernel without huge pages refuses to be told.
            with contextlib.suppress(OSError):
                pages.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(pages, dtype=self._dtype).view(shape), pages


def _room(have: int, need: int, *, least: int) -> int:
    return have if need <= have else max(least, 1 << (need - 1).bit_length())


def _next_eighth(need: int) -> int:
    """At most an eighth more than `need`."""
    step = 1 << max(0, need.bit_length() - 4)
    return -(-need // step) * step


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
    """The next tokens of each of the first rows of the cache, one or more."""

    token_ids: Sequence[Sequence[int]]
    positions: Sequence[int]
    """Of the first new token of each row."""
    own_lengths: Sequence[int]
    """How many tokens each row itself stores, the new ones not counted."""
    prefixes: Sequence[tuple[torch.Tensor, Sequence[int]]]
    """Pairs of a prefix [Y, 2, K, P, D] and the rows that share it."""


JOINED_TOKENS = {"cuda": 2048}
"""By device: where the prefixes of a step have at most so many tokens together, they are joined, and a mask hides from
each row the prefixes of others. On a GPU a kernel's launch costs more than the scores that nobody sees. Of more tokens
nothing is measured."""


class DecodeStep:
    """How `NextTokens` attend: each to its prefix, to its row's own tokens and to the new ones before it.

    Rows with fewer new tokens than others are padded here, and nowhere else.
    """

    def __init__(self, cache: torch.Tensor, new: NextTokens) -> None:
        """`cache` [Y, 2, R, K, S, D]."""
        device = cache.device
        counts = [len(token_ids) for token_ids in new.token_ids]
        rows, self._most = len(counts), max(counts)
        self._cache, self._rows = cache, rows
        self._rows_N = torch.tensor([r for r, count in enumerate(counts) for _ in range(count)], device=device)
        self._steps_N = torch.tensor([t for count in counts for t in range(count)], device=device)
        if self._most > 1:
            begins = itertools.accumulate(counts[:-1], initial=0)
            # Where a row has no token, its first one stands in: what comes of that is not read.
            self._from_RT = torch.tensor(
                [
                    [begin + (t if t < count else 0) for t in range(self._most)]
                    for begin, count in zip(begins, counts, strict=True)
                ],
                device=device,
            )
        lengths_R = torch.tensor(new.own_lengths, device=device)
        self._places_N = lengths_R[self._rows_N] + self._steps_N
        self._stored = max(own + count for own, count in zip(new.own_lengths, counts, strict=True))
        steps_T = torch.arange(self._most, device=device)
        self._last_RT = lengths_R[:, None] + steps_T
        self._positions = new.positions
        prefixes = new.prefixes
        self._foreign_RP: torch.Tensor | None = None
        """Which tokens of the joined prefixes are not of a row's own."""
        lengths = [kv.shape[3] for kv, _ in prefixes]
        self._prefix_lengths = [[length] for length in lengths]
        """Of each prefix, or of those that are joined in it."""
        if len(prefixes) > 1 and sum(lengths) <= JOINED_TOKENS.get(device.type, 0):
            owners_R = torch.full((rows,), -1)
            for number, (_, those) in enumerate(prefixes):
                owners_R[list(those)] = number
            of_P = torch.arange(len(prefixes)).repeat_interleave(torch.tensor(lengths))
            self._foreign_RP = (owners_R[:, None] != of_P).to(device)
            self._prefix_lengths = [lengths]
            prefixes = [(torch.cat([kv for kv, _ in prefixes], dim=3), range(rows))]
        self._prefixes = [(kv, None if len(r) == rows else torch.tensor(r, device=device)) for kv, r in prefixes]
        self._longest_prefix = max((kv.shape[3] for kv, _ in prefixes), default=0)
        self._masks: dict[int | None, tuple[torch.Tensor, list[torch.Tensor] | None]] = {}

    def attend(self, layer: Layer, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor) -> torch.Tensor:
        heads, _, size = q_HND.shape
        key_heads, groups = k_KND.shape[0], heads // k_KND.shape[0]
        keys_RKSD, values_RKSD = self._cache[layer.index, 0], self._cache[layer.index, 1]
        keys_RKSD[self._rows_N, :, self._places_N] = k_KND.transpose(0, 1)
        values_RKSD[self._rows_N, :, self._places_N] = v_KND.transpose(0, 1)
        # Q: the query heads of a key head, for each of them a row's new tokens.
        q_NHD = (q_HND * layer.scaling).transpose(0, 1)
        if self._most > 1:
            q_RTHD = q_NHD[self._from_RT].unflatten(2, (key_heads, groups))
            q_RKQD = q_RTHD.permute(0, 2, 3, 1, 4).reshape(self._rows, key_heads, -1, size)
        else:
            q_RKQD = q_NHD.reshape(self._rows, key_heads, groups, size)
        mask_R1QS, of_prefixes = self._masks_within(layer.window, groups)
        own_RKQS = q_RKQD @ keys_RKSD[: self._rows, :, : self._stored].transpose(-1, -2) + mask_R1QS
        shared_RKQP = self._prefix_scores(layer.index, q_RKQD, of_prefixes)
        scores = own_RKQS if shared_RKQP is None else torch.cat([own_RKQS, shared_RKQP], dim=-1)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q_HND.dtype)
        seen_RKQD = weights[..., : self._stored] @ values_RKSD[: self._rows, :, : self._stored]
        if shared_RKQP is not None:
            self._add_prefix_values(layer.index, weights[..., self._stored :], seen_RKQD)
        if self._most == 1:
            return seen_RKQD.reshape(self._rows, heads, size)
        seen_RTKGD = seen_RKQD.unflatten(2, (groups, self._most)).permute(0, 3, 1, 2, 4)
        return seen_RTKGD[self._rows_N, self._steps_N].reshape(-1, heads, size)

    def _masks_within(self, window: int | None, groups: int) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
        """What is added to the scores of the rows' own tokens, [R, 1, Q, S], and of each prefix [its rows, 1, Q, P]
        where a window ends within one of them or they are joined."""
        if window is not None and window > max(self._positions) + self._most - 1:
            window = None
        if window not in self._masks:
            dtype, device = self._cache.dtype, self._cache.device
            stored_S = torch.arange(self._stored, device=device)
            unseen_RTS = stored_S > self._last_RT[..., None]
            if window is not None:
                unseen_RTS |= self._last_RT[..., None] - stored_S >= window
            of_prefixes = None
            if window is not None or self._foreign_RP is not None:
                positions_RT = torch.tensor(self._positions, device=device)[:, None] + torch.arange(
                    self._most, device=device
                )
                of_prefixes = []
                for (_, rows), lengths in zip(self._prefixes, self._prefix_lengths, strict=True):
                    places_P = torch.cat([torch.arange(length, device=device) for length in lengths])
                    positions_rT = positions_RT if rows is None else positions_RT[rows]
                    unseen_rTP = positions_rT[..., None] - places_P >= (window or math.inf)
                    if self._foreign_RP is not None:
                        unseen_rTP |= self._foreign_RP[:, None]
                    of_prefixes.append(_as_scores(unseen_rTP, groups, dtype))
            self._masks[window] = _as_scores(unseen_RTS, groups, dtype), of_prefixes
        return self._masks[window]

    def _prefix_scores(self, layer: int, q_RKQD: torch.Tensor, masks: list[torch.Tensor] | None) -> torch.Tensor | None:
        """Scores against the prefixes, [R, K, Q, longest P]; -inf where a row's prefix is shorter or another."""
        if not self._prefixes:
            return None
        if len(self._prefixes) == 1 and self._prefixes[0][1] is None:
            scores = _scores(q_RKQD, self._prefixes[0][0][layer, 0])
            return scores if masks is None else scores + masks[0]
        out = q_RKQD.new_full((*q_RKQD.shape[:3], self._longest_prefix), float("-inf"))
        for number, (prefix, rows) in enumerate(self._prefixes):
            scores = _scores(q_RKQD if rows is None else q_RKQD[rows], prefix[layer, 0])
            if masks is not None:
                scores = scores + masks[number]
            out[slice(None) if rows is None else rows, :, :, : prefix.shape[3]] = scores
        return out

    def _add_prefix_values(self, layer: int, weights_RKQP: torch.Tensor, seen_RKQD: torch.Tensor) -> None:
        for prefix, rows in self._prefixes:
            here = slice(None) if rows is None else rows
            weights_KrgP = _heads_first(weights_RKQP[here, :, :, : prefix.shape[3]])
            seen_KrgD = weights_KrgP @ prefix[layer, 1]
            count, groups = seen_RKQD[here].shape[0], seen_RKQD.shape[2]
            seen_RKQD[here] += seen_KrgD.unflatten(1, (count, groups)).transpose(0, 1)


class JointStep:
    """Segments, and behind them the next tokens of some other rows: the weights are read once for both."""

    def __init__(self, prefill: PrefillStep, decode: DecodeStep) -> None:
        self._prefill, self._decode = prefill, decode

    def attend(self, layer: Layer, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor) -> torch.Tensor:
        n = self._prefill.tokens
        before = self._prefill.attend(layer, q_HND[:, :n], k_KND[:, :n], v_KND[:, :n])
        after = self._decode.attend(layer, q_HND[:, n:], k_KND[:, n:], v_KND[:, n:])
        return torch.cat([before, after])


def _heads_first(x_RKQA: torch.Tensor) -> torch.Tensor:
    """[R, K, Q, A] to [K, R * Q, A]: one matrix for each key head, over the queries of all rows."""
    return x_RKQA.transpose(0, 1).flatten(1, 2)


def _scores(q_RKQD: torch.Tensor, keys_KPD: torch.Tensor) -> torch.Tensor:
    rows, _, groups, _ = q_RKQD.shape
    scores_KrgP = _heads_first(q_RKQD) @ keys_KPD.transpose(-1, -2)
    return scores_KrgP.unflatten(1, (rows, groups)).transpose(0, 1)


def _causal_mask(past: int, new: int, device: torch.device, window: int | None) -> torch.Tensor | None:
    """[new, past + new], True where a token may see another; None where all or plain causality does."""
    if window is not None and window >= past + new:
        window = None
    if window is None and (past == 0 or new == 1):
        return None
    seen = torch.ones(new, past + new, dtype=torch.bool, device=device).tril_(past)
    return seen if window is None else seen.triu_(past - window + 1)


def _as_scores(unseen_RTS: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    """[R, 1, Q, S] 0, or minus infinity where unseen; Q is 1 where all that it stands for see the same."""
    rows, steps, _ = unseen_RTS.shape
    scores_RTS = unseen_RTS.to(dtype).masked_fill_(unseen_RTS, float("-inf"))
    if steps == 1:
        return scores_RTS[:, None]
    return scores_RTS[:, None, None].expand(-1, 1, groups, -1, -1).reshape(rows, 1, groups * steps, -1)


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
