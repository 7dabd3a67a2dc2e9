"""The gradient of an embedding that is the head's weight, too: the head's, with the rows that were read added to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable


@contextmanager
def tied_in_one_gradient(model: Any) -> Iterator[None]:
    """In this block the embedding's part of a tied weight's gradient is its rows, put into the head's part in place.

    With a vocabulary of 49,152 and a thousand tokens: 2 MB to add, instead of a matrix of 113 MB to fill with zeros and
    a third one for the sum. The gradient is as before. In one process only: what shards weights looks at the modules'.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not _are_one(embedding, head):
        yield
        return
    before = embedding.sparse
    # Beside the parameters, which stay where they are, and found before them.
    embedding.__dict__["weight"], head.__dict__["weight"] = _Twice.apply(embedding.weight)
    embedding.sparse = True
    try:
        yield
    finally:
        embedding.sparse = before
        del embedding.__dict__["weight"], head.__dict__["weight"]


class _Twice(torch.autograd.Function):  # type: ignore[misc]
    """The weight for the embedding, which gives sparse gradients, and for the head."""

    @staticmethod
    def forward(ctx: Any, weight_VH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        return weight_VH.view_as(weight_VH), weight_VH.view_as(weight_VH)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_rows: torch.Tensor | None, of_head: torch.Tensor | None) -> torch.Tensor | None:  # noqa: ARG004
        if of_rows is None:
            return of_head
        if of_head is None:
            return of_rows.to_dense()
        return of_head.add_(of_rows)


def _are_one(embedding: Any, head: Any) -> bool:
    return (
        isinstance(embedding, nn.Embedding)
        and isinstance(head, nn.Linear)
        and embedding.weight is head.weight
        and embedding.weight.requires_grad
        and torch.is_grad_enabled()
        and not embedding.scale_grad_by_freq
        and embedding.max_norm is None
        and not torch.is_autocast_enabled(embedding.weight.device.type)  # which casts parameters once, others each time
        and not (torch.distributed.is_available() and torch.distributed.is_initialized())
    )
