"""While rollouts are in flight Python looks for cycles less often, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sandboxes.helpdesk import Helpdesk
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Task
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.garbage import fewer_collections


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


async def test_a_stream_raises_the_threshold_and_puts_it_back_also_where_it_is_broken_off() -> None:
    engine = RolloutEngine(agent=ScriptedAgent(["done"]), source=Helpdesk(), verifier=None, concurrency=20)

    async def play() -> None:
        async with engine.stream(sampling=Sampling()) as stream:
            assert gc.get_threshold() == (50_000, 10, 10)
            await stream.submit([Job(id="r", task=Task(prompt="Hi"), seed=0)]).wait()
            async with engine.stream(sampling=Sampling()):
                pass
            assert gc.get_threshold() == (50_000, 10, 10)
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        await play()
    assert gc.get_threshold() == (700, 10, 10)


async def test_the_more_rollouts_may_be_in_flight_the_fewer_collections() -> None:
    many = RolloutEngine(agent=ScriptedAgent(["done"]), source=Helpdesk(), verifier=None, concurrency=1_000)
    few = RolloutEngine(agent=ScriptedAgent(["done"]), source=Helpdesk(), verifier=None, concurrency=10)
    async with few.stream(sampling=Sampling()):
        assert gc.get_threshold()[0] == 50_000
        async with many.stream(sampling=Sampling()):
            async with few.stream(sampling=Sampling()):
                assert gc.get_threshold()[0] == 2_000_000
        assert gc.get_threshold()[0] == 2_000_000, "a block is open still"
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (90_000, 5, 5)])
def test_collections_that_are_off_or_rarer_stay_so(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with fewer_collections():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_a_threshold_set_meanwhile_stays_and_blocks_may_overlap() -> None:
    first, second = fewer_collections(), fewer_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (50_000, 10, 10)
    gc.set_threshold(900, 9, 9)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (900, 9, 9)


@pytest.mark.parametrize("in_flight", [20_000, 10**7, 10**30])
def test_a_limit_that_is_never_reached_keeps_no_more_garbage_than_thousands_of_rollouts(in_flight: int) -> None:
    with fewer_collections(in_flight):
        assert gc.get_threshold() == (5_000_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)
