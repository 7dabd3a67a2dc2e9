"""Server objects of this process: sessions that need no task, and the short ways of a call, held to the long ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.server import Server

import mcp_bridge
from mcp_bridge import ServerDied, ToolResult
from mcp_bridge.channels.client import in_process_client
from mcp_bridge.channels.serving import call_params
from mcp_bridge.channels.sharing import Shared
from mcp_bridge.control import CALL_META, ROLLOUT_META
from mcp_bridge.toolsets.results import capped

TOOL = types.Tool(name="act", input_schema={"type": "object"})


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[TOOL])


async def act(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text="done")])


def quick_server(**options: Any) -> Server[Any]:
    return Server("quick", **{"on_list_tools": list_tools, "on_call_tool": act, **options})


# ---------------------------------------------------------------------------------------------------------------------
# Sessions without a task


async def test_worlds_of_a_plain_server_take_no_tasks() -> None:
    async with mcp_bridge.connect(quick_server()) as toolset, contextlib.AsyncExitStack() as stack:
        # The session that listed the tools goes to the first world, and has a task.
        await stack.enter_async_context(toolset.open_world("first"))
        before = len(asyncio.all_tasks())
        worlds = [await stack.enter_async_context(toolset.open_world(f"w{n}")) for n in range(20)]
        assert len(asyncio.all_tasks()) == before
        assert {(await world.call("act", {})).text for world in worlds} == {"done"}


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


async def test_opening_a_world_of_a_server_that_hangs_ends_at_the_limit() -> None:
    hangs = False

    async def sometimes(context: Any, params: Any) -> types.ListToolsResult:
        if hangs:
            await anyio.sleep_forever()
        return await list_tools(context, params)

    server = quick_server(on_list_tools=sometimes)
    async with mcp_bridge.connect(server, connect_timeout_s=0.2) as toolset, toolset.open_world("first"):
        hangs = True
        with pytest.raises(ServerDied, match=r"did not answer within 0\.2 s"):
            async with toolset.open_world("late"):
                pass
        hangs = False
        async with toolset.open_world("later") as world:
            assert (await world.call("act", {})).text == "done"


async def test_a_world_that_is_given_up_while_it_opens_leaves_its_place_to_the_next() -> None:
    hangs, asked = False, anyio.Event()

    async def sometimes(context: Any, params: Any) -> types.ListToolsResult:
        if hangs:
            asked.set()
            await anyio.sleep_forever()
        return await list_tools(context, params)

    server = quick_server(on_list_tools=sometimes)
    async with mcp_bridge.connect(server) as toolset, toolset.open_world("first"):
        hangs = True

        async def open_it() -> None:
            async with toolset.open_world("given up"):
                pytest.fail("it cannot open")

        async with anyio.create_task_group() as group:
            group.start_soon(open_it)
            await asked.wait()
            group.cancel_scope.cancel()
        hangs = False
        async with toolset.open_world("next") as world:
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


# ---------------------------------------------------------------------------------------------------------------------
# The short ways

texts = st.text(max_size=6) | st.sampled_from(["é", "日本", "\U0001f600", "\x00"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, values, max_size=4)


@settings(max_examples=80, deadline=None)
@given(name=texts, arguments=objects, meta=st.dictionaries(st.sampled_from(["a", "toolbake/call"]), values))
def test_parameters_are_what_validation_makes_of_them(name: str, arguments: Any, meta: Any) -> None:
    given_params = {"name": name, "arguments": arguments, "_meta": meta}
    validated = types.CallToolRequestParams.model_validate(given_params, by_name=False)
    quick = call_params(given_params)
    assert quick == validated
    assert quick.model_fields_set == validated.model_fields_set
    assert list(quick.__dict__) == list(validated.__dict__)
    assert quick.model_dump(by_alias=True) == validated.model_dump(by_alias=True)
    assert quick.arguments is not arguments
    assert quick.meta is not meta


@settings(max_examples=60, deadline=None)
@given(
    arguments=objects,
    meta=st.none() | st.dictionaries(st.sampled_from(["a", "toolbake/call"]), values.filter(bool), min_size=1),
    log_level=st.sampled_from([None, "debug", "error"]),
)
def test_a_handler_is_given_what_the_sdk_would_give_it(arguments: Any, meta: Any, log_level: Any) -> None:
    seen: list[Any] = []

    async def look(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        session, connection = context.session, context.session._connection
        seen.append(
            (
                params.model_dump(by_alias=True),
                sorted(params.model_fields_set),
                context.params,
                context.meta,
                context.method,
                context.protocol_version,
                context.lifespan_context,
                session.client_params.model_dump(),
                session._allowed_log_levels,
                session._log_is_request_scoped,
                connection.session_id,
                connection.initialized.is_set(),
                connection.state,
            )
        )
        return types.CallToolResult(content=[])

    async def both() -> None:
        server, shared = quick_server(on_call_tool=look), Shared()
        async with (
            Client(server, cache=None, log_level=log_level) as theirs,
            in_process_client(server, shared, log_level=log_level) as first,
            in_process_client(server, shared, log_level=log_level) as second,
        ):
            for client in (theirs, first, second):
                await client.call_tool("act", arguments, meta=meta)

    anyio.run(both)
    assert seen[1] == seen[0]
    assert seen[2] == seen[0], "what the second session took over from the first"


def test_sessions_that_share_say_each_what_holds_for_itself() -> None:
    seen: list[Any] = []

    async def look(context: Any, params: Any) -> types.CallToolResult:
        seen.append(context.session.client_capabilities.elicitation is not None)
        return types.CallToolResult(content=[])

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    async def call() -> None:
        server, shared = quick_server(on_call_tool=look), Shared()
        async with (
            in_process_client(server, shared) as plain,
            in_process_client(server, shared, elicitation_callback=answer) as answering,
            in_process_client(server, shared) as plain_again,
        ):
            for client in (plain, answering, plain_again):
                await client.call_tool("act", {})

    anyio.run(call)
    assert seen == [False, True, False]


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


@settings(max_examples=100, deadline=None)
@given(text=texts, structured=values, is_error=st.booleans(), seconds=st.floats(0, 9))
def test_a_result_that_is_not_cut_is_the_record_that_checking_would_make(
    text: str, structured: Any, is_error: bool, seconds: float
) -> None:
    made = capped(ToolResult(text=text, structured=structured, is_error=is_error), 100, duration_s=seconds)
    checked = ToolResult(text=text, structured=structured, is_error=is_error, duration_s=seconds)
    assert made == checked
    assert made.model_dump_json() == checked.model_dump_json()
    assert ToolResult.model_validate(made.model_dump()) == checked
    with pytest.raises(ValueError, match="frozen"):
        made.text = "other"
