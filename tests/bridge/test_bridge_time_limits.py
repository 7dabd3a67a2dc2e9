"""Time limits of calls: each call has its own, whatever the others do, though calls of one limit share a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

import anyio
import pytest
from one_world import OneWorld

import mcp_bridge
from mcp_bridge import CallTimeout, Tool, ToolResult

pytestmark = pytest.mark.virtual_clock


class Gate(OneWorld):
    """A world whose `wait` answers once the gate is open, and whose `now` answers at once."""

    tools: ClassVar = [Tool(name="wait"), Tool(name="now")]

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.began = anyio.Event()
        self.cancelled = 0

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,
        timeout_s: float | None = None,
    ) -> ToolResult:
        self.began.set()
        if name == "wait":
            try:
                await self.gate.wait()
            except anyio.get_cancelled_exc_class():
                self.cancelled += 1
                raise
        return ToolResult(text=name)


async def outcome(call: Any) -> str:
    try:
        return (await call).text  # type: ignore[no-any-return]
    except CallTimeout:
        return "timeout"


async def test_calls_without_an_answer_end_at_the_limit_and_others_of_the_same_limit_do_not() -> None:
    backend = Gate()
    async with mcp_bridge.connect(backend, call_timeout_s=0.6) as toolset, toolset.open_world("w") as world:
        hung = [asyncio.ensure_future(outcome(world.call("wait", {}))) for _ in range(3)]
        quick = [await outcome(world.call("now", {})) for _ in range(5)]
        assert [await one for one in hung] == ["timeout"] * 3
        # The timer of the first calls has rung: later ones have theirs again.
        assert await outcome(world.call("now", {})) == "now"
        assert await outcome(world.call("wait", {})) == "timeout"
    assert quick == ["now"] * 5
    assert backend.cancelled == 4


async def test_a_call_that_began_later_is_not_cancelled_with_those_before_it() -> None:
    backend = Gate()
    async with mcp_bridge.connect(backend, call_timeout_s=2.0) as toolset, toolset.open_world("w") as world:
        first = asyncio.ensure_future(outcome(world.call("wait", {})))
        assert await outcome(world.call("wait", {}, timeout_s=1.0)) == "timeout"
        second = asyncio.ensure_future(outcome(world.call("wait", {})))
        assert await first == "timeout"
        # The second has half of its time left.
        backend.gate.set()
        assert await second == "wait"
    assert backend.cancelled == 2


async def test_a_limit_of_the_call_itself_holds_and_the_toolsets_then_does_not() -> None:
    backend = Gate()
    async with mcp_bridge.connect(backend, call_timeout_s=0.1) as toolset, toolset.open_world("w") as world:
        patient = asyncio.ensure_future(outcome(world.call("wait", {}, timeout_s=60)))
        assert await outcome(world.call("wait", {})) == "timeout"
        backend.gate.set()
        assert await patient == "wait"


async def test_a_caller_that_is_cancelled_leaves_nothing_that_rings_later() -> None:
    backend = Gate()
    async with mcp_bridge.connect(backend, call_timeout_s=0.2) as toolset, toolset.open_world("w") as world:
        async with anyio.create_task_group() as group:
            group.start_soon(world.call, "wait", {})
            await backend.began.wait()
            group.cancel_scope.cancel()
        assert await outcome(world.call("wait", {})) == "timeout"
        assert [line.event for line in world.ledger.lines] == ["started", "unknown", "started", "unknown"]
