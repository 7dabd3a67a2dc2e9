"""Lists of servers: in pages, changed while we run, and resources and prompts as tools."""

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from listening_servers import ServerProcess, serving
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from servers import pages, talkative

import mcp_bridge
from mcp_bridge import SourceError, ToolFailure, Toolset

TALKATIVE = str(Path(__file__).parent / "servers" / "talkative.py")
ERAS = ["2025-11-25", "2026-07-28"]


def of_url(url: str, *names: str, **options: Any) -> dict[str, Any]:
    return {"mcpServers": {key: {"url": url, "toolbake": options} for key in names or ("lists",)}}


def over_stdio(protocol: str, **options: Any) -> dict[str, Any]:
    entry = {"command": sys.executable, "args": [TALKATIVE], "toolbake": {"protocol": protocol, **options}}
    return {"mcpServers": {"lists": entry}}


@pytest.fixture(scope="module")
def paged() -> Iterator[str]:
    """The URL of the server whose lists come in pages."""
    with serving(pages.server.streamable_http_app()) as port:
        yield f"http://127.0.0.1:{port}/mcp"


async def test_tools_on_all_pages_are_there_in_their_order(paged: str) -> None:
    async with mcp_bridge.connect(of_url(paged)) as toolset:
        assert [tool.name for tool in toolset.tools] == [*(f"tool_{number}" for number in range(6)), "read_resource"]
        assert (await toolset.call("tool_5", {})).text.startswith("tool_5\n")


async def test_resources_are_listed_page_by_page_and_read(paged: str) -> None:
    async with mcp_bridge.connect(of_url(paged, resources=True)) as toolset:
        tools = {tool.name: tool for tool in toolset.tools}
        # The server has a tool of that name too.
        assert {"list_resources", "mcp_read_resource", "read_resource"} <= set(tools)
        assert tools["list_resources"].annotations.read_only
        assert tools["mcp_read_resource"].annotations.read_only
        first = await toolset.call("list_resources", {})
        assert first.text == (
            "note://0: note 0 (unknown type, 0 bytes)\n"
            "note://1: note 1 (unknown type, 1 bytes)\n"
            "page://{number}: page (unknown type): One page. [template]\n"
            "[the list goes on: call again with cursor '2']"
        )
        last = await toolset.call("list_resources", {"cursor": "4"})
        assert last.text == "note://4: note 4 (unknown type, 4 bytes)"
        read = await toolset.call("mcp_read_resource", {"uri": "page://9"})
        assert read.text == (
            "[resource page://9, text/plain, 6 characters]\ntext 9\n"
            '[resource page://9, application/json, 13 characters]\n{"number": 1}\n'
            "[resource page://9, image/png, 5 bytes]"
        )
        missing = await toolset.call("mcp_read_resource", {"uri": "note://x"})
        assert (missing.error_kind, missing.text) == ("tool_error", "there is no note://x")
        assert (await toolset.call("mcp_read_resource", {})).error_kind == "invalid_arguments"


async def test_a_link_says_which_tool_reads_it_where_there_is_one(paged: str) -> None:
    async with mcp_bridge.connect(of_url(paged, resources=True)) as toolset:
        linked = (await toolset.call("tool_1", {})).text
        assert linked == "tool_1\n[link note://3, note 3, text/plain; read it with mcp_read_resource]"
    async with mcp_bridge.connect(of_url(paged)) as toolset:
        assert (await toolset.call("tool_1", {})).text == "tool_1\n[link note://3, note 3, text/plain]"


async def test_prompts_are_listed_page_by_page_and_got(paged: str) -> None:
    async with mcp_bridge.connect(of_url(paged, prompts=True)) as toolset:
        first = await toolset.call("list_prompts", {})
        assert first.text == "prompt_0(who)\nprompt_1(who)\n[the list goes on: call again with cursor '2']"
        assert (await toolset.call("list_prompts", {"cursor": "2"})).text == "prompt_2(who)"
        got = await toolset.call("get_prompt", {"name": "prompt_2", "arguments": {"who": "Ada"}})
        assert got.text == "user: Greet Ada by prompt_2."
        as_text = await toolset.call("get_prompt", {"name": "prompt_2", "arguments": '{"who": 7}'})
        assert as_text.text == "user: Greet 7 by prompt_2."
        wrong = await toolset.call("get_prompt", {"name": "prompt_2", "arguments": {"who": ["Ada"]}})
        assert wrong.error_kind == "invalid_arguments"


async def test_the_reading_tools_of_two_servers_are_told_apart(paged: str) -> None:
    async with mcp_bridge.connect(of_url(paged, "one", "two", prompts=True, allow=["list_prompts"])) as toolset:
        assert [tool.name for tool in toolset.tools] == ["one__list_prompts", "two__list_prompts"]
        assert (await toolset.call("two__list_prompts", {"cursor": "2"})).text == "prompt_2(who)"


async def test_resources_of_a_server_without_any_are_refused_at_connect() -> None:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="ask", input_schema={"type": "object"})])

    with serving(Server("alone", on_list_tools=list_tools).streamable_http_app()) as port:
        with pytest.raises(SourceError, match="`resources` is true for it, but it offers no resources"):
            async with mcp_bridge.connect(of_url(f"http://127.0.0.1:{port}/mcp", resources=True)):
                pass


def listing(names: list[str], ends: str) -> Server:
    """A server with a tool and a template of resources on each page. The last page has the cursor `ends`."""
    asked = list[str | None]()

    def page(cursor: str | None) -> tuple[str, str]:
        asked.append(cursor)
        assert len(asked) < 20, asked
        place = names.index(cursor) + 1 if cursor in names else 0
        place = min(place, len(names) - 1)
        return names[place], names[place] if place < len(names) - 1 else ends

    async def list_tools(_: Any, params: Any) -> types.ListToolsResult:
        name, end = page(params.cursor if params else None)
        return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"})], next_cursor=end)

    async def list_templates(_: Any, params: Any) -> types.ListResourceTemplatesResult:
        name, end = page(params.cursor if params else None)
        template = types.ResourceTemplate(name=name, uri_template=f"file:///{name}/{{a}}")
        return types.ListResourceTemplatesResult(resource_templates=[template], next_cursor=end)

    async def list_resources(_: Any, params: Any) -> types.ListResourcesResult:
        asked.clear()
        return types.ListResourcesResult(resources=[])

    return Server(
        "listing", on_list_tools=list_tools, on_list_resources=list_resources, on_list_resource_templates=list_templates
    )


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
@pytest.mark.parametrize("ends", ["", "a", "again"])
async def test_a_list_ends_with_an_empty_cursor_or_one_that_was_there(names: list[str], ends: str) -> None:
    with serving(listing(names, ends).streamable_http_app()) as port:
        async with mcp_bridge.connect(of_url(f"http://127.0.0.1:{port}/mcp", resources=True)) as toolset:
            assert [tool.name for tool in toolset.tools][: len(names)] == names
            told = (await toolset.call("list_resources", {})).text
            assert [name for name in names if f"{name}/{{a}}" in told] == names
            assert told.count("[template]") == len(names)


@pytest.mark.parametrize("protocol", ERAS)
async def test_new_worlds_see_a_servers_new_tools_and_old_ones_keep_theirs(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with mcp_bridge.connect(over_stdio(protocol, isolation="shared")) as toolset:
        async with toolset.open_world("old") as old:
            before = {tool.name for tool in old.tools}
            assert (await old.call("add_tool", {"name": "fresh"})).text == "added"
            assert (await old.call("fresh", {})).error_kind == "unknown_tool"
            async with toolset.open_world("new") as new:
                assert {tool.name for tool in new.tools} - before == {"fresh"}
                assert (await new.call("fresh", {})).text == "new"
            assert {tool.name for tool in old.tools} == before
            assert (await old.call("fresh", {})).error_kind == "unknown_tool"
        assert {tool.name for tool in toolset.tools} - before == {"fresh"}
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "have changed: new: fresh. Worlds from now on have the new ones" in warned[0]


@pytest.mark.parametrize("protocol", ERAS)
async def test_changed_tools_of_a_server_behind_a_url_are_heard_of(protocol: str) -> None:
    with serving(talkative.app()) as port:
        source = of_url(f"http://127.0.0.1:{port}/mcp", protocol=protocol, isolation="shared")
        async with mcp_bridge.connect(source) as toolset:
            await hears_of_a_new_tool(toolset)


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_server_that_comes_back_with_other_tools_has_them_in_new_worlds(protocol: str) -> None:
    server = ServerProcess(talkative.app)
    try:
        source = of_url(server.url, protocol=protocol, isolation="shared")
        async with mcp_bridge.connect(source) as toolset:
            async with toolset.open_world("one") as world:
                assert (await world.call("count", {"to": 1})).text == "done"
            server.restart(more="fresh")
            with anyio.fail_after(60):
                while "fresh" not in {tool.name for tool in toolset.tools}:
                    async with toolset.open_world("two") as world:
                        # The call finds out that the server is another one, where nothing has told of it yet.
                        with suppress(ToolFailure):
                            await world.call("count", {"to": 1})
            async with toolset.open_world("three") as world:
                assert (await world.call("fresh", {})).text == "new"
    finally:
        server.kill()


async def test_changed_tools_of_a_server_in_this_process_are_heard_of() -> None:
    server = MCPServer("here")

    @server.tool()
    async def add_tool(ctx: Context, name: str) -> str:  # type: ignore[type-arg]
        server.add_tool(lambda: "new", name=name)
        await ctx.notify_tools_changed()
        return "added"

    async with mcp_bridge.connect(server) as toolset:
        await hears_of_a_new_tool(toolset)


async def hears_of_a_new_tool(toolset: Toolset) -> None:
    async with toolset.open_world("old") as old:
        assert (await old.call("add_tool", {"name": "fresh"})).text == "added"
        with anyio.fail_after(60):
            # Over HTTP the news comes on a way of its own, after the answer.
            while "fresh" not in {tool.name for tool in toolset.tools}:
                async with toolset.open_world("new") as new:
                    names = {tool.name for tool in new.tools}
        assert "fresh" in names


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_tool_that_vanished_is_a_failure_and_not_the_policys_mistake(protocol: str) -> None:
    async with mcp_bridge.connect(over_stdio(protocol)) as toolset, toolset.open_world("one") as world:
        for silently in (False, True):
            assert (await world.call("remove_tool", {"name": "count", "silently": silently})).text == "removed"
            with pytest.raises(
                ToolFailure, match="no longer offers the tool 'count', which it had when this world"
            ) as lost:
                await world.call("count", {"to": 1})
            assert lost.value.delivery == "answered"
            # Nothing is sent again: the server would say the same.
            assert [line.event for line in world.ledger.lines][-2:] == ["started", "failed"]
            assert world.ledger.lines[-1].attempt == 1
            assert (await world.call("add_tool", {"name": "count"})).text == "added"
            assert (await world.call("count", {"to": 1})).text == "new"


async def test_tools_that_changed_between_two_worlds_with_a_process_each_are_those_of_the_new_one(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    code = (
        f"import os, sys; sys.path.insert(0, {str(Path(TALKATIVE).parent)!r}); from by_hand import serve, tool\n"
        f"tools = [tool('first'), tool('second')] if os.path.exists({str(flag)!r}) else [tool('first')]\n"
        "serve(tools, lambda name, arguments, meta: name)"
    )
    async with mcp_bridge.connect([sys.executable, "-c", code]) as toolset:
        async with toolset.open_world("one") as one:
            assert [tool.name for tool in one.tools] == ["first"]
            await anyio.Path(flag).touch()
        async with toolset.open_world("two") as two:
            assert [tool.name for tool in two.tools] == ["first", "second"]
            assert (await two.call("second", {})).text == "second"
