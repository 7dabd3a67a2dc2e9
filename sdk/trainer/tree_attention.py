"""Rows of tokens as one tree, which has every distinct prefix token once. Attention over that tree lets every query
read exactly its own path.

The attention is registered with transformers under `ATTENTION_NAME`; a model set to it keeps its own projections and
rotary positions.

Axes: B rows, N nodes of the tree (distinct prefixes), H query heads, K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import ModelError
from ..policies.models.own_forward import window_of

# Nodes are numbered in depth-first order, a row's own nodes before the branches that leave it, so that the nodes a row
# adds to the tree follow one another.


@dataclass(frozen=True)
class PrefixTree:
    """A packed batch. Example: rows `[5, 6, 7]` and `[5, 6, 8]` give

    `token_ids=[5, 6, 7, 8]`, `depths=[0, 1, 2, 2]`, `nodes=[[0, 1, 2], [0, 1, 3]]`:
    four forwarded tokens instead of six.
    """

    token_ids: list[int]
    """[N] token of each node."""
    depths: list[int]
    """[N] position in its row: what the rotary embedding sees."""
    nodes: list[list[int]]
    """[B][row length] the node of every token of every row."""


def build_prefix_tree(rows: Sequence[Sequence[int]]) -> PrefixTree:
    """Merge the rows' common prefixes. Linear in the number of tokens; an empty row has no nodes."""
    children: list[dict[int, int]] = [{}]  # of the root, then of every node in order of creation
    tokens: list[int] = []
    created: list[list[int]] = []
    for row in rows:
        parent, path = 0, []
        for token in row:
            node = children[parent].get(token)
            if node is None:
                tokens.append(token)
                children.append({})
                node = len(tokens)  # 1-based: 0 is the root
                children[parent][token] = node
            path.append(node)
            parent = node
        created.append(path)

    order: list[int] = [0] * len(children)  # creation number -> depth-first number
    token_ids: list[int] = []
    depths: list[int] = []
    stack = [(child, 0) for child in reversed(children[0].values())]
    while stack:
        node, depth = stack.pop()
        order[node] = len(token_ids)
        token_ids.append(tokens[node - 1])
        depths.append(depth)
        stack.extend((child, depth + 1) for child in reversed(children[node].values()))
    return PrefixTree(token_ids, depths, [[order[node] for node in path] for path in created])


# ---------------------------------------------------------------------------------------------------------------------
# Attention over a prefix tree on any device, with torch's own attention and its own backward pass.
#
# The tree consists of *pieces*: runs of nodes that follow each other on one path and in the packed order. A
# piece's queries see the path above it and themselves causally, so one attention call for each piece and layer costs
# the sum of (piece length x path length), where a dense ancestor mask costs N x N.
#
# Axes: N nodes, H query heads, K key heads, G = H / K, n nodes of a piece, a ancestors of a piece, D head size.


@dataclass(frozen=True)
class Piece:
    """Nodes `start .. end - 1`, which follow each other on one path below `ancestors` [a], from the root down."""

    start: int
    end: int
    ancestors: torch.Tensor
    follows_all: bool
    """Whether its path is everything before it in the packed order: then its keys are a view, and not gathered."""

    def mask(self, queries_per_key: int, dtype: torch.dtype, window: int | None = None) -> torch.Tensor | None:
        """[G n, a + n] 0 where a query may look, else minus infinity; None where that is the plain causal rule.

        As numbers: of booleans every layer would make numbers of its own, and keep them for the backward pass.
        """
        n, a = self.end - self.start, len(self.ancestors)
        if a == 0 and queries_per_key == 1 and (window is None or window >= n):
            return None
        return _as_scores(_on_a_path(n, a, window, self.ancestors.device), queries_per_key, dtype)


def _on_a_path(n: int, a: int, window: int | None, device: torch.device | str = "cpu") -> torch.Tensor:
    """[n, a + n], True where one of n nodes that follow each other may look at the a above them and at themselves."""
    visible = torch.ones((n, a + n), dtype=torch.bool, device=device).tril(diagonal=a)
    return visible if window is None else visible.triu(diagonal=a - window + 1)


def _as_scores(visible: torch.Tensor, queries_per_key: int, dtype: torch.dtype) -> torch.Tensor:
    """[G n, columns], of [n, columns]. Rows begin at multiples of eight numbers: of others torch's attention on GPUs
    makes a copy in every layer, and keeps it for the backward pass."""
    rows, columns = visible.shape
    scores = torch.zeros((queries_per_key, rows, -(-columns // 8) * 8), dtype=dtype, device=visible.device)
    scores[..., :columns].masked_fill_(~visible, -torch.inf)
    return scores.flatten(0, 1)[:, :columns]


WHOLE_NODES = {"cuda": 1536}
"""By device: a tree of at most so many nodes is attended over at once, by a mask over all pairs of nodes. On a GPU a
kernel's launch costs more than the scores that nobody sees: a group of 8 rows, 512 + 8 x 64 nodes, takes eight calls
and their gathered keys in each layer otherwise. Of larger trees nothing is measured."""


MOST_QUERIES = {"cpu": 384}
"""By device: a longer run is several pieces, because a piece computes the scores of all its pairs of nodes, and half of
them are masked. Attention over 350 tokens and 1,500 below them takes 0.65 of the time so, over 3,500 0.55."""


class PiecePlan:
    """The pieces of a tree, with their masks, made once for all layers that see as far.

    `window`: a query sees that many tokens, itself included; all of its path where None.
    """

    def __init__(
        self, tree: PrefixTree, *, queries_per_key: int, device: torch.device | str, window: int | None = None
    ) -> None:
        nearest = slice(None) if window is None else slice(-(window - 1) if window > 1 else len(tree.depths), None)
        most = MOST_QUERIES.get(torch.device(device).type)
        runs = [(start, end, path[nearest]) for run in _runs(tree) for start, end, path in _parts(*run, most)]
        nodes = len(tree.token_ids)
        self._visible: torch.Tensor | None = None
        """[N, N] where the tree is attended over at once."""
        if len(runs) > 1 and nodes <= WHOLE_NODES.get(torch.device(device).type, 0):
            self._visible = _own_paths(runs, nodes, window).to(device)
            runs = [(0, nodes, [])]
        self.pieces = [
            Piece(
                start, end, torch.tensor(path, dtype=torch.long, device=device), follows_all=len(path) == start
            )
            for start, end, path in runs
        ]  # fmt: skip
        self._window = window
        self.lengths = [piece.end - piece.start for piece in self.pieces]
        self._queries_per_key = queries_per_key
        self._masks: dict[torch.dtype, list[torch.Tensor | None]] = {}

    def masks(self, dtype: torch.dtype) -> list[torch.Tensor | None]:
        """Of each piece, in the type that the queries have: under autocast not that of the weights."""
        if dtype not in self._masks:
            if self._visible is not None:
                self._masks[dtype] = [_as_scores(self._visible, self._queries_per_key, dtype)]
            else:
                self._masks[dtype] = [piece.mask(self._queries_per_key, dtype, self._window) for piece in self.pieces]
        return self._masks[dtype]


def _own_paths(runs: Sequence[tuple[int, int, list[int]]], nodes: int, window: int | None) -> torch.Tensor:
    """[N, N], True where a node may look at another. `runs`: (start, end, path above)."""
    visible = torch.zeros((nodes, nodes), dtype=torch.bool)
    for start, end, path in runs:
        visible[start:end, [*path, *range(start, end)]] = _on_a_path(end - start, len(path), window)
    return visible


def _runs(tree: PrefixTree) -> Iterator[tuple[int, int, list[int]]]:
    """(start, end, path above) of the longest runs of nodes, each the child of the one before."""
    path: list[int] = []
    start = 0
    for node in range(len(tree.token_ids)):
        depth = tree.depths[node]
        if node and depth != tree.depths[node - 1] + 1:  # not a child of the node before: a new branch begins
            yield start, node, path[: tree.depths[start]]
            start = node
        del path[depth:]
        path.append(node)
    if tree.token_ids:
        yield start, len(tree.token_ids), path[: tree.depths[start]]


def _parts(start: int, end: int, path: list[int], most: int | None) -> Iterator[tuple[int, int, list[int]]]:
    """A run of `_runs` as runs of at most `most` nodes, as equal as can be."""
    count = 1 if most is None else -(-(end - start) // most)
    bounds = [start + (end - start) * part // count for part in range(count + 1)]
    for first, last in pairwise(bounds):
        yield first, last, [*path, *range(start, first)]


def attend_by_pieces(
    q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor, plan: PiecePlan, scaling: float | None
) -> torch.Tensor:
    """[H, N, size of a value], differentiable."""
    heads, groups = q_HND.shape[0], q_HND.shape[0] // k_KND.shape[0]
    split = (q_HND.split(plan.lengths, 1), k_KND.split(plan.lengths, 1), v_KND.split(plan.lengths, 1))
    seen = []
    for piece, mask, q, k_own, v_own in zip(plan.pieces, plan.masks(q_HND.dtype), *split, strict=True):
        if piece.follows_all:
            k, v = k_KND[:, : piece.end], v_KND[:, : piece.end]
        else:
            k = torch.cat([k_KND.index_select(1, piece.ancestors), k_own], 1)
            v = torch.cat([v_KND.index_select(1, piece.ancestors), v_own], 1)
        # The G query heads of a key head are stacked, so that keys are read once and never repeated.
        n = q.shape[1]
        q = q.reshape(k.shape[0], groups * n, -1)
        out = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=scaling
        )[0]
        seen.append(out.reshape(heads, n, -1))
    return torch.cat(seen, 1)


# ---------------------------------------------------------------------------------------------------------------------

ATTENTION_NAME = "toolbake_tree"
_NOT_COMPUTED = ("s_aux", "sinks", "softcap", "position_bias", "block_indices", "head_mask")
"""What models hand to their attention beside queries, keys and values, by transformers' names."""


class TreePlan:
    """How a tree is attended over, made once for all layers."""

    def __init__(self, tree: PrefixTree, *, queries_per_key: int, device: torch.device | str) -> None:
        self._tree = tree
        self._queries_per_key = queries_per_key
        self._device = device
        self._pieces: dict[int | None, PiecePlan] = {}

    def pieces(self, window: int | None) -> PiecePlan:
        """`window`: tokens that a query sees, itself included; None: its whole path."""
        window = self._reaching(window)
        if window not in self._pieces:
            self._pieces[window] = PiecePlan(
                self._tree, queries_per_key=self._queries_per_key, device=self._device, window=window
            )
        return self._pieces[window]

    def _reaching(self, window: int | None) -> int | None:
        """None for a window that holds every row."""
        return None if window is None or window > max(self._tree.depths, default=0) else window


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001
    *,
    tree_plan: TreePlan,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, H, N, D], key and value [1, K, N, D] -> [1, N, H, D].

    Raises `ModelError` for what would change the scores and is not computed here.
    """
    if dropout:
        raise ValueError(f"attention dropout is {dropout} in {type(module).__name__}; set attention_dropout to 0")
    for name in _NOT_COMPUTED:
        if more.get(name) is not None:
            raise ModelError(
                f"{type(module).__name__} attends with {name}, which the shared-prefix forward does not compute. Pass "
                "config={'batching': {'shared_prefix': False}} to train with the padded forward."
            )
    window = window_of(module, sliding_window)
    q_HND, k_KND, v_KND = query.squeeze(0), key.squeeze(0), value.squeeze(0)  # an index would copy its gradient
    out_HND = attend_by_pieces(q_HND, k_KND, v_KND, tree_plan.pieces(window), scaling)
    return out_HND.transpose(0, 1)[None], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, tree_attention)


Attention = dict[str, Any]
"""Which attention a model uses: the fields of its configuration, one of which names it."""


def attention_of(model: Any) -> Attention:
    """The attention that `model` uses now."""
    return dict(vars(model.config.get_text_config()))


@contextmanager
def attending_by_tree(model: Any) -> Iterator[None]:
    """`model` attends by tree inside the block; its own implementation comes back afterwards."""
    config, before = model.config, attention_of(model)
    text = config.get_text_config()
    part = next((name for name in config.sub_configs if getattr(config, name) is text), None)
    model.set_attn_implementation(ATTENTION_NAME if part is None else {part: ATTENTION_NAME})
    try:
        yield
    finally:
        _set_attention(model, before)


@contextmanager
def attending_as(model: Any, attention: Attention) -> Iterator[None]:
    """`model` uses this attention inside the block."""
    before = attention_of(model)
    _set_attention(model, attention)
    try:
        yield
    finally:
        _set_attention(model, before)


def _set_attention(model: Any, attention: Attention) -> None:
    vars(model.config.get_text_config()).update(attention)
