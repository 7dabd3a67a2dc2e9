"""The embedded engine with the embedded model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from plain_forward import assert_exact

from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.models import LoadedModel
from sdk.policies.protocol import Sampling


@pytest.fixture(scope="module")
def engine(embedded_model: LoadedModel) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(embedded_model.model) as engine:
        yield engine


def prompt(loaded: LoadedModel, text: str) -> list[int]:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_order",
                "description": "Read an order with its items and its status.",
                "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
            },
        }
    ]
    messages = [{"role": "user", "content": text}]
    ids: list[int] = loaded.tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False
    )
    return ids


async def test_eight_rollouts_are_exact_and_sample_what_they_would_alone(
    embedded_model: LoadedModel, engine: EmbeddedEngine
) -> None:
    texts = ["Where is order 4417?", "Say hello.", "Who wrote Faust?", "List three colours."]
    prompts = [prompt(embedded_model, text) for text in texts for _ in range(2)]
    sampling = Sampling(max_tokens=16)
    together = await asyncio.gather(*(engine.sample(p, sampling=sampling, seed=i) for i, p in enumerate(prompts)))
    for i in (0, 3, 6):
        assert_exact(embedded_model.model, prompts[i], together[i])
        alone = await engine.sample(prompts[i], sampling=sampling, seed=i)
        assert alone.token_ids == together[i].token_ids
    assert len({tuple(c.token_ids) for c in together}) == 8


async def test_a_second_turn_is_exact(embedded_model: LoadedModel, engine: EmbeddedEngine) -> None:
    first = prompt(embedded_model, "Say hello.")
    answer = await engine.sample(first, sampling=Sampling(max_tokens=12), seed=1)
    news = embedded_model.tokenizer.encode("<|im_end|>\n<|im_start|>user\nAnd bye?<|im_end|>\n<|im_start|>assistant\n")
    second = first + answer.token_ids + news
    before = engine.computed_prompt_tokens
    completion = await engine.sample(second, sampling=Sampling(max_tokens=12), seed=2)
    assert engine.computed_prompt_tokens - before == len(news) + 1
    assert_exact(embedded_model.model, second, completion)
