"""What one plain forward pass of transformers says of a text: the measure of every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sdk.policies.embedded.sampling_request import generator
from sdk.policies.protocol import Completion

TOLERANCE = 1e-4
"""In nats, in float32: for the embedded engine and for vLLM alike."""


def plain_logprobs(
    model: Any,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    temperature: float = 1.0,
    allowed: Sequence[bytes] | None = None,
) -> list[float]:
    """The log-probabilities of `token_ids` after `prompt`, in nats. `allowed`: see `Grammar.allowed_along`."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1].float()
    for row, mask in zip(logits, allowed or (), strict=allowed is not None):
        row[[token for token in range(len(row)) if not mask[token // 8] >> token % 8 & 1]] = -torch.inf
    picked: list[float] = (logits / temperature).log_softmax(-1)[range(len(token_ids)), list(token_ids)].tolist()
    return picked


def assert_exact(model: Any, prompt: list[int], completion: Completion, temperature: float = 1.0) -> None:
    """The completion's log-probabilities are those of a plain forward pass."""
    expected = plain_logprobs(model, prompt, completion.token_ids, temperature)
    assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)


def assert_drawn(model: Any, prompt: list[int], completion: Completion, temperature: float, seed: int) -> None:
    """Each token is the one at which the plain model's cumulative distribution passes the seed's next number."""
    assert_exact(model, prompt, completion, temperature or 1.0)
    tokens, random = completion.token_ids, generator(seed)
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
    for token, logits_V in zip(tokens, logits_TV, strict=True):
        if temperature == 0:
            assert logits_V[token] >= logits_V.max() - 1e-4
            continue
        cdf_V, draw = (logits_V / temperature).softmax(-1).cumsum(-1), random.random()
        below = float(cdf_V[token - 1]) if token else 0.0
        assert below - 1e-5 <= draw <= cdf_V[token] + 1e-5
