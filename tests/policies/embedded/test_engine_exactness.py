"""Whatever the engine reuses, the log-probabilities are those of a plain forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine_models import EOS, random_tokens, tiny_model
from plain_forward import assert_exact, plain_logprobs

from sdk.policies.embedded import EmbeddedEngine, attention
from sdk.policies.protocol import Completion, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLING = Sampling(max_tokens=24)


# Windows that end in a row's own tokens, in the prefix that rows share, and in one layer alone.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in ("Llama", "Qwen2", "Qwen3")},
    "narrow window": ("Mistral", {"sliding_window": 7}),
    "wide window": ("Mistral", {"sliding_window": 55}),
    "two kinds": ("Qwen3", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    "Gemma 3": (
        "Gemma3",
        {"head_dim": 8, "sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    family, settings = MODELS[request.param]
    return tiny_model(family, **settings)


@pytest.fixture
def engine(model: Any) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(model, max_rows=16) as engine:
        yield engine


async def sample_all(engine: EmbeddedEngine, prompts: list[list[int]], **settings: Any) -> list[Completion]:
    sampling = Sampling(**({"max_tokens": 24} | settings))
    return await asyncio.gather(*(engine.sample(p, sampling=sampling, seed=i) for i, p in enumerate(prompts)))


def groups(count: int, size: int, *, shared: int = 50, own: int = 9, seed: int = 0) -> list[list[int]]:
    system = random_tokens(shared, seed)
    return [system + random_tokens(own, seed + 1 + g) for g in range(count) for _ in range(size)]


async def test_groups_with_a_common_beginning_compute_it_once(model: Any, engine: EmbeddedEngine) -> None:
    prompts = groups(3, 4)
    completions = await sample_all(engine, prompts)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)
    # A request that the engine hears of after its group has begun computes its last token again, and nothing else.
    assert 50 + 3 * 9 <= engine.computed_prompt_tokens < 50 + 3 * 9 + len(prompts)


async def test_the_next_turn_of_a_rollout_computes_only_what_is_new(model: Any, engine: EmbeddedEngine) -> None:
    prompts = groups(3, 4)
    for turn in range(3):
        before = engine.computed_prompt_tokens
        completions = await sample_all(engine, prompts)
        for prompt, completion in zip(prompts, completions, strict=True):
            assert_exact(model, prompt, completion)
        if turn:
            # The last sampled token was never an input, so it is computed together with the 7 new ones.
            assert engine.computed_prompt_tokens - before == 12 * 8
        prompts = [
            p + c.token_ids + random_tokens(7, 100 * turn + i)
            for i, (p, c) in enumerate(zip(prompts, completions, strict=True))
        ]


async def test_requests_that_arrive_while_others_decode_are_exact(model: Any, engine: EmbeddedEngine) -> None:
    prompts = [*groups(4, 3), random_tokens(30, 77), random_tokens(1, 78)]

    async def later(i: int, prompt: list[int]) -> Completion:
        for _ in range(i % 5):
            await engine.sample(random_tokens(3, i), sampling=Sampling(max_tokens=2), seed=0)
        return await engine.sample(prompt, sampling=SAMPLING, seed=i)

    completions = await asyncio.gather(*(later(i, p) for i, p in enumerate(prompts)))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)


async def test_a_row_that_came_before_its_prefix_was_shared_reads_the_prefix_too(model: Any) -> None:
    """Else the attention of all rows would be as wide as that one row is long."""
    first, *others = prompts = groups(3, 4)
    with EmbeddedEngine(model, max_rows=16) as engine:
        alone = asyncio.create_task(engine.sample(first, sampling=Sampling(max_tokens=500), seed=0))
        await engine.sample(random_tokens(3, 5), sampling=Sampling(max_tokens=2), seed=0)  # the first one decodes now
        completions = await sample_all(engine, others)
        completions = [await alone, *completions]
        rows = [row for row in engine._batch.rows.rows if row.tokens[:50] == first[:50]]
        assert len([row for row in rows if row.tokens[: len(first)] == first]) > 1
        assert all(row.prefix is rows[0].prefix is not None for row in rows)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)


@pytest.mark.parametrize("others", range(4, 9))
async def test_equal_prompts_are_exact_where_another_of_the_same_batch_makes_a_longer_prefix(
    model: Any, others: int
) -> None:
    known = random_tokens(100, 1)
    prompts = [known[:90] + random_tokens(9, 2)] * 2 + [known[:90] + random_tokens(9, 3)]
    prompts += [known[:32] + random_tokens(20, 10 + i) for i in range(others)]
    with EmbeddedEngine(model, max_rows=32) as engine:
        await engine.sample(known, sampling=Sampling(max_tokens=1), seed=0)
        completions = await sample_all(engine, prompts, max_tokens=8)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)


async def test_several_shared_prefixes_in_one_batch_are_exact(model: Any, engine: EmbeddedEngine) -> None:
    prompts = groups(1, 4, seed=10) + groups(1, 4, shared=70, seed=20) + [random_tokens(20, 30)]
    for prompt, completion in zip(prompts, await sample_all(engine, prompts), strict=True):
        assert_exact(model, prompt, completion)


@pytest.mark.parametrize("room", [0, 119, 120, 8192])
async def test_prefixes_joined_as_on_a_gpu_are_exact(
    model: Any, engine: EmbeddedEngine, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "JOINED_TOKENS", {"cpu": room})
    # Two groups with a prefix each, rows that come and go, and one row without a prefix.
    prompts = groups(1, 4, seed=10) + groups(2, 3, shared=70, seed=20) + [random_tokens(20, 30)]
    for prompt, completion in zip(prompts, await sample_all(engine, prompts), strict=True):
        assert_exact(model, prompt, completion)


async def test_more_tool_sets_than_prefixes_are_exact(model: Any, engine: EmbeddedEngine) -> None:
    for seed in range(7):
        prompts = groups(2, 4, seed=1000 * seed)
        for prompt, completion in zip(prompts, await sample_all(engine, prompts, max_tokens=4), strict=True):
            assert_exact(model, prompt, completion)


async def test_more_requests_than_rows_wait_their_turn_and_are_exact(model: Any) -> None:
    with EmbeddedEngine(model, max_rows=3) as engine:
        prompts = groups(4, 3)
        for _ in range(2):
            completions = await sample_all(engine, prompts, max_tokens=8)
            for prompt, completion in zip(prompts, completions, strict=True):
                assert_exact(model, prompt, completion)
            prompts = [p + c.token_ids + [9] for p, c in zip(prompts, completions, strict=True)]


async def test_a_prompt_that_leaves_its_old_history_is_exact(model: Any, engine: EmbeddedEngine) -> None:
    prompt = random_tokens(60, 5)
    [first] = await sample_all(engine, [prompt])
    # A template that rewrites history: the same beginning, another middle.
    rewritten = [*prompt[:40], 7, 7, 7, *first.token_ids]
    before = engine.computed_prompt_tokens
    [second] = await sample_all(engine, [rewritten])
    assert_exact(model, rewritten, second)
    assert engine.computed_prompt_tokens - before == len(rewritten) - 40


async def test_a_prompt_longer_than_one_forward_pass_is_exact() -> None:
    model = tiny_model(max_position_embeddings=4096)
    prompts = [random_tokens(3000, 1), random_tokens(1500, 2)]
    with EmbeddedEngine(model) as engine:
        for prompt, completion in zip(prompts, await sample_all(engine, prompts, max_tokens=3), strict=True):
            assert_exact(model, prompt, completion)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
async def test_logprobs_are_those_after_the_temperature(model: Any, engine: EmbeddedEngine, temperature: float) -> None:
    prompt = random_tokens(20, 3)
    [completion] = await sample_all(engine, [prompt], temperature=temperature)
    assert_exact(model, prompt, completion, temperature)


async def test_greedy_takes_the_most_likely_token_and_reports_the_model_s_own_logprob(
    model: Any, engine: EmbeddedEngine
) -> None:
    prompt = random_tokens(20, 4)
    sampling = Sampling(max_tokens=12, temperature=0)
    first, second = [await engine.sample(prompt, sampling=sampling, seed=seed) for seed in (1, 2)]
    assert first.token_ids == second.token_ids
    assert_exact(model, prompt, first)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + first.token_ids])).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == first.token_ids


async def test_a_seed_gives_the_same_tokens_alone_and_in_company(engine: EmbeddedEngine) -> None:
    prompts = groups(4, 4)
    alone = [await engine.sample(p, sampling=SAMPLING, seed=i) for i, p in enumerate(prompts)]
    together = await sample_all(engine, prompts)
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert len({tuple(c.token_ids) for c in together}) > 8


async def test_the_end_token_ends_the_answer_and_is_its_last_token(model: Any, engine: EmbeddedEngine) -> None:
    prompts = [random_tokens(20, seed) for seed in range(16)]
    completions = await sample_all(engine, prompts, max_tokens=100)
    stopped = [c for c in completions if c.stop_reason == "stop"]
    assert stopped
    for completion in completions:
        assert (completion.token_ids[-1] == EOS) == (completion.stop_reason == "stop")
        assert EOS not in completion.token_ids[:-1]
        assert completion.stop_reason == "stop" or len(completion.token_ids) == 100


async def test_a_stop_token_of_the_caller_ends_the_answer(engine: EmbeddedEngine) -> None:
    prompt = random_tokens(20, 4)
    sampling = Sampling(max_tokens=12, temperature=0)
    free = await engine.sample(prompt, sampling=sampling, seed=0)
    stop = free.token_ids[3]
    held = await engine.sample(prompt, sampling=sampling, seed=0, stop_token_ids=[stop])
    assert held.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert held.stop_reason == "stop"


async def test_bfloat16_follows_the_model_in_its_own_precision(model: Any) -> None:
    model = model.to(torch.bfloat16)
    prompts = groups(2, 4)
    with EmbeddedEngine(model) as engine:
        completions = await sample_all(engine, prompts, max_tokens=8)
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = plain_logprobs(model, prompt, completion.token_ids)
        # Eight bits of mantissa: logits near 10 are known to about 0.04.
        assert completion.logprobs == pytest.approx(expected, abs=0.4)
