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
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import ModelError
from ..freed_memory import give_freed_memory_back
from ..policies.models.own_forward import beyond, short_windows
from .processes import follows
from .tree_attention import PrefixTree, TreePlan, attending_as, attending_by_tree, attention_of, build_prefix_tree

log = logging.getLogger(__name__)

# ---------------------------------------------------------------------------------------------------------------------
# Log-probability and entropy of labels under a linear head, with a backward pass of its own.
#
# The gradient of a label's log-probability by the logits is one at the label minus the probabilities p. So that of the
# hidden state is W[label] - p W, and that of the weights p^T h taken from row `label`: products with p itself, which
# the forward pass has at hand. Nothing of the size of the logits is made beside it, and where p is kept the head's
# product is not computed again.
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

    def bound(self, logits_UV: torch.Tensor, nodes: slice, *, in_place: bool) -> torch.Tensor:
        """The logits of those nodes, without what was not allowed there."""
        which_U = self.which[nodes]
        if not bool(which_U.any()):
            return logits_UV
        masks_M, place_U = which_U.unique(return_inverse=True)
        bits_8 = torch.arange(8, device=logits_UV.device, dtype=torch.uint8)
        out_MV = ((self.masks_MB[masks_M, :, None] >> bits_8) & 1 == 0).flatten(1)[:, : logits_UV.shape[1]]
        fill = logits_UV.masked_fill_ if in_place else logits_UV.masked_fill
        return fill(out_MV[place_U], _NOT_ALLOWED)


_SLICE_NUMBERS = 2**20
"""Logits that are worked on at a time on a CPU: as many as a core's cache holds. The whole chunk elsewhere."""


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


@dataclass(frozen=True)
class Limits:
    """What may be in memory at the same time."""

    chunk: int
    """Nodes whose logits are computed together."""
    kept_bytes: int
    """Of probabilities, kept for the backward pass; those of the chunks beyond are computed again there."""


def linear_scores(
    hidden_UH: torch.Tensor,
    head: torch.nn.Linear,
    labels: Labels,
    temperature: float,
    limits: Limits,
    allowed: Allowed | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[K] log-probability, entropy of the distribution it is from, and whether it is that distribution's most probable.

    Equal to log_softmax(head(hidden) / temperature) over the tokens `allowed` at each node [U], differentiable once.
    """
    scores: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _LinearScores.apply(
        hidden_UH, head.weight, head.bias, labels, temperature, limits, allowed
    )
    return scores


class _LinearScores(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        hidden_UH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        labels: Labels,
        temperature: float,
        limits: Limits,
        allowed: Allowed | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        node_bytes = weight_VH.shape[0] * hidden_UH.element_size()
        learns = any(ctx.needs_input_grad[:3])
        kept: list[torch.Tensor] = []
        parts = []
        for nodes, these in labels.chunks(limits.chunk):
            logits_UV = _linear(hidden_UH[nodes], weight_VH, bias_V, allowed, nodes)
            place_K = labels.place_K[these] - nodes.start
            chosen_K = logits_UV[place_K, labels.target_K[these]].div_(temperature)
            keeps = learns and node_bytes * nodes.stop <= limits.kept_bytes
            norm_U, entropy_U, largest_U = _normalise(logits_UV, temperature, becomes_probabilities=keeps)
            parts.append((chosen_K, place_K, norm_U, entropy_U, largest_U))
            if keeps:
                kept.append(logits_UV)
        norm_U = torch.cat([part[2] for part in parts])
        entropy_U = torch.cat([part[3] for part in parts])
        log_probs_K = torch.cat([chosen - norm[place] for chosen, place, norm, _, _ in parts])
        top1_K = torch.cat([(chosen >= largest[place]).float() for chosen, place, _, _, largest in parts])
        ctx.save_for_backward(hidden_UH, weight_VH, bias_V, labels.place_K, labels.target_K, norm_U, entropy_U, *kept)
        ctx.labels, ctx.temperature, ctx.limits, ctx.allowed = labels, temperature, limits, allowed
        ctx.mark_non_differentiable(top1_K)
        ctx.set_materialize_grads(False)
        return log_probs_K, entropy_U[labels.place_K], top1_K

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_K: torch.Tensor | None, grad_entropy_K: torch.Tensor | None, _: Any) -> Any:
        hidden_UH, weight_VH, bias_V, place_K, target_K, norm_U, entropy_U, *kept = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        if grad_K is None:
            grad_K = torch.zeros_like(target_K, dtype=hidden_UH.dtype)
        grad_K = grad_K / ctx.temperature
        of_node_U = torch.zeros_like(norm_U).index_add_(0, place_K, grad_K)
        dhidden_UH = torch.empty_like(hidden_UH) if wants_hidden else None
        dweight_VH = dbias_V = None
        for number, (nodes, these) in enumerate(ctx.labels.chunks(ctx.limits.chunk)):
            h_UH, grad, place, target = hidden_UH[nodes], grad_K[these], place_K[these] - nodes.start, target_K[these]
            factor_U1 = of_node_U[nodes, None]
            if grad_entropy_K is not None:
                # The entropy's gradient by a logit is -p (log p + entropy), to be added to that of the log-probability.
                of_entropy_U = torch.zeros_like(norm_U[nodes]).index_add_(0, place, grad_entropy_K[these])
                log_p_UV = _linear(h_UH, weight_VH, bias_V, ctx.allowed, nodes)
                log_p_UV.div_(ctx.temperature).sub_(norm_U[nodes, None])
                p_UV = log_p_UV.exp()
                log_p_UV.add_(entropy_U[nodes, None]).mul_(of_entropy_U[:, None] / ctx.temperature)
                p_UV.mul_(log_p_UV.add_(factor_U1))
                factor_U1 = torch.ones_like(factor_U1)
            elif number < len(kept):
                p_UV = kept[number]
            else:
                p_UV = _linear(h_UH, weight_VH, bias_V, ctx.allowed, nodes)
                _normalise(p_UV, ctx.temperature, becomes_probabilities=True)
            if dhidden_UH is not None:
                taken_UH = torch.mm(p_UV, weight_VH).mul_(-factor_U1)
                dhidden_UH[nodes] = taken_UH.index_add_(0, place, weight_VH[target] * grad[:, None])
            if wants_weight:
                scaled_UH = h_UH * -factor_U1
                if dweight_VH is None:
                    dweight_VH = torch.mm(p_UV.t(), scaled_UH)
                else:
                    dweight_VH.addmm_(p_UV.t(), scaled_UH)
                dweight_VH.index_add_(0, target, h_UH[place] * grad[:, None])
            if wants_bias:
                dbias_V = torch.zeros_like(bias_V) if dbias_V is None else dbias_V
                dbias_V.addmv_(p_UV.t(), -factor_U1[:, 0]).index_add_(0, target, grad)
        return dhidden_UH, dweight_VH, dbias_V, None, None, None, None


def _linear(
    hidden_UH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    allowed: Allowed | None,
    nodes: slice,
) -> torch.Tensor:
    """[U, V] logits of those nodes, bounded where a grammar bounded them."""
    logits_UV = F.linear(hidden_UH, weight_VH, bias_V)
    return logits_UV if allowed is None else allowed.bound(logits_UV, nodes, in_place=True)


def _normalise(
    logits_UV: torch.Tensor, temperature: float, *, becomes_probabilities: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[U] log of the normaliser, entropy and largest logit, all at the temperature. `logits_UV` is overwritten."""
    nodes, vocabulary = logits_UV.shape
    rows = max(1, _SLICE_NUMBERS // vocabulary) if logits_UV.device.type == "cpu" else nodes
    parts = []
    for z_UV in logits_UV.split(rows):
        if temperature != 1.0:
            z_UV.div_(temperature)
        largest_U1 = z_UV.amax(-1, keepdim=True)
        p_UV = z_UV.sub_(largest_U1).exp()
        sum_U1 = p_UV.sum(-1, keepdim=True)
        log_sum_U1 = sum_U1.log()
        mean_U1 = z_UV.mul_(p_UV).sum(-1, keepdim=True) / sum_U1
        if becomes_probabilities:
            torch.div(p_UV, sum_U1, out=z_UV)
        parts.append(torch.cat([log_sum_U1 + largest_U1, log_sum_U1 - mean_U1, largest_U1], 1))
    norm_U, entropy_U, largest_U = torch.cat(parts).unbind(1)
    return norm_U, entropy_U, largest_U


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
_KEPT_BYTES = 256 * 2**20
"""Of probabilities over the vocabulary that the backward pass need not compute again. Of a step of 500 predicting
tokens and a vocabulary of 49,152 all: 100 MB, beside 2 GB of the layers'. With gradient checkpointing, too: they are
freed before the first layer is computed again, which takes more."""


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

    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


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

    def score(forward: HeadForward, hidden_UH: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if _is_plain_linear(head, forward, hidden_UH):
            return linear_scores(hidden_UH, head, labels, temperature, Limits(_HEAD_CHUNK, _KEPT_BYTES), allowed)
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
            for nodes, these in labels.chunks(_HEAD_CHUNK)
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
        logits_UV = allowed.bound(logits_UV, nodes, in_place=False)
    if temperature != 1.0:
        logits_UV = logits_UV / temperature
    norm_U = torch.logsumexp(logits_UV, dim=-1)
    log_probs_K = logits_UV[place_K, target_K] - norm_U[place_K]
    entropy_U = norm_U - (torch.softmax(logits_UV, dim=-1) * logits_UV).sum(-1)
    top1_K = (logits_UV.detach().argmax(-1)[place_K] == target_K).float()
    return log_probs_K, entropy_U[place_K], top1_K
