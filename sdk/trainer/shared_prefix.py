"""The shared-prefix forward: TRL's fused log-probabilities, each distinct token computed once.

TRL asks a model for log-probabilities by `model(input_ids, attention_mask, labels, fused_lm_head=True)`.
`share_prefixes` answers that call: the padded rows become a `PrefixTree`, the backbone runs once over
its N nodes, attending by tree and with each node's own position, and the language-model head runs only
on nodes that predict a label. The result is that of the padded computation, gradients included,
because a token's hidden state depends on its ancestors alone. Rollouts of a group share their prompt
(GRPO, arXiv 2402.03300, section 4.1) and often their first calls, so most tokens of a step are shared.

Axes: B rows, L padded positions, N nodes, U predicting nodes, K scored labels, H hidden, V vocabulary, M masks.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from ..errors import ModelError
from ..policies.models.own_forward import beyond, short_windows
from ..process import give_freed_memory_back
from .processes import follows
from .tree_attention import PrefixTree, TreePlan, attending_as, attending_by_tree, attention_of, build_prefix_tree

log = logging.getLogger(__name__)

# ---------------------------------------------------------------------------------------------------------------------
# Log-probability and entropy of labels under the head, some nodes at a time.
#
# Axes: U predicting nodes, K scored labels, H hidden, V vocabulary.

_NOT_ALLOWED = -1e20
"""The logit of a token that a grammar left out. Its probability is 0, and it is finite, so that all products with that
are 0, too, at any temperature."""


@dataclass(frozen=True)
class Allowed:
    """What a grammar left to the sampler. Logits of other tokens have no part in the distribution."""

    which: torch.Tensor
    """For each place, label or node, a place in [M]."""
    masks_MB: torch.Tensor
    """A bit for each token of the vocabulary, the lowest of a byte first. The first mask has all of them, for places at
    which no grammar bounded the choice."""

    def bound(self, logits_UV: torch.Tensor, nodes: slice) -> torch.Tensor:
        """The logits of those nodes, without what was not allowed there."""
        which_U = self.which[nodes]
        if not bool(which_U.any()):
            return logits_UV
        masks_M, place_U = which_U.unique(return_inverse=True)
        bits_8 = torch.arange(8, device=logits_UV.device, dtype=torch.uint8)
        out_MV = ((self.masks_MB[masks_M, :, None] >> bits_8) & 1 == 0).flatten(1)[:, : logits_UV.shape[1]]
        return logits_UV.masked_fill(out_MV[place_U], _NOT_ALLOWED)


@dataclass(frozen=True)
class Labels:
    """Which labels each node predicts; sorted by node."""

    place_K: torch.Tensor
    """The node of each label, as a place in [U]."""
    target_K: torch.Tensor
    """The label's token."""
    counts: list[int]
    """[U] labels of each node."""

    def chunks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """(nodes, labels) of `size` nodes each."""
        first = 0
        for start in range(0, len(self.counts), size):
            end = min(start + size, len(self.counts))
            last = first + sum(self.counts[start:end])
            yield slice(start, end), slice(first, last)
            first = last


# ---------------------------------------------------------------------------------------------------------------------


def check_fits(model: Any) -> None:
    """Raises ModelError for a model that the shared-prefix forward cannot express."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{type(model).__name__} has layers of the kinds {sorted(kinds)}; the shared-prefix forward handles "
            "attention, full or in a sliding window. Pass config={'batching': {'shared_prefix': False}} to train with "
            "the padded forward."
        )
    for name in ("attention_dropout", "attn_pdrop", "attn_dropout", "attention_probs_dropout_prob"):
        if getattr(config, name, 0.0):
            raise ModelError(
                f"{type(model).__name__} has {name}={getattr(config, name)}, which the shared-prefix forward "
                "does not apply. Set it to 0 in the model's config.json, or pass "
                "config={'batching': {'shared_prefix': False}}."
            )
    if getattr(config, "attn_logit_softcapping", None) or any(
        n.endswith(".sinks") for n, _ in model.named_parameters()
    ):
        raise ModelError(
            f"the attention of {type(model).__name__} caps its scores or has sinks, which the shared-prefix forward "
            "does not compute. Pass config={'batching': {'shared_prefix': False}} to train with the padded forward."
        )
    for name in ("final_logit_softcapping", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ModelError(
                f"{type(model).__name__} changes its logits ({name}={getattr(config, name)}); the shared-prefix "
                "forward does not. Pass config={'batching': {'shared_prefix': False}} to train with the padded forward."
            )
    if not model.is_backend_compatible():
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be exchanged, which the shared-prefix forward does. Pass "
            "config={'batching': {'shared_prefix': False}} to train with the padded forward."
        )


def logit_factor(model: Any) -> float:
    """What the model multiplies its head's logits with: `logit_scale` (Cohere), and 1 / `logits_scaling` (Granite)."""
    config = model.config.get_text_config()
    times, divided = (getattr(config, name, None) for name in ("logit_scale", "logits_scaling"))
    return float(1.0 if times is None else times) / float(1.0 if divided is None else divided)


def check_same(model: Any, temperature: float) -> None:
    """Raises ModelError unless the fused forward finds the log-probabilities of the model's own, on two short rows.

    This finds any architecture that does something of which the tree does not know. Not where weights are sharded or
    not there yet: every process would have to take part, and those that follow may get theirs from the first one later.
    """
    weights = list(model.parameters())
    if follows() or any(weight.numel() == 0 or weight.is_meta or isinstance(weight, DTensor) for weight in weights):
        return
    vocabulary = model.get_input_embeddings().weight.shape[0]
    shared = [(17 * place + 3) % vocabulary for place in range(7)]
    rows = [[*shared, *((31 * place + row) % vocabulary for place in range(5))] for row in (1, 2)]
    ids_BL = torch.tensor(rows, device=weights[0].device)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), short_windows(model, 5):
            logits_BLV = model(input_ids=ids_BL, use_cache=False).logits[:, :-1].float() / temperature
            expected_BL = logits_BLV.log_softmax(-1).gather(-1, ids_BL[:, 1:, None])[..., 0]
            found_BL = model(
                input_ids=ids_BL,
                attention_mask=torch.ones_like(ids_BL),
                labels=ids_BL,
                fused_lm_head=True,
                output_router_logits=balances_experts(model),
            ).log_probs
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"the shared-prefix forward cannot run {type(model).__name__}: {error}. Pass "
            "config={'batching': {'shared_prefix': False}} to train with the padded forward."
        ) from error
    finally:
        for module, was_training in modes:
            module.training = was_training
    if too_far := beyond(found_BL, expected_BL, weights[0].dtype):
        raise ModelError(
            f"the shared-prefix forward of {type(model).__name__} finds log-probabilities that differ from the model's "
            f"own by {too_far[0]:.3g} (at most {too_far[1]:.3g} is allowed): the model does something that a tree of "
            "prefixes does not know of. Pass config={'batching': {'shared_prefix': False}} to train with the padded "
            "forward."
        )


# ---------------------------------------------------------------------------------------------------------------------


def balancing_loss(model: Any, router_logits: tuple[torch.Tensor, ...], tree: PrefixTree) -> torch.Tensor:
    """The load-balancing loss (Switch Transformer, arXiv 2101.03961, equations 4 to 6) of all tokens of all rows.

    `router_logits`: [N, E] of each layer. A node counts as often as rows pass through it, so that the loss is that of
    the padded rows, not of the distinct tokens.
    """
    # Every family of transformers takes it from Mixtral's; its mask weighs tokens, whatever its numbers are.
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    config = model.config.get_text_config()
    passed = torch.tensor([node for nodes in tree.nodes for node in nodes], device=router_logits[0].device)
    visits_N = torch.bincount(passed, minlength=len(tree.token_ids))
    loss: torch.Tensor = load_balancing_loss_func(
        router_logits, config.num_experts, config.num_experts_per_tok, visits_N
    )
    return loss


def balances_experts(model: Any) -> bool:
    """Whether TRL, asked nothing else, adds the loss: the model has experts, and a weight for it."""
    config = model.config.get_text_config()
    return hasattr(config, "output_router_logits") and bool(getattr(config, "router_aux_loss_coef", 0.0))


# ---------------------------------------------------------------------------------------------------------------------

IGNORED = -100
HeadForward = Callable[[torch.Tensor], torch.Tensor]
"""[U, H] -> [U, V]"""
_HEAD_CHUNK = 512
"""Predicting nodes per chunk: the [chunk, V] logits are the only large tensor, and are never all there at once."""
_HEAD_CHUNK_ON_CPU = 128
"""The backward pass of a chunk has six times its logits at once. On a CPU, whose memory is short, four times as many
chunks take 1 % longer and 0.5 GB less of the quickstart's 3.2 GB; on a GPU each would add to the head's gradient."""


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
            allowed=kwargs.get("allowed"),
        )

    model.forward = types.MethodType(forward, model)
    check_same(model, temperature)


def checkpoint_layers(model: Any) -> None:
    """Keep only the layers' inputs, and compute the rest again in the backward pass, with the forward's attention.

    A model whose family cannot do this is left as it is, with a warning in the log.
    """
    if not model.supports_gradient_checkpointing:
        log.warning(
            "%s cannot compute layers again: batching.gradient_checkpointing does nothing, updates take more memory",
            type(model).__name__,
        )
        return

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # The backward pass runs after `attending_by_tree` has ended; each layer is computed again as it was.
        return nullcontext(), attending_as(model, attention_of(model))

    # transformers 5.24 calls it activation checkpointing, and warns of the name before.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, "context_fn": contexts})


def fused_forward(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    balances: bool = False,
    allowed: Allowed | None = None,
) -> FusedOutput:
    """Log-probability and entropy of every label. `input_ids`, `attention_mask`, `labels`: [B, L].

    `balances`: with the loss that balances the load of a mixture's experts over all tokens. `allowed`: what each of
    `labels[:, 1:]` was chosen from.
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
    if device.type == "cpu":
        give_freed_memory_back()  # of the layers; what the head takes has other sizes, and would lie beside it
    if allowed is not None:
        allowed = replace(allowed, which=allowed.which[label_mask_BL])
    head = model.get_output_embeddings()
    log_probs_K, entropy_K, top1_K = _score(head, hidden_NH, node_K, target_K, temperature, allowed)
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
    head: Any,
    hidden_NH: torch.Tensor,
    node_K: torch.Tensor,
    target_K: torch.Tensor,
    temperature: float,
    allowed: Allowed | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability, entropy and top-1 hit of each label [K]; the head runs once per distinct node and mask."""
    if allowed is None:
        node_U, place_K = torch.unique(node_K, return_inverse=True)
    else:
        # Of two rows with the same tokens so far, one may have been held to a grammar and the other to none.
        masks = len(allowed.masks_MB)
        both_U, place_K = torch.unique(node_K * masks + allowed.which, return_inverse=True)
        node_U, allowed = both_U // masks, replace(allowed, which=both_U % masks)
    order_K = torch.argsort(place_K, stable=True)
    labels = Labels(place_K[order_K], target_K[order_K], torch.bincount(place_K, minlength=len(node_U)).tolist())

    chunk = min(_HEAD_CHUNK, _HEAD_CHUNK_ON_CPU) if hidden_NH.device.type == "cpu" else _HEAD_CHUNK

    def score(forward: HeadForward, hidden_UH: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pieces = [
            checkpoint(
                _head_chunk,
                forward,
                hidden_UH[nodes],
                labels.place_K[these] - nodes.start,
                labels.target_K[these],
                temperature,
                allowed,
                nodes,
                use_reentrant=False,
            )
            for nodes, these in labels.chunks(chunk)
        ]
        return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))

    back_K = torch.argsort(order_K)
    log_probs, entropy, top1 = (scores[back_K] for scores in _in_one_call(head, score, hidden_NH[node_U]))
    return log_probs, entropy, top1


def _in_one_call(head: Any, work: Callable[[HeadForward, torch.Tensor], Any], hidden_UH: torch.Tensor) -> Any:
    """`work` on the head's plain forward, within one call of the head, however often it runs that forward.

    Where weights are sharded, a module gathers them when it is called, in all processes together; calls for each chunk
    would be of another number in each of them.
    """
    own = head.__dict__.get("forward")
    plain = head.forward
    head.forward = lambda hidden_UH: work(plain, hidden_UH)
    try:
        return head(hidden_UH)
    finally:
        if own is None:
            del head.forward
        else:
            head.forward = own


def _head_chunk(
    forward: HeadForward,
    hidden_UH: torch.Tensor,
    place_K: torch.Tensor,
    target_K: torch.Tensor,
    temperature: float,
    allowed: Allowed | None,
    nodes: slice,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits_UV = forward(hidden_UH)
    logits_UV = logits_UV if logits_UV.dtype == torch.float64 else logits_UV.float()
    if allowed is not None:
        logits_UV = allowed.bound(logits_UV, nodes)
    if temperature != 1.0:
        logits_UV = logits_UV / temperature
    norm_U = torch.logsumexp(logits_UV, dim=-1)
    log_probs_K = logits_UV[place_K, target_K] - norm_U[place_K]
    entropy_U = norm_U - (torch.softmax(logits_UV, dim=-1) * logits_UV).sum(-1)
    top1_K = (logits_UV.detach().argmax(-1)[place_K] == target_K).float()
    return log_probs_K, entropy_U[place_K], top1_K
