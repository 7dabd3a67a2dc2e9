"""Attention over a prefix tree on a CPU: what stands above several branches is read by all of them in one product.

The tree falls into *segments*: runs of nodes between two branchings, numbered one after the other. All that grows
out of a segment stands behind it in one piece, so attention is the sum of two kinds of parts, for which no key or value
is gathered and hardly a score is masked away: each segment causally over itself, and all that grows out of it over it.
Parts of a query's softmax are put together by their normalisers, as in FlashAttention (arXiv 2205.14135, section 3.1),
and the backward pass of a part needs the whole's output and normaliser only (appendix B.2 there).

Axes: N nodes, H query heads, K key heads, G = H / K, n queries and m keys of a part, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .prefix_tree import PrefixTree

LONGEST_PIECE = 128
"""Queries of a part of one segment. Torch's causal attention skips nothing of the masked half in its backward pass."""


def _torchs(name: str) -> Any:
    """An operation of torch's own; None where this torch has none of that name."""
    return getattr(getattr(torch.ops.aten, name, None), "default", None)


_attention = _torchs("_scaled_dot_product_flash_attention_for_cpu")
_attention_backward = _torchs("_scaled_dot_product_flash_attention_for_cpu_backward")
"""What `scaled_dot_product_attention` runs on a CPU; called by name for the normalisers, which it keeps to itself."""


@dataclass(frozen=True)
class Segment:
    """Nodes `start .. end - 1`, each the only child of the one before; `end .. last - 1` grow out of its last node."""

    start: int
    end: int
    last: int


@dataclass(frozen=True)
class Part:
    """Queries `first .. end - 1` over the keys `keys_start .. keys_end - 1`."""

    first: int
    end: int
    keys_start: int
    keys_end: int

    @property
    def is_own(self) -> bool:
        """Whether it is of one segment over itself: causally, and the first part of these queries."""
        return self.keys_end == self.end

    @property
    def begins_alone(self) -> bool:
        """Whether its first query sees itself alone."""
        return self.is_own and self.first == self.keys_start


def segments(tree: PrefixTree) -> list[Segment]:
    """In the order of their nodes; together they are all nodes."""
    children, path = [0] * len(tree.depths), list[int]()
    for node, depth in enumerate(tree.depths):
        del path[depth:]
        if path:
            children[path[-1]] += 1
        path.append(node)
    starts = [
        node
        for node, depth in enumerate(tree.depths)
        if node == 0 or depth != tree.depths[node - 1] + 1 or children[node - 1] > 1
    ]
    ends = [*starts[1:], len(tree.depths)] if starts else []
    found: list[Segment] = []
    later: list[int] = []  # starts that may be the first one behind all that grows out of a segment
    for start, end in zip(reversed(starts), reversed(ends), strict=True):
        while later and tree.depths[later[-1]] > tree.depths[end - 1]:
            later.pop()
        found.append(Segment(start, end, later[-1] if later else len(tree.depths)))
        later.append(start)
    return found[::-1]


def parts(tree: PrefixTree, longest_piece: int, window: int | None = None) -> Iterator[Part]:
    """First those of segments over themselves, of `longest_piece` queries, then of what grows out of them over them.

    `window`: a query sees that many tokens, itself included; all of its path where None. Keys that no query of a part
    sees are not in it, nor are queries that see none of its keys.
    """
    found, depths = segments(tree), tree.depths
    for one in found:
        for first in range(one.start, one.end, longest_piece):
            end = min(first + longest_piece, one.end)
            yield Part(first, end, one.start if window is None else max(one.start, first - window + 1), end)
    for one in found:
        if window is None:
            if one.last > one.end:
                yield Part(one.end, one.last, one.start, one.end)
            continue
        for first, end in _runs_within(depths, one, window):
            unseen = min(depths[first:end]) - window + 1 - depths[one.start]
            yield Part(first, end, one.start + max(0, unseen), one.end)


def _runs_within(depths: Sequence[int], one: Segment, window: int) -> Iterator[tuple[int, int]]:
    """Of what grows out of a segment, the longest runs of nodes that see its last node."""
    first = one.end
    for node in range(one.end, one.last + 1):
        if node == one.last or depths[node] - depths[one.end - 1] >= window:
            if node > first:
                yield first, node
            first = node + 1


class SegmentPlan:
    """The parts of a tree, with their masks, made once for all layers that see as far (`window`, see `parts`)."""

    def __init__(self, tree: PrefixTree, *, longest_piece: int = LONGEST_PIECE, window: int | None = None) -> None:
        self._parts = list(parts(tree, longest_piece, window))
        self._depths_N = torch.tensor(tree.depths)
        self._window = window
        self._masked: dict[torch.dtype, list[tuple[Part, torch.Tensor | None, bool]]] = {}

    def masked(self, dtype: torch.dtype) -> list[tuple[Part, torch.Tensor | None, bool]]:
        """Each part with what is added to its scores, None for nothing, and whether the plain causal rule holds."""
        if dtype not in self._masked:
            masks = [self._mask(part, dtype) for part in self._parts]
            self._masked[dtype] = [
                (part, mask, part.begins_alone and mask is None) for part, mask in zip(self._parts, masks, strict=True)
            ]
        return self._masked[dtype]

    def _mask(self, part: Part, dtype: torch.dtype) -> torch.Tensor | None:
        """[n, m] 0 where a query may look, else minus infinity; None where that is told without."""
        if self._window is None and (not part.is_own or part.begins_alone):
            return None
        depths_n = self._depths_N[part.first : part.end]
        depths_m = self._depths_N[part.keys_start : part.keys_end]
        reach_nm = depths_n[:, None] - depths_m  # all keys of a part stand on one path
        unseen_nm = reach_nm < 0
        if self._window is not None:
            unseen_nm |= reach_nm >= self._window
        if torch.equal(unseen_nm, unseen_nm.triu(1) if part.begins_alone else torch.zeros_like(unseen_nm)):
            return None
        return torch.zeros(unseen_nm.shape, dtype=dtype).masked_fill_(unseen_nm, -torch.inf)


def can_attend_by_segments(q_HND: torch.Tensor, v_KND: torch.Tensor) -> bool:
    """Whether torch's attention for CPUs is there and takes them. Other devices have kernels of their own, which tell
    no normalisers in the same way."""
    is_there = _attention is not None and _attention_backward is not None
    return bool(is_there and q_HND.device.type == "cpu" and q_HND.shape[-1] == v_KND.shape[-1])


def attend_by_segments(
    q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor, plan: SegmentPlan, scaling: float | None
) -> torch.Tensor:
    """[H, N, D], differentiable once."""
    if torch.is_autocast_enabled("cpu"):  # as for `scaled_dot_product_attention`
        dtype = torch.get_autocast_dtype("cpu")
        q_HND, k_KND, v_KND = q_HND.to(dtype), k_KND.to(dtype), v_KND.to(dtype)
    # The kernel reads the numbers of a head as neighbours, and does not look whether they are.
    q_HND, k_KND, v_KND = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_HND, k_KND, v_KND))
    out_HND: torch.Tensor = _BySegments.apply(q_HND, k_KND, v_KND, plan, scaling)
    return out_HND


class _BySegments(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        q_HND: torch.Tensor,
        k_KND: torch.Tensor,
        v_KND: torch.Tensor,
        plan: SegmentPlan,
        scaling: float | None,
    ) -> torch.Tensor:
        heads, nodes, size = q_HND.shape
        q, k, v = _by_key_head(q_HND, k_KND, v_KND)
        # Normalisers and what they weigh are kept in float32 where queries are shorter, until the last part is in.
        kept = torch.promote_types(q.dtype, torch.float32)
        out = q.new_empty((nodes, heads, size), dtype=kept).transpose(0, 1).unflatten(0, q.shape[:2])
        norm = q.new_empty((nodes, heads), dtype=kept).t().unflatten(0, q.shape[:2])
        for part, mask, causal in plan.masked(q.dtype):
            rows, keys = slice(part.first, part.end), slice(part.keys_start, part.keys_end)
            found, norms = _attention(
                q[:, :, rows], k[:, :, keys], v[:, :, keys], 0.0, causal, attn_mask=mask, scale=scaling
            )
            if part.is_own:
                out[:, :, rows], norm[:, :, rows] = found, norms
            else:
                share = torch.sigmoid(norms - norm[:, :, rows])
                out[:, :, rows].lerp_(found.to(kept), share[..., None])
                norm[:, :, rows] = torch.logaddexp(norm[:, :, rows], norms)
        out_HND = out.flatten(0, 1).to(q.dtype)
        ctx.save_for_backward(q_HND, k_KND, v_KND, out_HND, norm)
        ctx.plan, ctx.scaling = plan, scaling
        return out_HND

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_HND: torch.Tensor) -> Any:
        q_HND, k_KND, v_KND, out_HND, norm = ctx.saved_tensors
        q, k, v = _by_key_head(q_HND, k_KND, v_KND)
        grad, out = grad_HND.unflatten(0, q.shape[:2]), out_HND.unflatten(0, q.shape[:2])
        dq_HND = torch.empty_like(q_HND)
        dq = dq_HND.unflatten(0, q.shape[:2])
        dk_KND, dv_KND = torch.zeros_like(k_KND), torch.zeros_like(v_KND)
        for part, mask, causal in ctx.plan.masked(q.dtype):
            rows, keys = slice(part.first, part.end), slice(part.keys_start, part.keys_end)
            of_q, of_k, of_v = _attention_backward(
                grad[:, :, rows],
                q[:, :, rows],
                k[:, :, keys],
                v[:, :, keys],
                out[:, :, rows],
                norm[:, :, rows],
                0.0,
                causal,
                attn_mask=mask,
                scale=ctx.scaling,
            )
            if part.is_own:
                dq[:, :, rows] = of_q
            else:
                dq[:, :, rows] += of_q
            dk_KND[:, keys] += of_k.sum(1)
            dv_KND[:, keys] += of_v.sum(1)
        return dq_HND, dk_KND, dv_KND, None, None


def _by_key_head(
    q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[K, G, N, D] all three, without a copy: the query heads of a key head beside each other."""
    shape = (k_KND.shape[0], q_HND.shape[0] // k_KND.shape[0], *k_KND.shape[1:])
    return q_HND.unflatten(0, shape[:2]), k_KND[:, None].expand(shape), v_KND[:, None].expand(shape)
