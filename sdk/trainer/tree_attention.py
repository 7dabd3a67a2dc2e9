"""Attention over a prefix tree: every query reads exactly its own path. See `piece_attention`.

Registered with transformers under `ATTENTION_NAME`; a model set to it keeps its own projections and rotary positions.

Axes: N nodes, H query heads, K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import ModelError
from ..policies.models.sliding_window import window_of
from .piece_attention import PiecePlan, attend_by_pieces
from .prefix_tree import PrefixTree

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
                "config={'shared_prefix': False} to train with the padded forward."
            )
    window = window_of(module, sliding_window)
    q_HND, k_KND, v_KND = query.squeeze(0), key.squeeze(0), value.squeeze(0)  # an index would copy its gradient
    out_HND = attend_by_pieces(q_HND, k_KND, v_KND, tree_plan.pieces(window), scaling)
    return out_HND.transpose(0, 1)[None], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, tree_attention)


def attention_of(model: Any) -> str:
    """The name of the attention that `model` uses now."""
    return str(model.config.get_text_config()._attn_implementation)


def attending_by_tree(model: Any) -> AbstractContextManager[None]:
    """`model` attends by tree inside the block; its own implementation comes back afterwards."""
    return attending_by(model, ATTENTION_NAME)


@contextmanager
def attending_by(model: Any, name: str) -> Iterator[None]:
    """`model` uses the attention of that name inside the block."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
