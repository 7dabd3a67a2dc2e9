"""The embedded engine over the model families of transformers: exact, whatever turns and groups share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_models import random_tokens, tiny_model
from plain_forward import assert_exact

from sdk.errors import ModelError
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.protocol import Sampling

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]

FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("Apertus", "Arcee", "Cwm", "Ernie4_5", "Olmo", "Olmo2", "Phi", "SmolLM3", "Starcoder2")},
    **{name: {"head_dim": 8} for name in ("Gemma", "Glm", "Glm4", "Helium", "HunYuanDenseV1")},
    "Cohere": {"logit_scale": 0.25},
    "Cohere2": {"logit_scale": 0.25, "head_dim": 8, "sliding_window": 9},
    "Exaone4": {"sliding_window": 9},
    # Of each head a half is turned.
    "Glm4Moe": {
        "head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "Granite": {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "Ministral": {"head_dim": 8, "sliding_window": 9},
    "Olmo3": {"sliding_window": 9},
    "Phi3": {"sliding_window": 9},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
}


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_family_is_exact(family: str) -> None:
    model = tiny_model(family, bos_token_id=1, **FAMILIES[family])
    prompts = [[*random_tokens(20, 0), *random_tokens(6, group)] for group in (1, 1, 2)]
    sampling = Sampling(max_tokens=8)
    with EmbeddedEngine(model, max_rows=4) as engine:
        for _ in range(2):  # turns
            replies = await asyncio.gather(
                *(engine.sample(prompt, sampling=sampling, seed=seed) for seed, prompt in enumerate(prompts))
            )
            for prompt, reply in zip(prompts, replies, strict=True):
                assert_exact(model, prompt, reply)
            prompts = [
                [*prompt, *reply.token_ids, *random_tokens(3, 7)]
                for prompt, reply in zip(prompts, replies, strict=True)
            ]


def test_a_window_that_mask_and_attention_do_not_agree_on_is_found_however_long_it_is() -> None:
    model = tiny_model("Olmoe", num_experts=4, num_experts_per_tok=2, sliding_window=100)  # its mask knows of none
    with pytest.raises(ModelError, match="differ from the model's own"):
        EmbeddedEngine(model)
    assert model.config.sliding_window == 100
