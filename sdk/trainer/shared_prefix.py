"""The shared-prefix forward: TRL's fused log-probabilities, each distinct token computed once.

TRL asks a model for log-probabilities by `model(input_ids, attention_mask, labels, fused_lm_head=True)`.
`share_prefixes` answers that call: the padded rows become a `PrefixTree`, the backbone runs once over
its N nodes, attending by tree and with each node's own position, and the language-model head runs only
on nodes that predict a label. The result is that of the padded computation, gradients included,
because a token's hidden state depends on its ancestors alone. Rollouts of a group share their prompt
(GRPO, arXiv 2402.03300, section 4.1) and often their first calls, so most tokens of a step are shared.

Axes: B rows, L padded positions, N nodes, U predicting nodes, K scored labels, H hidden, V vocabulary.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .expert_balance import balancing_loss
from .forward_fits import check_fits, check_same, logit_factor
from .label_scores import Labels, Limits, linear_scores
from .prefix_tree import PrefixTree, build_prefix_tree
from .tree_attention import TreePlan, attending_by, attending_by_tree, attention_of

IGNORED = -100
HeadForward = Callable[[torch.Tensor], torch.Tensor]
"""[U, H] -> [U, V]"""
_HEAD_CHUNK = 512
"""Predicting nodes per chunk: the [chunk, V] logits are the only large tensor, and are never all there at once."""
_KEPT_BYTES = 256 * 2**20
"""Of probabilities over the vocabulary that the backward pass need not compute again; none with gradient checkpointing.
Of a step of 500 predicting tokens and a vocabulary of 49,152 all: 100 MB, beside 2 GB of the layers'."""


@dataclass
class FusedOutput:
    """What TRL reads of a fused forward; all per-label tensors are [B, L-1], aligned with `labels[:, 1:]`."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    is_top1: torch.Tensor
    label_mask: torch.Tensor
    loss: torch.Tensor
    aux_loss: torch.Tensor | None = None
    forwarded_tokens: int = 0


def share_prefixes(model: Any, *, temperature: float = 1.0) -> None:
    """Let `model` answer TRL's fused calls with the shared-prefix forward. Other calls are left as they are.

    `temperature` divides the logits, as the sampler's did. Raises ModelError for a model whose attention
    a tree cannot express (chunks, recurrent layers), or whose own forward finds other log-probabilities.
    """
    check_fits(model)
    given = model.__dict__.get("forward")

    def forward(
        self: Any, *args: Any, fused_lm_head: bool = False, labels: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        if not fused_lm_head:
            if labels is not None:
                kwargs["labels"] = labels
            # A copy of the model has its class's own, and not that of the model it was copied from.
            return given(*args, **kwargs) if given is not None else type(self).forward(self, *args, **kwargs)
        if labels is None:
            raise ValueError("a fused forward needs labels")
        return fused_forward(
            self,
            kwargs["input_ids"],
            kwargs["attention_mask"],
            labels,
            temperature=temperature,
            balances=bool(kwargs.get("output_router_logits")),
        )

    model.forward = types.MethodType(forward, model)
    check_same(model, temperature)


def checkpoint_layers(model: Any) -> None:
    """Keep only the layers' inputs, and compute the rest again in the backward pass, with the forward's attention."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # The backward pass runs after `attending_by_tree` has ended; each layer is computed again as it was.
        return nullcontext(), attending_by(model, attention_of(model))

    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


def fused_forward(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    balances: bool = False,
) -> FusedOutput:
    """Log-probability and entropy of every label. `input_ids`, `attention_mask`, `labels`: [B, L].

    `balances`: with the loss that balances the load of a mixture's experts over all tokens.
    """
    device = input_ids.device
    shifted_BL = labels[:, 1:]
    label_mask_BL = (shifted_BL != IGNORED) & attention_mask[:, 1:].bool() & attention_mask[:, :-1].bool()
    node_BL, tree = _pack(input_ids, attention_mask, label_mask_BL, whole=balances)
    log_probs_BL = torch.zeros(shifted_BL.shape, device=device)
    entropy_BL = torch.zeros_like(log_probs_BL)
    top1_BL = torch.zeros_like(log_probs_BL)
    if not bool(label_mask_BL.any()):
        # Nothing to score: a zero that still hangs on all weights. Backward passes then have something to do, and
        # processes that share weights meet in every layer, whatever each of them has to score.
        head = model.get_output_embeddings()
        zero = head(_run_backbone(model, build_prefix_tree([input_ids[0, :1].tolist()]), device)[0]).sum() * 0.0
        return FusedOutput(
            log_probs_BL + zero, entropy_BL, top1_BL, label_mask_BL, zero, aux_loss=zero if balances else None
        )

    node_K = node_BL[:, :-1][label_mask_BL]
    target_K = shifted_BL[label_mask_BL]
    temperature /= logit_factor(model)
    hidden_NH, router_logits = _run_backbone(model, tree, device, balances=balances)
    log_probs_K, entropy_K, top1_K = _score(model, hidden_NH, node_K, target_K, temperature)
    log_probs_BL = log_probs_BL.to(log_probs_K.dtype).masked_scatter(label_mask_BL, log_probs_K)
    entropy_BL = entropy_BL.to(entropy_K.dtype).masked_scatter(label_mask_BL, entropy_K)
    top1_BL = top1_BL.masked_scatter(label_mask_BL, top1_K)
    loss = -log_probs_BL.sum() / label_mask_BL.sum()
    aux_loss = balancing_loss(model, router_logits, tree) if balances else None
    return FusedOutput(log_probs_BL, entropy_BL, top1_BL, label_mask_BL, loss, aux_loss, len(tree.token_ids))


def _run_backbone(
    model: Any, tree: PrefixTree, device: torch.device, *, balances: bool = False
) -> tuple[torch.Tensor, Any]:
    """[N, H] hidden state of every node, and the logits of the experts' routers where `balances`."""
    config = model.config.get_text_config()
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    groups = config.num_attention_heads // key_heads
    with attending_by_tree(model):
        outputs = model.base_model(
            input_ids=torch.tensor([tree.token_ids], device=device),
            position_ids=torch.tensor([tree.depths], device=device),
            # Four dimensions tell transformers that the mask is made already; ours is in the plan.
            attention_mask=torch.zeros((1, 1, 1, 1), device=device),
            use_cache=False,
            tree_plan=TreePlan(tree, queries_per_key=groups, device=device),
            **({"output_router_logits": True} if balances else {}),
        )
    return outputs.last_hidden_state[0], outputs.router_logits if balances else None


def _pack(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, label_mask_BL: torch.Tensor, *, whole: bool
) -> tuple[torch.Tensor, PrefixTree]:
    """Padded rows to ([B, L] node of each position, the tree).

    Tokens after a row's last predicting position are left out unless rows are wanted `whole`: no label depends on them.
    """
    rows, columns = [], []
    for ids, mask, scored in zip(input_ids.tolist(), attention_mask.tolist(), label_mask_BL.tolist(), strict=True):
        end = len(ids) if whole else max((t for t, is_scored in enumerate(scored) if is_scored), default=-1) + 1
        kept = [t for t in range(end) if mask[t]]
        columns.append(kept)
        rows.append([ids[t] for t in kept])
    tree = build_prefix_tree(rows)
    node_BL = torch.zeros(input_ids.shape, dtype=torch.long)
    for b, (kept, nodes) in enumerate(zip(columns, tree.nodes, strict=True)):
        node_BL[b, kept] = torch.tensor(nodes, dtype=torch.long)
    return node_BL.to(input_ids.device), tree


def _score(
    model: Any, hidden_NH: torch.Tensor, node_K: torch.Tensor, target_K: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability, entropy and top-1 hit of each label [K]; the head runs once per distinct node."""

    def score(forward: HeadForward, hidden_NH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return _score_in_chunks(model, forward, hidden_NH, node_K, target_K, temperature)

    scores: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _in_one_call(
        model.get_output_embeddings(), score, hidden_NH
    )
    return scores


def _in_one_call(head: Any, work: Callable[[HeadForward, torch.Tensor], Any], hidden_NH: torch.Tensor) -> Any:
    """`work` on the head's plain forward, within one call of the head, however often it runs that forward.

    Where weights are sharded, a module gathers them when it is called, in all processes together; calls for each chunk
    would be of another number in each of them.
    """
    own = head.__dict__.get("forward")
    plain = head.forward
    head.forward = lambda hidden_NH: work(plain, hidden_NH)
    try:
        return head(hidden_NH)
    finally:
        if own is None:
            del head.forward
        else:
            head.forward = own


def _score_in_chunks(
    model: Any,
    forward: HeadForward,
    hidden_NH: torch.Tensor,
    node_K: torch.Tensor,
    target_K: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    node_U, place_K = torch.unique(node_K, return_inverse=True)
    order_K = torch.argsort(place_K, stable=True)
    labels = Labels(place_K[order_K], target_K[order_K], torch.bincount(place_K, minlength=len(node_U)).tolist())
    hidden_UH = hidden_NH[node_U]
    head = model.get_output_embeddings()
    if _is_plain_linear(head, forward, hidden_UH):
        limits = Limits(_HEAD_CHUNK, kept_bytes=0 if model.is_gradient_checkpointing else _KEPT_BYTES)
        scores = linear_scores(hidden_UH, head, labels, temperature, limits)
    else:
        pieces = [
            checkpoint(
                _head_chunk,
                forward,
                hidden_UH[nodes],
                labels.place_K[these] - nodes.start,
                labels.target_K[these],
                temperature,
                use_reentrant=False,
            )
            for nodes, these in labels.chunks(_HEAD_CHUNK)
        ]
        scores = tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
    back_K = torch.argsort(order_K)
    log_probs, entropy, top1 = (score[back_K] for score in scores)
    return log_probs, entropy, top1


def _is_plain_linear(head: Any, forward: HeadForward, hidden_UH: torch.Tensor) -> bool:
    """Whether the head is a product with its weights, in their type: no adapter, no autocast, not replaced."""
    return (
        isinstance(head, torch.nn.Linear)
        and getattr(forward, "__func__", None) is torch.nn.Linear.forward
        and hidden_UH.dtype == head.weight.dtype
        and hidden_UH.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled(hidden_UH.device.type)
    )


def _head_chunk(
    forward: HeadForward, hidden_UH: torch.Tensor, place_K: torch.Tensor, target_K: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits_UV = forward(hidden_UH)
    logits_UV = logits_UV if logits_UV.dtype == torch.float64 else logits_UV.float()
    if temperature != 1.0:
        logits_UV = logits_UV / temperature
    norm_U = torch.logsumexp(logits_UV, dim=-1)
    log_probs_K = logits_UV[place_K, target_K] - norm_U[place_K]
    entropy_U = norm_U - (torch.softmax(logits_UV, dim=-1) * logits_UV).sum(-1)
    top1_K = (logits_UV.detach().argmax(-1)[place_K] == target_K).float()
    return log_probs_K, entropy_U[place_K], top1_K
