"""Weights that change, requests that are given up, engines that break: nobody hangs and nothing stale is read."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch
from engine_models import random_tokens, tiny_model
from plain_forward import assert_exact

from sdk.errors import ModelError, PolicyFailure
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.protocol import Sampling

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLING = Sampling(max_tokens=16)


async def test_published_weights_replace_what_was_stored() -> None:
    old, new = tiny_model(seed=0), tiny_model(seed=1)
    prompt = random_tokens(40, 0)
    with EmbeddedEngine(old) as engine:
        before = await engine.sample(prompt, sampling=SAMPLING, seed=3)
        engine.publish(new.state_dict(), version=5)
        after = await engine.sample(prompt, sampling=SAMPLING, seed=3)
        longer = prompt + before.token_ids
        extended = await engine.sample(longer, sampling=SAMPLING, seed=3)
    assert (before.version, after.version, engine.version) == (0, 5, 5)
    assert_exact(old, prompt, before)
    assert_exact(new, prompt, after)
    assert_exact(new, longer, extended)


@pytest.mark.parametrize("tied", [False, True])
async def test_weights_of_a_tied_head_are_published_with_the_embedding(tied: bool) -> None:
    old, new = (tiny_model(seed=seed, tie_word_embeddings=tied) for seed in (0, 1))
    state = new.state_dict()
    if tied:
        del state["lm_head.weight"]
    prompt = random_tokens(40, 0)
    with EmbeddedEngine(old) as engine:
        engine.publish(state, version=1)
        assert_exact(new, prompt, await engine.sample(prompt, sampling=SAMPLING, seed=0))


async def test_published_buffers_are_taken_in_too() -> None:
    """Such as the bias by which GLM-4 MoE chooses experts: no parameter, and a part of every checkpoint."""
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    old, new = (tiny_model("Glm4Moe", head_dim=8, **experts) for _ in range(2))
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    new.get_buffer(bias).copy_(torch.tensor([5.0, -5.0, 5.0, -5.0]))
    prompt = random_tokens(40, 0)
    with EmbeddedEngine(old) as engine:
        engine.publish(new.state_dict(), version=1)
        assert_exact(new, prompt, await engine.sample(prompt, sampling=SAMPLING, seed=0))
        without = {name: tensor for name, tensor in old.state_dict().items() if name != bias}
        engine.publish(without, version=2)
        with pytest.raises(ModelError, match=f"1 of another shape, first {bias}"):
            engine.publish(without | {bias: torch.zeros(5)}, version=3)


async def test_training_the_model_changes_nothing_until_it_is_published() -> None:
    model = tiny_model()
    prompt = random_tokens(40, 0)
    with EmbeddedEngine(model) as engine:
        before = await engine.sample(prompt, sampling=SAMPLING, seed=3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert (await engine.sample(prompt, sampling=SAMPLING, seed=3)).token_ids == before.token_ids
    assert model.config._attn_implementation != "toolbake_rows"
    assert model(torch.tensor([prompt])).logits.abs().max() == 0


async def test_requests_in_flight_end_with_the_weights_they_began_with() -> None:
    gate, entered = threading.Event(), threading.Event()
    model = tiny_model(eos_token_id=None)

    def wait_for_gate(*_: Any) -> None:
        entered.set()
        gate.wait()

    old, new = model, tiny_model(seed=1, eos_token_id=None)
    prompt = random_tokens(30, 0)
    gate.set()
    model.model.layers[0].register_forward_pre_hook(wait_for_gate)
    with EmbeddedEngine(model) as engine:
        gate.clear()
        entered.clear()
        flying = asyncio.create_task(engine.sample(prompt, sampling=SAMPLING, seed=0))
        await asyncio.to_thread(entered.wait)
        publishing = asyncio.create_task(asyncio.to_thread(engine.publish, new.state_dict(), version=1))
        gate.set()
        await publishing
        after = await engine.sample(prompt, sampling=SAMPLING, seed=0)
        before = await flying
    assert (before.version, after.version) == (0, 1)
    assert_exact(old, prompt, before)
    assert_exact(new, prompt, after)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.pop("model.norm.weight"), "1 missing, first model.norm.weight"),
        (lambda s: s.update({"extra.weight": torch.zeros(1)}), "1 unknown, first extra.weight"),
        (lambda s: s.update({"model.norm.weight": torch.zeros(3)}), "1 of another shape, first model.norm.weight"),
    ],
)
async def test_weights_that_do_not_fit_are_refused_and_the_engine_goes_on(change: Any, named: str) -> None:
    model = tiny_model()
    state = dict(model.state_dict())
    change(state)
    with EmbeddedEngine(model) as engine:
        with pytest.raises(ModelError, match=named):
            engine.publish(state, version=1)
        assert (await engine.sample([5, 6], sampling=SAMPLING, seed=0)).version == 0


async def test_a_cancelled_request_frees_its_row() -> None:
    model = tiny_model(eos_token_id=None, max_position_embeddings=100_000)
    with EmbeddedEngine(model, max_rows=1) as engine:
        endless = asyncio.create_task(engine.sample([5, 6], sampling=Sampling(max_tokens=90_000), seed=0))
        waiting = asyncio.create_task(engine.sample([5, 7], sampling=SAMPLING, seed=0))
        never = asyncio.create_task(engine.sample([5, 8], sampling=Sampling(max_tokens=90_000), seed=0))
        await asyncio.sleep(0)
        endless.cancel()
        never.cancel()
        completion = await waiting
        assert endless.cancelled() or endless.cancelling()
    assert_exact(model, [5, 7], completion)


async def test_a_listener_ends_a_completion_with_the_token_that_it_heard() -> None:
    model = tiny_model(eos_token_id=None, max_position_embeddings=100_000)
    heard: list[int] = []

    def ends(token: int) -> bool:
        heard.append(token)
        return len(heard) == 5

    with EmbeddedEngine(model, max_rows=1) as engine:
        endless = engine.sample([5, 6], sampling=Sampling(max_tokens=90_000), seed=0, on_token=ends)
        ended, waiting = await asyncio.gather(endless, engine.sample([5, 7], sampling=SAMPLING, seed=0))
    assert (ended.token_ids, ended.stop_reason) == (heard, "stop")
    assert len(heard) == 5
    assert_exact(model, [5, 6], ended)
    assert_exact(model, [5, 7], waiting)


def test_a_request_whose_loop_ends_without_cancelling_it_frees_its_row() -> None:
    model = tiny_model(eos_token_id=None, max_position_embeddings=100_000)

    async def abandon(engine: EmbeddedEngine) -> None:
        request = engine.sample([5, 6], sampling=Sampling(max_tokens=90_000), seed=0)
        request.send(None)
        request.close()
        assert_exact(model, [5, 7], await engine.sample([5, 7], sampling=SAMPLING, seed=0))

    with EmbeddedEngine(model, max_rows=1) as engine:
        asyncio.run(asyncio.wait_for(abandon(engine), timeout=20))


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
async def test_an_engine_that_breaks_fails_every_request_and_says_that_it_is_dead(kind: type[BaseException]) -> None:
    armed = threading.Event()

    def break_when_armed(*_: Any) -> None:
        if armed.is_set():
            raise kind("injected fault")

    model = tiny_model()
    model.model.layers[1].register_forward_pre_hook(break_when_armed)
    with EmbeddedEngine(model, max_rows=2) as engine:
        await engine.sample([5, 6], sampling=SAMPLING, seed=0)
        armed.set()
        requests = [engine.sample([5, 6, i], sampling=SAMPLING, seed=0) for i in range(3, 8)]
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(r, PolicyFailure) and "injected fault" in str(r) for r in results)
        assert not engine.alive
        with pytest.raises(PolicyFailure, match="dead"):
            await engine.sample([5, 6], sampling=SAMPLING, seed=0)
        with pytest.raises(PolicyFailure, match="dead"):
            engine.publish(model.state_dict(), version=1)


async def test_a_failure_while_requests_are_placed_reaches_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise MemoryError("injected fault")

    with EmbeddedEngine(tiny_model(), max_rows=2) as engine:
        monkeypatch.setattr(engine._decoder.cache, "ensure", no_room)
        requests = [engine.sample([5, 6, i], sampling=SAMPLING, seed=0) for i in range(3, 8)]
        results = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(r, PolicyFailure) and "injected fault" in str(r) for r in results)


async def test_closing_fails_what_is_in_flight_and_later_requests() -> None:
    model = tiny_model(eos_token_id=None, max_position_embeddings=100_000)
    engine = EmbeddedEngine(model)
    flying = asyncio.create_task(engine.sample([5, 6], sampling=Sampling(max_tokens=90_000), seed=0))
    await asyncio.sleep(0)
    await asyncio.to_thread(engine.close)
    with pytest.raises(PolicyFailure, match="closed"):
        await flying
    with pytest.raises(PolicyFailure, match="closed"):
        await engine.sample([5, 6], sampling=SAMPLING, seed=0)
    engine.close()
    assert not any(thread.name == "embedded-engine" and thread.is_alive() for thread in threading.enumerate())


async def test_one_engine_serves_several_event_loops() -> None:
    model = tiny_model()
    prompt = random_tokens(20, 0)
    with EmbeddedEngine(model) as engine:

        def in_a_loop_of_its_own() -> list[int]:
            return asyncio.run(engine.sample(prompt, sampling=SAMPLING, seed=1)).token_ids

        here, there = await asyncio.gather(
            engine.sample(prompt, sampling=SAMPLING, seed=1), asyncio.to_thread(in_a_loop_of_its_own)
        )
    assert here.token_ids == there


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([5] * 64, "the prompt has 64 tokens and the context holds 64"),
        ([5, 97], "token id 97; the vocabulary ends at 96"),
        ([5, -1], "token id -1"),
    ],
)
async def test_prompts_that_cannot_be_sampled_are_refused_and_the_engine_goes_on(
    prompt: list[int], message: str
) -> None:
    with EmbeddedEngine(tiny_model(), context_tokens=64) as engine:
        with pytest.raises(ValueError, match=message):
            await engine.sample(prompt, sampling=SAMPLING, seed=0)
        assert (await engine.sample([5], sampling=SAMPLING, seed=0)).token_ids


async def test_the_context_bounds_the_answer() -> None:
    model = tiny_model(eos_token_id=None)
    with EmbeddedEngine(model, context_tokens=64) as engine:
        completion = await engine.sample(random_tokens(60, 0), sampling=SAMPLING, seed=0)
    assert (len(completion.token_ids), completion.stop_reason) == (4, "length")


@pytest.mark.parametrize(("options", "message"), [({"max_rows": 0}, "max_rows is 0"), ({"context_tokens": 513}, "513")])
def test_limits_that_cannot_be_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EmbeddedEngine(tiny_model(), **options)


@pytest.mark.parametrize(
    ("family", "settings", "named"),
    [
        ("Llama", {"layer_types": ["full_attention", "chunked_attention"]}, "layers of type chunked_attention"),
        ("Llama", {"layer_types": ["full_attention", "sliding_attention"]}, "does not say how far it sees"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ("Gemma2", {"head_dim": 8}, "attn_logit_softcapping=50"),
    ],
)
def test_models_whose_attention_the_engine_cannot_express_are_refused(
    family: str, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        EmbeddedEngine(tiny_model(family, **settings))
