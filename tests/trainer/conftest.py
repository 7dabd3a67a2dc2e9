"""A tiny model with the real template: real training in seconds."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_model_dir(short_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of about 150,000 parameters, saved as a user would save a model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sdk.policies.models import save_model

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(short_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=short_tokenizer.bos_token_id,
        eos_token_id=short_tokenizer.eos_token_id,
        pad_token_id=short_tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_model(LlamaForCausalLM(config), short_tokenizer, folder)


@pytest.fixture(scope="session")
def experts_dir(short_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GLM with experts, whose router has a buffer in its checkpoints."""
    import torch
    from launching import ROUTED
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    from sdk.policies.models import save_model

    torch.manual_seed(0)
    config = Glm4MoeConfig(
        vocab_size=len(short_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=1024,
        bos_token_id=short_tokenizer.bos_token_id,
        eos_token_id=short_tokenizer.eos_token_id,
        pad_token_id=short_tokenizer.pad_token_id,
    )
    model = Glm4MoeForCausalLM(config)
    model.get_buffer(ROUTED).copy_(torch.tensor([0.3, 0.1, -0.2, 0.0]))
    return save_model(model, short_tokenizer, tmp_path_factory.mktemp("models") / "experts")
