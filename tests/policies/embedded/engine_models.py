"""Tiny random models that answer in milliseconds, and what a plain forward pass says of a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from sdk.policies.protocol import Completion

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
    config = getattr(transformers, f"{family}Config")(**(shape | settings))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model


def plain_logprobs(model: Any, prompt: list[int], token_ids: list[int], temperature: float = 1.0) -> list[float]:
    """The log-probabilities of `token_ids` after `prompt` by one plain forward pass of the whole text."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + token_ids])).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    return [float(logprobs[len(prompt) + i - 1, token]) for i, token in enumerate(token_ids)]


def assert_exact(model: Any, prompt: list[int], completion: Completion, temperature: float = 1.0) -> None:
    """The completion's log-probabilities are those of a plain forward pass, within 1e-4."""
    expected = plain_logprobs(model, prompt, completion.token_ids, temperature)
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def random_tokens(count: int, seed: int) -> list[int]:
    """Token ids of a tiny model, none of them special."""
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
