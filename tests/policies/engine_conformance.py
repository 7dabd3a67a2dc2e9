"""What every engine must do: subclass it, with the fixtures `engine` and `loaded`, the model whose weights it has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from changed_weights import changed_copy
from hypothesis import HealthCheck, Phase, given, settings
from plain_forward import TOLERANCE, assert_exact, plain_logprobs
from trained_is_sampled import Case, assert_what_is_trained_was_sampled, cases

from sdk.policies.models import LoadedModel
from sdk.policies.protocol import Policy, Sampling

SIXTEEN = Sampling(max_tokens=16)
DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)


class EngineConformance:
    """One suite for all engines."""

    @pytest.fixture
    def other_weights(self, loaded: LoadedModel) -> Any:
        return changed_copy(loaded.model)

    @pytest.fixture
    def prompt(self, loaded: LoadedModel) -> list[int]:
        messages = [{"role": "user", "content": "Name three colours and say what they look like."}]
        ids: list[int] = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return ids

    async def test_log_probabilities_are_those_of_transformers(
        self, engine: Policy, loaded: LoadedModel, prompt: list[int]
    ) -> None:
        for temperature in (1.0, 0.5):
            sampling = Sampling(max_tokens=12, temperature=temperature)
            completion = await engine.sample(prompt, sampling=sampling, seed=1)
            assert_exact(loaded.model, prompt, completion, temperature)

    async def test_greedy_takes_the_most_likely_token_and_reports_the_model_s_own_log_probability(
        self, engine: Policy, loaded: LoadedModel, prompt: list[int]
    ) -> None:
        sampling = Sampling(max_tokens=12, temperature=0)
        first, second = [await engine.sample(prompt, sampling=sampling, seed=seed) for seed in (1, 2)]
        assert first.token_ids == second.token_ids
        assert_exact(loaded.model, prompt, first)
        with torch.no_grad():
            logits = loaded.model(torch.tensor([prompt + first.token_ids])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == first.token_ids

    async def test_a_seed_gives_the_same_tokens_alone_and_in_company(self, engine: Policy, prompt: list[int]) -> None:
        seeds = [3, 4, 5, 2**62]
        alone = [await engine.sample(prompt, sampling=SIXTEEN, seed=seed) for seed in seeds]
        together = await asyncio.gather(*(engine.sample(prompt, sampling=SIXTEEN, seed=seed) for seed in seeds))
        assert [c.token_ids for c in together] == [c.token_ids for c in alone]
        assert len({tuple(c.token_ids) for c in together}) == len(seeds)

    async def test_a_stop_token_ends_the_answer_and_is_its_last_token(self, engine: Policy, prompt: list[int]) -> None:
        sampling = Sampling(max_tokens=12, temperature=0)
        free = await engine.sample(prompt, sampling=sampling, seed=0)
        stop = free.token_ids[5]
        held = await engine.sample(prompt, sampling=sampling, seed=0, stop_token_ids=[stop])
        assert held.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert held.stop_reason == "stop"
        assert len(held.logprobs) == len(held.token_ids)

    async def test_the_model_s_own_end_token_ends_the_answer(self, engine: Policy, loaded: LoadedModel) -> None:
        tokenizer = loaded.tokenizer
        asked = [{"role": "user", "content": "What is the capital of France? One word."}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        completion = await engine.sample(prompt, sampling=Sampling(max_tokens=64, temperature=0), seed=0)
        assert completion.stop_reason == "stop"
        assert completion.token_ids[-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in completion.token_ids[:-1]

    async def test_the_next_turn_and_the_group_share_what_they_have_in_common_and_stay_exact(
        self, engine: Policy, loaded: LoadedModel, prompt: list[int]
    ) -> None:
        longer = prompt * 4  # more than one block of any cache
        group = await asyncio.gather(*(engine.sample(longer, sampling=SIXTEEN, seed=seed) for seed in range(4)))
        for completion in group:
            assert_exact(loaded.model, longer, completion)
        following = [longer + completion.token_ids + prompt for completion in group]
        turns = await asyncio.gather(*(engine.sample(p, sampling=Sampling(max_tokens=4), seed=0) for p in following))
        for following_prompt, completion in zip(following, turns, strict=True):
            assert_exact(loaded.model, following_prompt, completion)

    async def test_more_prompt_tokens_at_once_than_a_batch_takes_are_computed_and_exact(
        self, engine: Policy, loaded: LoadedModel, prompt: list[int]
    ) -> None:
        longer = prompt * (360 // len(prompt))
        apart = [[first, *longer] for first in range(100, 112)]  # nothing is shared
        done = await asyncio.gather(*(engine.sample(p, sampling=Sampling(max_tokens=3), seed=5) for p in apart))
        for one, completion in zip(apart, done, strict=True):
            assert_exact(loaded.model, one, completion)

    async def test_the_nucleus_is_that_of_the_reported_log_probabilities(
        self, engine: Policy, loaded: LoadedModel, prompt: list[int]
    ) -> None:
        sampling = Sampling(max_tokens=8, top_p=0.6)
        completion = await engine.sample(prompt, sampling=sampling, seed=11)
        plain = plain_logprobs(loaded.model, prompt, completion.token_ids)
        # Outside of the nucleus nothing is sampled, so what is in it is as likely or likelier, up to 1 / 0.6.
        for mine, whole in zip(completion.logprobs, plain, strict=True):
            assert whole - TOLERANCE <= mine <= min(0.0, whole + 0.511) + TOLERANCE  # log(1 / 0.6) = 0.5108

    async def test_a_prompt_that_leaves_no_room_is_refused(self, engine: Policy) -> None:
        for prompt in ([], [5] * engine.context_tokens):
            with pytest.raises(ValueError, match="the prompt"):
                await engine.sample(prompt, sampling=SIXTEEN, seed=0)

    # Not shrunk: that takes minutes with a server, and the first that fails is short enough to read.
    @settings(max_examples=10, deadline=None, phases=DRAWN, suppress_health_check=list(HealthCheck))
    @given(case=cases())
    async def test_every_trained_token_is_one_that_was_sampled_with_the_same_past_probability_and_version(
        self, engine: Any, loaded: LoadedModel, other_weights: Any, case: Case
    ) -> None:
        await assert_what_is_trained_was_sampled(engine, case, loaded=loaded, other_weights=other_weights)
