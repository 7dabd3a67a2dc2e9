"""The engine stores no more keys and values than there is memory for: requests wait, and what pauses is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_models import random_tokens, tiny_model
from plain_forward import assert_exact

from sdk.policies.embedded import EmbeddedEngine, memory
from sdk.policies.protocol import Sampling
from sdk.rollouts.concurrency import FULL

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(60)]
MODEL = tiny_model(eos_token_id=None)
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
"""Two layers, keys and values, two key heads of 8 numbers of 4 bytes."""
SAMPLING = Sampling(max_tokens=20, temperature=1.0)


async def test_requests_that_do_not_fit_into_the_memory_wait_and_get_what_they_would_have_got() -> None:
    prompts = [random_tokens(30, seed) for seed in range(12)]
    with EmbeddedEngine(MODEL, cache_bytes=120 * TOKEN_BYTES) as narrow, EmbeddedEngine(MODEL) as wide:
        pressures: list[float] = []

        def look(_: int) -> None:
            pressures.append(narrow.pressure())

        found = await asyncio.gather(
            *(narrow.sample(p, sampling=SAMPLING, seed=n, on_token=look) for n, p in enumerate(prompts))
        )
        expected = await asyncio.gather(*(wide.sample(p, sampling=SAMPLING, seed=n) for n, p in enumerate(prompts)))
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
        # Two of 50 tokens fit, so that the other ten wait: few rollouts are to be in flight.
        assert max(pressures) == 1.0 > FULL
        assert narrow.pressure() == wide.pressure() == 0.0


async def test_a_request_larger_than_the_memory_is_computed_by_itself() -> None:
    prompt = random_tokens(60, 0)
    with EmbeddedEngine(MODEL, cache_bytes=1) as engine:
        one, other = await asyncio.gather(*(engine.sample(prompt, sampling=SAMPLING, seed=seed) for seed in range(2)))
    assert_exact(MODEL, prompt, one, 1.0)
    assert_exact(MODEL, prompt, other, 1.0)


async def test_conversations_that_pause_are_kept_until_others_need_their_memory() -> None:
    first, others = random_tokens(40, 0), [random_tokens(40, seed) for seed in range(1, 4)]
    with EmbeddedEngine(MODEL, cache_bytes=200 * TOKEN_BYTES) as engine:
        said = (await engine.sample(first, sampling=SAMPLING, seed=0)).token_ids
        kept = first + said + [5]
        computed = engine.computed_prompt_tokens
        said = (await engine.sample(kept, sampling=SAMPLING, seed=1)).token_ids
        assert engine.computed_prompt_tokens - computed == 2  # the last token sampled, and what was heard
        for number, prompt in enumerate(others):
            await engine.sample(prompt, sampling=SAMPLING, seed=number)
        computed = engine.computed_prompt_tokens
        forgotten = kept + said + [5]
        completion = await engine.sample(forgotten, sampling=SAMPLING, seed=2)
        assert engine.computed_prompt_tokens - computed == len(forgotten)
    assert_exact(MODEL, forgotten, completion, 1.0)


@pytest.mark.parametrize(("most", "free"), [("max", None), (f"{2**30}", 2**30 - 2**29 + 2**20)])
def test_the_memory_of_a_control_group_counts_where_it_is_less(
    most: str, free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{most}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2**20}\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_bytes() == free if free is not None else memory.free_bytes() > 2**30


def test_a_memory_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_bytes is 0; it must be 1 or more"):
        EmbeddedEngine(MODEL, cache_bytes=0)
