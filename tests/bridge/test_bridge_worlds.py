"""Worlds: who shares what, setup, state, and that nothing leaks between worlds in flight."""

import ast
import contextlib
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

import mcp_bridge
from mcp_bridge import SourceError, Tool, ToolFailure, ToolResult, World, WorldSource
from mcp_bridge.control_tools import CLOSE_WORLD, CONTROL_ENV, CONTROL_META, LIVE_META, OPEN_WORLD

pytestmark = pytest.mark.asyncio(loop_scope="module")  # that of `notebooks`


async def note_and_read(world: World, text: str) -> list[str]:
    await world.call("add_note", {"text": text})
    return (await world.call("list_notes", {})).structured["notes"]  # type: ignore[no-any-return]


async def check_fifty_worlds(toolset: mcp_bridge.Toolset) -> None:
    """Every world writes while all are open; each must read its own note alone."""
    opened, all_open = 0, anyio.Event()
    read: dict[str, list[str]] = {}

    async def live(name: str) -> None:
        nonlocal opened
        async with toolset.open_world(name) as world:
            opened += 1
            if opened == 50:
                all_open.set()
            await all_open.wait()
            read[name] = await note_and_read(world, name)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(live, f"w{number}")
    assert read == {f"w{number}": [f"w{number}"] for number in range(50)}


async def test_fifty_worlds_of_one_controlled_process_share_no_state(notebooks: mcp_bridge.Toolset) -> None:
    await check_fifty_worlds(notebooks)
    async with notebooks.open_world("after") as world:
        assert await world.state() == {"notes": [], "worlds_open": 1}


async def test_fifty_worlds_of_a_server_factory_share_no_state() -> None:
    async with mcp_bridge.connect(make_memory_server) as toolset:
        await check_fifty_worlds(toolset)


def make_memory_server() -> MCPServer:
    server = MCPServer("memory")
    notes: list[str] = []

    @server.tool(structured_output=False)
    async def add_note(text: str) -> str:
        notes.append(text)
        return "noted"

    @server.tool(structured_output=True)
    async def list_notes() -> dict[str, Any]:
        return {"notes": notes}

    return server


async def test_worlds_of_a_plain_server_object_share_the_object() -> None:
    async with mcp_bridge.connect(make_memory_server()) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            await one.call("add_note", {"text": "seen by both"})
            assert (await two.call("list_notes", {})).structured == {"notes": ["seen by both"]}


async def test_a_lambda_that_makes_servers_is_a_factory() -> None:
    async with mcp_bridge.connect(lambda: make_memory_server()) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            assert await note_and_read(one, "a") == ["a"]
            assert await note_and_read(two, "b") == ["b"]


async def test_control_tools_are_neither_listed_nor_callable(notes_url: Callable[..., str]) -> None:
    async with mcp_bridge.connect(notes_url(control=True)) as toolset:
        assert toolset.has_state
        assert toolset.can_setup
        assert not [tool.name for tool in toolset.tools if "toolbake" in tool.name]
        result = await toolset.call("toolbake_close_world", {"world": "default"})
        assert result.error_kind == "unknown_tool"
        assert not (await toolset.call("list_notes", {})).is_error


def make_server_with_live_tools(live: Any) -> MCPServer:
    server = MCPServer("desk", log_level="ERROR")

    @server.tool(meta={CONTROL_META: OPEN_WORLD, LIVE_META: live})
    def begin(world: str, setup: dict[str, Any]) -> None:
        pass

    @server.tool(meta={CONTROL_META: CLOSE_WORLD})
    def end(world: str) -> None:
        pass

    @server.tool()
    def look() -> str:
        return "nothing"

    @server.tool()
    def pay() -> str:
        return "paid"

    return server


@pytest.mark.parametrize("live", ["pay", 7, {"pay": True}, ["pya"], [["pay"]], ["begin"]])
async def test_live_tools_in_another_form_than_a_list_of_the_servers_tools_are_refused(live: Any) -> None:
    told = rf"tool 'begin' has 'toolbake/live': {re.escape(repr(live))}; it must be a list.*The tools are: look, pay$"
    with pytest.raises(SourceError, match=told):
        async with mcp_bridge.connect(make_server_with_live_tools(live)):
            pass


async def test_the_live_tools_of_a_server_with_control_tools_are_not_simulated() -> None:
    async with mcp_bridge.connect(make_server_with_live_tools(["pay"])) as toolset:
        assert [tool.name for tool in toolset.simulated_tools] == ["look"]


async def test_calls_carry_their_world_their_id_a_key_and_their_rollout(notebooks: mcp_bridge.Toolset) -> None:
    async with notebooks.open_world("w-7") as world:
        result = await world.call("meta", {}, call_id="call-3")
        told = dict(ast.literal_eval(result.text))
        assert re.fullmatch("[0-9a-f]{16}/w-7", told["toolbake/world"])
        assert (told["toolbake/call"], told["toolbake/rollout"]) == ("call-3", "w-7")
        assert told["toolbake/idempotency_key"] == world.ledger.lines[-1].key


async def test_a_server_without_control_tools_hears_of_worlds_but_not_of_the_default_one(
    notes_url: Callable[..., str],
) -> None:
    async with mcp_bridge.connect(notes_url()) as toolset, toolset.open_world("w-7") as world:
        assert re.fullmatch(
            "[0-9a-f]{16}/w-7", dict(ast.literal_eval((await world.call("meta", {})).text))["toolbake/world"]
        )
        told = dict(ast.literal_eval((await toolset.call("meta", {})).text))
        assert set(told) == {"toolbake/call", "toolbake/idempotency_key"}


async def test_a_setup_reaches_the_server_and_the_state_comes_back(notebooks: mcp_bridge.Toolset) -> None:
    async with notebooks.open_world("one", {"notes": ["first"]}) as world:
        assert await note_and_read(world, "second") == ["first", "second"]
        assert await world.state() == {"notes": ["first", "second"], "worlds_open": 1}


async def test_a_setup_the_server_refuses_says_what_it_said(notebooks: mcp_bridge.Toolset) -> None:
    with pytest.raises(SourceError, match=r"refused the setup.*unknown setup \['color'\]; known: notes"):
        async with notebooks.open_world("one", {"color": "red"}):
            pass


async def test_a_world_is_closed_in_the_server_when_its_rollout_is_cancelled(notebooks: mcp_bridge.Toolset) -> None:
    with anyio.move_on_after(0.1):
        async with notebooks.open_world("one") as world:
            await world.call("hang", {})
    async with notebooks.open_world("two") as world:
        assert await world.state() == {"notes": [], "worlds_open": 1}


async def test_a_server_that_cannot_set_up_refuses_a_setup(notes_url: Callable[..., str]) -> None:
    async with mcp_bridge.connect(notes_url()) as toolset:
        assert not toolset.can_setup
        assert not toolset.has_state
        with pytest.raises(SourceError, match=r"cannot set up a world with \['seed'\]"):
            async with toolset.open_world("one", {"seed": 7}):
                pass
        async with toolset.open_world("two", {}) as world:
            assert await world.state() is None


async def test_each_world_of_a_plain_stdio_server_has_a_process_and_the_first_is_the_warm_one(
    breaking: list[str],
) -> None:
    async with mcp_bridge.connect(breaking) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            for world in (one, two):
                assert (await world.call("echo", {})).text == "1"
            assert (await one.call("pid", {})).text != (await two.call("pid", {})).text


@pytest.mark.parametrize(("isolation", "shared"), [("shared", True), ("process", False), ("session", False)])
async def test_isolation_in_the_configuration_decides_who_shares_a_process(
    breaking: list[str], isolation: str, shared: bool
) -> None:
    entry = {"command": breaking[0], "args": breaking[1:], "toolbake": {"isolation": isolation}}
    async with mcp_bridge.connect({"mcpServers": {"breaking": entry}}) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            same = (await one.call("pid", {})).text == (await two.call("pid", {})).text
            assert same is shared


async def test_a_server_whose_tools_all_only_read_is_shared() -> None:
    made = 0

    def factory() -> MCPServer:
        nonlocal made
        made += 1
        server = MCPServer("clock")
        server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)(tick)
        return server

    async def tick() -> str:
        return f"server {made}"

    async with mcp_bridge.connect(factory) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            assert (await one.call("tick", {})).text == (await two.call("tick", {})).text == "server 1"


async def test_a_shared_server_that_begins_to_write_opens_no_further_world() -> None:
    server, kept = MCPServer("growing", log_level="ERROR"), list[str]()

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def enable(ctx: Context) -> str:  # type: ignore[type-arg]
        server.add_tool(lambda: kept.append("x") or "written", name="write")
        await ctx.notify_tools_changed()
        return "enabled"

    async with mcp_bridge.connect(server) as toolset:
        async with toolset.open_world("one") as one:
            assert (await one.call("enable", {})).text == "enabled"
        with pytest.raises(ToolFailure, match=r"new: write\)\. All worlds share one session .*isolation"):
            async with toolset.open_world("two"):
                pass


async def test_the_control_switch_is_set_for_servers_that_the_bridge_starts(breaking: list[str]) -> None:
    async with mcp_bridge.connect(breaking) as toolset:
        assert (await toolset.call("environment", {"name": CONTROL_ENV})).text == "1"


class Counter:
    """A sandbox: satisfies `WorldSource` without anything of the bridge."""

    def __init__(self) -> None:
        self.open = 0
        self.closed = False

    @property
    def tools(self) -> list[Tool]:
        return [Tool(name="count_up", description="Count.")]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Mapping[str, Any] | None = None) -> AsyncIterator[World]:
        # A task group across the yield: must be left in the task that entered it.
        async with anyio.create_task_group():
            self.open += 1
            try:
                yield CounterWorld(int((setup or {}).get("start", 0)))
            finally:
                self.open -= 1

    async def aclose(self) -> None:
        self.closed = True


class CounterWorld:
    def __init__(self, start: int) -> None:
        self.count = start

    @property
    def tools(self) -> list[Tool]:
        return Counter().tools

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        self.count += 1
        return ToolResult(text=f"{name} {self.count} {call_id}")

    async def state(self) -> dict[str, Any] | None:
        return {"count": self.count}


async def test_a_sandbox_is_a_source_like_any_other() -> None:
    sandbox = Counter()
    assert isinstance(sandbox, WorldSource)
    async with mcp_bridge.connect(sandbox) as toolset:
        assert isinstance(toolset, WorldSource)
        async with toolset.open_world("one", {"start": 5}) as world:
            assert isinstance(world, World)
            assert (await world.call("count_up", {}, call_id="c")).text == "count_up 6 c"
            assert await world.state() == {"count": 6}
        assert (await toolset.call("count_up", {})).text == "count_up 1 default/call-1"
        assert sandbox.open == 1
    assert sandbox.open == 0
    assert not sandbox.closed, "what the user brought running is the user's to close"


async def test_the_default_world_is_opened_once_however_many_call_first() -> None:
    sandbox = Counter()
    async with mcp_bridge.connect(sandbox) as toolset, anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(toolset.call, "count_up", {})
    async with mcp_bridge.connect(sandbox) as toolset:
        texts = [(await toolset.call("count_up", {})).text for _ in range(2)]
    assert texts == ["count_up 1 default/call-1", "count_up 2 default/call-2"]


async def test_a_toolset_can_be_the_source_of_another() -> None:
    async with mcp_bridge.connect(Counter()) as inner, mcp_bridge.connect([inner, add]) as outer:
        async with outer.open_world("one", {"start": 1}) as world:
            assert (await world.call("count_up", {})).text.startswith("count_up 2")
            assert (await world.call("add", {"a": 1, "b": 2})).text == "3"
            assert await world.state() == {"count": 2}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_list_merges_sources_of_every_kind(controlled_notes: list[str]) -> None:
    async with mcp_bridge.connect([controlled_notes, add, Counter(), make_server_with_one_tool()]) as toolset:
        names = [tool.name for tool in toolset.tools]
        assert names[-3:] == ["add", "count_up", "look"]
        assert "add_note" in names
        async with toolset.open_world("one") as world:
            assert (await world.call("add", {"a": 2, "b": 2})).text == "4"
            assert (await world.call("look", {})).text == "seen"
            state = await world.state()
            assert state is not None
            assert [value for key, value in state.items() if key == "Counter"] == [{"count": 0}]
            assert len(state) == 2


def make_server_with_one_tool() -> MCPServer:
    server = MCPServer("one tool")

    @server.tool(structured_output=False)
    async def look() -> str:
        return "seen"

    return server


async def test_of_several_sources_with_setups_each_gets_its_own_by_label() -> None:
    class Other(Counter):
        @property
        def tools(self) -> list[Tool]:
            return [Tool(name="other")]

    async with mcp_bridge.connect([Counter(), Other()]) as toolset:
        async with toolset.open_world("one", {"Counter": {"start": 3}, "Other": {"start": 9}}) as world:
            assert await world.state() == {"Counter": {"count": 3}, "Other": {"count": 9}}
        with pytest.raises(SourceError, match=r"keyed by \['Counter', 'Other'\]; it has the keys \['start'\]"):
            async with toolset.open_world("two", {"start": 3}):
                pass


async def test_a_warm_process_that_died_while_waiting_is_replaced(
    breaking: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture, running: Callable[[int], bool]
) -> None:
    # A server that lists its tools and then ends, the first time only.
    flag = tmp_path / "started"
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import os, pathlib, runpy, sys, threading, time\n"
        f"flag = pathlib.Path({str(flag)!r})\n"
        "first = not flag.exists()\n"
        "flag.write_text(str(os.getpid()))\n"
        "def end():\n"
        f"    while not pathlib.Path({str(tmp_path / 'end')!r}).exists(): time.sleep(0.01)\n"
        "    os._exit(1)\n"
        "if first: threading.Thread(target=end, daemon=True).start()\n"
        f"sys.argv, sys.path[0] = [{breaking[1]!r}], {str(Path(breaking[1]).parent)!r}\n"
        f"runpy.run_path({breaking[1]!r}, run_name='__main__')\n"
    )
    async with mcp_bridge.connect([sys.executable, str(wrapper)]) as toolset:
        pid = int(flag.read_text())
        (tmp_path / "end").touch()
        while running(pid):  # noqa: ASYNC110 - another process cannot set an event of ours
            await anyio.sleep(0.01)
        with caplog.at_level(logging.WARNING):
            async with toolset.open_world("one") as world:
                assert (await world.call("echo", {})).text == "1"
    assert "another one takes its place" in caplog.text
