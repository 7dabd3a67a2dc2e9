"""Server objects of this process, as sources of worlds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server import Server

import mcp_bridge
from mcp_bridge import ServerDied, ToolFailure, ToolResult, World
from mcp_bridge.control_tools import CALL_META, ROLLOUT_META

TOOL = types.Tool(name="act", input_schema={"type": "object"})


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[TOOL])


async def act(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text="done")])


def quick_server(**options: Any) -> Server[Any]:
    return Server("quick", **{"on_list_tools": list_tools, "on_call_tool": act, **options})


async def test_a_tool_that_ends_the_program_fails_its_call_alone() -> None:
    async def leave(context: Any, params: Any) -> types.CallToolResult:
        raise SystemExit(2)

    async with mcp_bridge.connect(quick_server(on_call_tool=leave)) as toolset:
        for _ in range(2):
            with pytest.raises(ToolFailure, match=r"tool 'act' tried to end the program \(SystemExit: 2\)") as raised:
                await toolset.call("act", {})
            assert raised.value.delivery == "answered"


async def wait_for_what_is_cancelled() -> str:
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    waiting.cancel()
    await waiting
    return "never"


@pytest.mark.parametrize("in_server", [False, True])
async def test_a_tool_that_waits_for_something_cancelled_fails_its_call_and_no_other(in_server: bool) -> None:
    async def act(context: Any, params: Any) -> types.CallToolResult:
        raise AssertionError(await wait_for_what_is_cancelled())

    source: Any = quick_server(on_call_tool=act) if in_server else wait_for_what_is_cancelled
    failures = []

    async def call(world: World) -> None:
        with pytest.raises(ToolFailure, match="something that it waited for was cancelled") as raised:
            await world.call(world.tools[0].name, {})
        failures.append(raised.value)

    async with mcp_bridge.connect(source) as toolset, toolset.open_world("w") as world:
        async with anyio.create_task_group() as group:
            group.start_soon(call, world)
            group.start_soon(call, world)
        assert [failure.delivery for failure in failures] == ["answered"] * 2
        assert [line.event for line in world.ledger.lines].count("failed") == 2


async def test_a_tool_whose_headers_are_not_valid_is_left_out_with_the_reason() -> None:
    async def list_both(context: Any, params: Any) -> types.ListToolsResult:
        odd = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "my region"}}}
        return types.ListToolsResult(tools=[TOOL, types.Tool(name="odd", input_schema=odd)])

    async with mcp_bridge.connect(quick_server(on_list_tools=list_both)) as toolset:
        assert [tool.name for tool in toolset.tools] == ["act"]
        (left_out,) = toolset.left_out
    assert left_out.tool == "odd"
    assert "property 'region': x-mcp-header 'my region' is not an RFC 9110 token" in left_out.reason


async def test_each_world_has_the_lifespan_of_a_server_that_has_one() -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[dict[str, int]]:
        # A scope that must be left in the task that entered it.
        async with anyio.create_task_group():
            events.append("begin")
            yield {"n": len(events)}
            events.append("end")

    async def tell(context: Any, params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=str(context.lifespan_context["n"]))])

    server = quick_server(on_call_tool=tell, lifespan=lifespan)
    async with mcp_bridge.connect(server) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            assert [(await world.call("act", {})).text for world in (one, two)] == ["1", "2"]
        assert events == ["begin", "begin", "end", "end"]


@pytest.mark.virtual_clock
async def test_a_server_that_takes_a_while_to_start_is_waited_for_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def slowly(context: Any, params: Any) -> types.ListToolsResult:
        await anyio.sleep(75)
        return await list_tools(context, params)

    async with mcp_bridge.connect([quick_server(on_list_tools=slowly), quick_server()]) as toolset:
        assert len(toolset.tools) == 2
    told = [one.getMessage() for one in caplog.records if "waiting for" in one.getMessage()]
    assert [one.partition(". ")[0] for one in told] == [
        f"waiting for {toolset.servers[0].label} to start: {seconds} s of at most 120 s" for seconds in (10, 20, 40)
    ]


@pytest.mark.virtual_clock
async def test_opening_a_world_of_a_server_that_hangs_ends_at_the_limit() -> None:
    hangs = False

    async def sometimes(context: Any, params: Any) -> types.ListToolsResult:
        if hangs:
            await anyio.sleep_forever()
        return await list_tools(context, params)

    server = quick_server(on_list_tools=sometimes)
    async with mcp_bridge.connect(server, connect_timeout_s=1.0) as toolset, toolset.open_world("first"):
        hangs = True
        with pytest.raises(ServerDied, match=r"did not answer within 1 s"):
            async with toolset.open_world("late"):
                pass
        hangs = False
        async with toolset.open_world("later") as world:
            assert (await world.call("act", {})).text == "done"


async def test_what_changes_between_two_worlds_is_seen_by_the_second() -> None:
    tools = [TOOL]

    async def listing(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(tools))

    async with mcp_bridge.connect(quick_server(on_list_tools=listing)) as toolset:
        async with toolset.open_world("one"), toolset.open_world("two"):
            tools.append(types.Tool(name="more", input_schema={"type": "object"}))
            async with toolset.open_world("three") as world:
                assert [tool.name for tool in world.tools] == ["act", "more"]


async def test_others_get_their_turn_between_calls_that_never_wait() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with mcp_bridge.connect(quick_server()) as toolset, toolset.open_world("w") as world:
        other = asyncio.create_task(count())
        for _ in range(10):
            await world.call("act", {})
        other.cancel()
    assert turns >= 10


async def test_a_call_that_is_cancelled_before_its_turn_is_in_no_ledger() -> None:
    async with mcp_bridge.connect(quick_server()) as toolset, toolset.open_world("w") as world:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await world.call("act", {})
        assert scope.cancelled_caught
        assert world.ledger.lines == []


@pytest.mark.parametrize("world_id", ["plain", "日本", "half \ud800 pair"])
async def test_a_server_is_told_of_the_rollout_whatever_its_letters(world_id: str) -> None:
    told: list[Any] = []

    async def look(context: Any, params: Any) -> types.CallToolResult:
        told.append(dict(context.meta))
        return types.CallToolResult(content=[types.TextContent(text="done")])

    async with (
        mcp_bridge.connect(quick_server(on_call_tool=look)) as toolset,
        toolset.open_world(world_id) as world,
    ):
        assert (await world.call("act", {}, call_id="c1")).text == "done"
    (meta,) = told
    assert meta[ROLLOUT_META] == world_id
    assert meta[CALL_META] == "c1"


class Timed:
    """A source whose calls say how long they took."""

    tools = (mcp_bridge.Tool(name="act"),)

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[Timed]:
        yield self

    async def call(self, name: str, arguments: Any, **_: Any) -> ToolResult:
        return ToolResult(text="done", duration_s=arguments["seconds"])

    async def state(self) -> None:
        return None


async def test_a_source_that_says_how_long_a_call_took_is_believed_and_else_it_is_measured() -> None:
    async with mcp_bridge.connect(Timed()) as toolset:
        assert (await toolset.call("act", {"seconds": 7.5})).duration_s == 7.5
        assert 0 < (await toolset.call("act", {"seconds": 0.0})).duration_s < 7
    async with mcp_bridge.connect(quick_server()) as toolset:
        assert 0 < (await toolset.call("act", {})).duration_s < 7
