"""What every sandbox must do. Call `check_sandbox` from a test of your own sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mcp_bridge.errors import SourceError
from mcp_bridge.world import World, WorldSource
from sandboxes import Sandbox, diff


async def check_sandbox(make: Callable[[], Sandbox], change: tuple[str, dict[str, Any]]) -> None:
    """Raises AssertionError where the sandbox breaks its promises.

    `make` gives a new sandbox; `change` is a call that succeeds and changes the state of its beginning.
    """
    sandbox = make()
    assert isinstance(sandbox, WorldSource)
    await _check_reset(sandbox, change)
    await _check_forks(sandbox, change)
    await _check_snapshots(sandbox, change)
    await _check_mistakes(sandbox)
    await _check_worlds(sandbox, change)
    sandbox.close()


async def _check_reset(sandbox: Sandbox, change: tuple[str, dict[str, Any]]) -> None:
    sandbox.reset()
    start, began = sandbox.state(), sandbox.now
    assert json.loads(json.dumps(start)) == start, "the state is JSON"
    result = await sandbox.call(*change)
    assert not result.is_error, result.text
    changes = sandbox.diff(start, sandbox.state())
    assert changes, "the change changes something"
    assert all(set(entry) == {"table", "key", "column", "before", "after"} for entry in changes)
    assert sandbox.now == began, "a call does not move the clock"
    sandbox.reset()
    assert sandbox.state() == start
    assert diff(start, sandbox.state()) == []
    sandbox.reset(seed=1)
    assert sandbox.state() != start, "another seed is another world"
    sandbox.reset()


async def _check_forks(sandbox: Sandbox, change: tuple[str, dict[str, Any]]) -> None:
    start = sandbox.state()
    left, right = sandbox.fork(), sandbox.fork()
    await left.call(*change)
    assert left.state() != start
    assert right.state() == sandbox.state() == start, "forks share nothing"
    await right.call(*change)
    assert left.state() == right.state(), "the same calls lead to the same state"
    left.close()
    right.close()


async def _check_snapshots(sandbox: Sandbox, change: tuple[str, dict[str, Any]]) -> None:
    start, saved = sandbox.state(), sandbox.snapshot()
    assert isinstance(saved, bytes)
    await sandbox.call(*change)
    later = sandbox.state()
    for damaged in (b"", b"no snapshot", saved[: len(saved) // 2]):
        with pytest.raises(SourceError):
            sandbox.restore(damaged)
        assert sandbox.state() == later, "a damaged snapshot changes nothing"
    sandbox.restore(saved)
    assert sandbox.state() == start


async def _check_mistakes(sandbox: Sandbox) -> None:
    start = sandbox.state()
    unknown = await sandbox.call("no_such_tool", {})
    assert (unknown.is_error, unknown.error_kind) == (True, "unknown_tool")
    assert all(tool.name in unknown.text for tool in sandbox.tools)
    needy = next(tool for tool in sandbox.tools if tool.input_schema.get("required"))
    wrong = await sandbox.call(needy.name, {})
    assert (wrong.is_error, wrong.error_kind) == (True, "invalid_arguments")
    assert all(name in wrong.text for name in needy.input_schema["required"])
    assert sandbox.state() == start
    for bad in ({"seed": -1}, {"seed": "x"}, {"seed": True}, {"scenario": "no_such_scenario"}):
        with pytest.raises(SourceError, match=next(iter(bad))):
            sandbox.reset(**bad)  # type: ignore[arg-type]


async def _check_worlds(sandbox: Sandbox, change: tuple[str, dict[str, Any]]) -> None:
    start = sandbox.state()
    async with sandbox.open_world("a") as one, sandbox.open_world("b", {"seed": 0}) as two:
        assert isinstance(one, World)
        assert [tool.name for tool in one.tools] == [tool.name for tool in sandbox.tools]
        await one.call(*change, call_id="call_1", timeout_s=5)
        assert await two.state() == start == sandbox.state(), "a world is its own"
        assert await one.state() != start
    with pytest.raises(SourceError, match="sed"):
        async with sandbox.open_world("c", {"sed": 1}):
            pass

    seen: list[bool] = []

    async def one_rollout(number: int) -> None:
        async with sandbox.open_world(f"w{number}", {"seed": number % 3}) as world:
            before = await world.state()
            await anyio.lowlevel.checkpoint()
            seen.append(before == await world.state())

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one_rollout, number)
    assert seen == [True] * 50
