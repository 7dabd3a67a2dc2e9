"""Whether the shared-prefix forward computes what a model's own forward does.

Axes: B rows, L positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..errors import ModelError
from ..policies.models.sliding_window import short_windows
from ..policies.models.trial import beyond
from .expert_balance import balances_experts
from .processes import follows


def check_fits(model: Any) -> None:
    """Raises ModelError for a model that the shared-prefix forward cannot express."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{type(model).__name__} has layers of the kinds {sorted(kinds)}; the shared-prefix forward handles "
            "attention, full or in a sliding window. Pass config={'shared_prefix': False} to train with the padded "
            "forward."
        )
    for name in ("attention_dropout", "attn_pdrop", "attn_dropout", "attention_probs_dropout_prob"):
        if getattr(config, name, 0.0):
            raise ModelError(
                f"{type(model).__name__} has {name}={getattr(config, name)}, which the shared-prefix forward "
                "does not apply. Set it to 0 in the model's config.json, or pass config={'shared_prefix': False}."
            )
    if getattr(config, "attn_logit_softcapping", None) or any(
        n.endswith(".sinks") for n, _ in model.named_parameters()
    ):
        raise ModelError(
            f"the attention of {type(model).__name__} caps its scores or has sinks, which the shared-prefix forward "
            "does not compute. Pass config={'shared_prefix': False} to train with the padded forward."
        )
    for name in ("final_logit_softcapping", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ModelError(
                f"{type(model).__name__} changes its logits ({name}={getattr(config, name)}); the shared-prefix "
                "forward does not. Pass config={'shared_prefix': False} to train with the padded forward."
            )
    if not getattr(model, "_supports_attention_backend", False):
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be exchanged, which the shared-prefix forward does. Pass "
            "config={'shared_prefix': False} to train with the padded forward."
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
            "config={'shared_prefix': False} to train with the padded forward."
        ) from error
    finally:
        for module, was_training in modes:
            module.training = was_training
    if too_far := beyond(found_BL, expected_BL, weights[0].dtype):
        raise ModelError(
            f"the shared-prefix forward of {type(model).__name__} finds log-probabilities that differ from the model's "
            f"own by {too_far[0]:.3g} (at most {too_far[1]:.3g} is allowed): the model does something that a tree of "
            "prefixes does not know of. Pass config={'shared_prefix': False} to train with the padded forward."
        )
