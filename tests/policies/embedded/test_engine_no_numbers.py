"""A model that says nan: its caller hears of it at once, and nobody else is touched."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch
from engine_models import tiny_model
from plain_forward import assert_exact

from sdk.errors import PolicyFailure
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.protocol import Sampling

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLING = Sampling(max_tokens=16)
SPOILT = 90
"""The model makes infinite numbers of this token, as float16 does where it is too narrow."""


@pytest.fixture
def model() -> Any:
    made = tiny_model(eos_token_id=None)

    def spoil(_: Any, taken: tuple[torch.Tensor], states: torch.Tensor) -> torch.Tensor:
        return torch.where((taken[0] == SPOILT)[..., None], math.inf, states)

    made.model.embed_tokens.register_forward_hook(spoil)
    return made


async def test_weights_that_are_nan_fail_each_request_with_the_reason_until_others_are_published() -> None:
    model = tiny_model()
    state = {name: torch.full_like(tensor, math.nan) for name, tensor in model.state_dict().items()}
    with EmbeddedEngine(model) as engine:
        engine.publish(state, version=1)
        for temperature in (0.0, 1.0):
            with pytest.raises(PolicyFailure, match=r"after 2 tokens are nan or infinite.*publish other weights"):
                await engine.sample([5, 6], sampling=Sampling(temperature=temperature), seed=0)
        assert engine.alive
        engine.publish(model.state_dict(), version=2)
        assert_exact(model, [5, 6], await engine.sample([5, 6], sampling=SAMPLING, seed=0))


async def test_a_conversation_that_is_nan_leaves_nothing_to_the_next_one_in_its_row(model: Any) -> None:
    with EmbeddedEngine(model, max_rows=2) as engine:
        spoilt = [[4, number, *[SPOILT] * 30] for number in range(4)]
        results = await asyncio.gather(
            *(engine.sample(prompt, sampling=SAMPLING, seed=0) for prompt in spoilt), return_exceptions=True
        )
        assert all(isinstance(r, PolicyFailure) and "after 32 tokens" in str(r) for r in results)
        # Of different lengths: what the shorter one's row holds behind its end is masked, and must be numbers.
        prompts = [[5, 6, 7], list(range(10, 35))]
        completions = await asyncio.gather(*(engine.sample(p, sampling=SAMPLING, seed=1) for p in prompts))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)


async def test_a_request_beside_one_that_is_nan_is_exact(model: Any) -> None:
    prompts = [[5, 6, 7, number] for number in range(20, 23)]
    with EmbeddedEngine(model, max_rows=4) as engine:
        good = [asyncio.create_task(engine.sample(p, sampling=SAMPLING, seed=1)) for p in prompts]
        with pytest.raises(PolicyFailure):
            await engine.sample([5, 6, 7, SPOILT], sampling=SAMPLING, seed=1)
        completions = await asyncio.gather(*good)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)
