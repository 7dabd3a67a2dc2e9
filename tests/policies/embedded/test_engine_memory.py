"""The engine stores no more keys and values than there is memory for: requests wait, and what pauses is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_models import random_tokens, tiny_model
from plain_forward import assert_exact

from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.embedded import attention as cache
from sdk.policies.embedded import scheduler as memory
from sdk.policies.protocol import Sampling
from sdk.rollouts.engine import FULL

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
    # Only now: the last answer comes before the step that gave it ends.
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


async def test_prefixes_that_no_conversation_stands_on_keep_nobody_waiting() -> None:
    with EmbeddedEngine(MODEL, cache_bytes=300 * TOKEN_BYTES) as engine:
        for number in range(3):
            prompt, short = random_tokens(85, number), Sampling(max_tokens=4, temperature=1.0)
            await asyncio.gather(*(engine.sample(prompt, sampling=short, seed=seed) for seed in range(3)))
        pressures: list[float] = []

        def look(_: int) -> None:
            pressures.append(engine.pressure())

        prompts = [random_tokens(30, 50 + number) for number in range(5)]
        found = await asyncio.gather(*(engine.sample(p, sampling=SAMPLING, seed=0, on_token=look) for p in prompts))
    # Five of 50 tokens fit into 300, but not beside the prompts of the groups that are done.
    assert max(pressures) < 1.0
    for prompt, completion in zip(prompts, found, strict=True):
        assert_exact(MODEL, prompt, completion, 1.0)


async def test_conversations_are_kept_also_where_the_system_takes_no_pages_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "sys", SimpleNamespace(platform="darwin"))
    short = Sampling(max_tokens=5, temperature=1.0)
    with EmbeddedEngine(MODEL, cache_bytes=300 * TOKEN_BYTES) as engine:
        for number in range(8):
            await engine.sample(random_tokens(60, number), sampling=SAMPLING, seed=number)
        prompt = random_tokens(30, 99)
        for turn in range(3):
            computed = engine.computed_prompt_tokens
            said = (await engine.sample(prompt, sampling=short, seed=turn)).token_ids
            assert engine.computed_prompt_tokens - computed == (2 if turn else len(prompt))
            await engine.sample(random_tokens(10, 200 + turn), sampling=short, seed=0)
            prompt = [*prompt, *said, 5]


@pytest.mark.parametrize(("most", "free"), [("max", None), (f"{2**30}", 2**30 - 2**29 + 2**20)])
def test_the_memory_of_a_control_group_counts_where_it_is_less(
    most: str, free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{most}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2**20}\n")
    (tmp_path / "own").write_text("0::/\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    assert memory.free_bytes() == free if free is not None else memory.free_bytes() > 2**30


@pytest.mark.parametrize(
    ("own", "limited", "names"),
    [
        ("0::/jobs/7/step", "jobs/7", ("memory.max", "memory.current", "inactive_file")),
        (
            "5:devices:/x\n4:cpu,memory:/jobs/7/step\n0::/",
            "memory/jobs/7",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
        (
            "4:memory:/not/seen/in/the/container",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_the_limit_of_a_control_group_some_levels_up_and_of_an_older_system_counts(
    own: str, limited: str, names: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / limited
    group.mkdir(parents=True)
    (group / names[0]).write_text(f"{2**30}\n")
    (group / names[1]).write_text(f"{2**29}\n")
    (group / "memory.stat").write_text(f"anon 5\n{names[2]} {2**20}\n")
    (tmp_path / "own").write_text(own + "\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    assert memory.free_bytes() == 2**30 - 2**29 + 2**20


def test_a_memory_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_bytes is 0; it must be 1 or more"):
        EmbeddedEngine(MODEL, cache_bytes=0)


async def test_an_engine_that_rests_gives_its_weights_back_and_goes_on_with_the_next_ones() -> None:
    prompt = random_tokens(30, 0)
    with EmbeddedEngine(MODEL) as engine:
        before = await engine.sample(prompt, sampling=SAMPLING, seed=0)
        engine.rest()
        assert sum(weight.untyped_storage().nbytes() for weight in engine._decoder.weights.model.parameters()) == 0
        waiting = asyncio.create_task(engine.sample(prompt, sampling=SAMPLING, seed=0))
        await asyncio.to_thread(engine.rest)
        assert not waiting.done()
        await asyncio.to_thread(engine.publish, MODEL.state_dict(), version=1)
        after = await waiting
    assert (after.token_ids, after.logprobs, after.version) == (before.token_ids, before.logprobs, 1)


async def test_an_engine_that_forgets_samples_as_if_it_had_sampled_nothing_before() -> None:
    prompt = random_tokens(30, 0)
    with EmbeddedEngine(MODEL) as fresh:
        expected = await fresh.sample(prompt, sampling=SAMPLING, seed=0)
    with EmbeddedEngine(MODEL) as engine:
        await engine.sample(prompt[:17], sampling=SAMPLING, seed=1)
        await asyncio.to_thread(engine.forget)
        assert (engine._batch.rows.rows, engine._batch.rows.prefixes) == ([], [])
        found = await engine.sample(prompt, sampling=SAMPLING, seed=0)
    assert (found.token_ids, found.logprobs, found.version) == (expected.token_ids, expected.logprobs, 0)
