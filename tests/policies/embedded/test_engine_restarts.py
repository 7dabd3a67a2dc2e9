"""An engine that fails goes on with the same weights, as often as it was told to; what it lost is played again."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import traceback
from typing import Any

import pytest
from engine_models import tiny_model
from plain_forward import assert_exact
from torch.multiprocessing.reductions import StorageWeakRef

from sdk.errors import PolicyFailure
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.embedded.attention import PrefillStep
from sdk.policies.protocol import Sampling

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLING = Sampling(max_tokens=16)


class Fuse:
    """Breaks a model's next forward pass when it is lit."""

    def __init__(self, model: Any) -> None:
        lit = self.lit = threading.Event()

        def burn(*_: Any) -> None:
            if lit.is_set():
                lit.clear()
                raise RuntimeError("injected fault")

        model.model.layers[1].register_forward_pre_hook(burn)


@pytest.fixture
def broken_model() -> tuple[Any, Fuse]:
    model = tiny_model()
    return model, Fuse(model)


async def lose(engine: EmbeddedEngine, fuse: Fuse) -> PolicyFailure:
    fuse.lit.set()
    with pytest.raises(PolicyFailure) as lost:
        await engine.sample([5, 6], sampling=SAMPLING, seed=0)
    return lost.value


async def test_it_goes_on_with_the_weights_last_published_and_an_empty_cache(
    broken_model: tuple[Any, Fuse], caplog: pytest.LogCaptureFixture
) -> None:
    model, fuse = broken_model
    with EmbeddedEngine(model, max_rows=2, max_restarts=1) as engine:
        await engine.sample([5, 6, 7], sampling=SAMPLING, seed=0)
        published = tiny_model(seed=9)
        await asyncio.to_thread(engine.publish, published.state_dict(), version=4)
        with caplog.at_level(logging.WARNING):
            failure = await lose(engine, fuse)
        assert "injected fault (it continues)" in str(failure)
        assert [record for record in caplog.records if "continues with an empty cache (1 of 1 times)" in record.message]
        assert engine.alive
        again = await engine.sample([5, 6, 7], sampling=SAMPLING, seed=0)
        assert again.version == 4
        assert_exact(published, [5, 6, 7], again)
        await asyncio.to_thread(engine.publish, model.state_dict(), version=5)
        assert (await engine.sample([5, 6], sampling=SAMPLING, seed=0)).version == 5
        assert engine.restarts == 1


async def test_it_is_dead_after_one_failure_more_than_it_may_have(broken_model: tuple[Any, Fuse]) -> None:
    model, fuse = broken_model
    with EmbeddedEngine(model, max_restarts=1) as engine:
        assert "continues" in str(await lose(engine, fuse))
        assert "is dead" in str(await lose(engine, fuse))
        assert (engine.alive, engine.restarts) == (False, 1)


async def test_weights_that_could_not_be_read_to_their_end_are_not_sampled_from(
    broken_model: tuple[Any, Fuse], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = broken_model
    with EmbeddedEngine(model, max_restarts=3) as engine:

        def half(*_: Any) -> None:
            raise MemoryError("injected fault")

        monkeypatch.setattr(engine._batch, "load", half)
        with pytest.raises(PolicyFailure, match="is dead"):
            await asyncio.to_thread(engine.publish, model.state_dict(), version=1)
        assert not engine.alive


async def test_the_broken_cache_is_freed_while_its_failure_is_still_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an engine that ran out of memory would go on with the old cache still taken."""
    attend, lit = PrefillStep.attend, threading.Event()

    def burn(*arguments: Any) -> Any:
        if lit.is_set():
            lit.clear()
            raise MemoryError("injected fault")
        return attend(*arguments)

    # Not a hook of the model: where there are hooks, torch itself holds what a module was called with.
    monkeypatch.setattr(PrefillStep, "attend", burn)
    with EmbeddedEngine(tiny_model(), max_restarts=1) as engine:
        await engine.sample([5, 6, 7], sampling=SAMPLING, seed=0)
        stored = StorageWeakRef(engine._decoder.cache.data.untyped_storage())
        gc.disable()
        try:
            lit.set()
            with pytest.raises(PolicyFailure, match="injected fault") as lost:
                await engine.sample([5, 6], sampling=SAMPLING, seed=0)
            # Answered by the batch after: nothing of the first one is in use any more.
            await engine.sample([5, 6, 7], sampling=SAMPLING, seed=0)
            assert stored.expired()
        finally:
            gc.enable()
        assert "in burn" in "".join(traceback.format_exception(lost.value))
