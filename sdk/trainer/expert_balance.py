"""The loss that keeps the experts of a mixture evenly used, over a tree of prefixes.

Axes: N nodes, E experts.
"""

from __future__ import annotations

from typing import Any

import torch

from .prefix_tree import PrefixTree


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
