"""Penalties, bias and log-probabilities of alternatives, on the embedded model's real weights."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.models import LoadedModel
from sdk.policies.protocol import AdjustedSampling, Completion

PROMPT = [1, 4093, 198, 5345, 314, 1343, 216, 36, 36, 33, 39, 47, 2, 198, 1, 520, 9531, 198]


@pytest.fixture(scope="module")
def engine(embedded_model: LoadedModel) -> Any:
    with EmbeddedEngine(embedded_model.model) as engine:
        yield engine


def sample(engine: EmbeddedEngine, *samplings: AdjustedSampling) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*(engine.sample(PROMPT, sampling=one, seed=3) for one in samplings))

    return asyncio.run(all_of_them())


def plain_logits(loaded: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    """[T, V], each those that a token was sampled from."""
    with torch.no_grad():
        ids = torch.tensor([[*PROMPT, *token_ids]])
        return loaded.model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].float()


def test_alternatives_are_those_of_transformers_whatever_is_sampled_from(
    engine: EmbeddedEngine, embedded_model: LoadedModel
) -> None:
    plain = AdjustedSampling(max_tokens=12, temperature=0, top_logprobs=3)
    odd = AdjustedSampling(max_tokens=12, temperature=1.7, top_p=0.9, presence_penalty=1.0, top_logprobs=0)
    none = AdjustedSampling(max_tokens=12, temperature=0)
    first, second, third = sample(engine, plain, odd, none)
    assert third.alternatives is None
    assert third.token_ids == first.token_ids
    for completion, most in ((first, 3), (second, 0)):
        expected = plain_logits(embedded_model, completion.token_ids).log_softmax(-1)
        assert completion.alternatives is not None
        for place, (token, one) in enumerate(zip(completion.token_ids, completion.alternatives, strict=True)):
            assert one.logprob == pytest.approx(float(expected[place, token]), abs=1e-4)
            top = expected[place].topk(most)
            assert [logprob for _, logprob in one.top] == pytest.approx(top.values.tolist(), abs=1e-4)
            for other, logprob in one.top:
                assert logprob == pytest.approx(float(expected[place, other]), abs=1e-4)
    assert first.logprobs == pytest.approx([one.logprob for one in first.alternatives or []], abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalties_and_bias_hold_along_a_whole_answer_beside_others_of_the_same_prompt(
    engine: EmbeddedEngine, embedded_model: LoadedModel, temperature: float
) -> None:
    asked = AdjustedSampling(
        max_tokens=24,
        temperature=temperature,
        presence_penalty=0.7,
        frequency_penalty=1.1,
        logit_bias=((30, 6.0), (28, -100.0)),
    )
    plain = AdjustedSampling(max_tokens=24, temperature=temperature)
    adjusted, other, alone = *sample(engine, asked, plain), *sample(engine, plain)
    assert other.token_ids == alone.token_ids
    assert adjusted.token_ids != other.token_ids
    assert 28 not in adjusted.token_ids
    logits = plain_logits(embedded_model, adjusted.token_ids)
    logits[:, 30] += 6.0
    logits[:, 28] -= 100.0
    for place, token in enumerate(adjusted.token_ids):
        for seen in set(adjusted.token_ids[:place]):
            logits[place, seen] -= 0.7 + 1.1 * adjusted.token_ids[:place].count(seen)
        expected = (logits[place] / (temperature or 1.0)).log_softmax(-1)
        assert adjusted.logprobs[place] == pytest.approx(float(expected[token]), abs=1e-4)
        if temperature == 0:
            assert float(expected[token]) == pytest.approx(float(expected.max()), abs=1e-4)
