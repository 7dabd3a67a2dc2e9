"""Tiny random models that answer in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCABULARY = 97
EOS = 2


def tiny_model(family: str = "Llama", seed: int = 0, **settings: Any) -> Any:
    """Two layers, 32 wide, random; the weights are large so that its distributions are far from uniform."""
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "eos_token_id": EOS,
        "pad_token_id": 0,
    }
    config_class = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    config = config_class(**(shape | settings))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model


def random_tokens(count: int, seed: int) -> list[int]:
    """Token ids of a tiny model, none of them special."""
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
