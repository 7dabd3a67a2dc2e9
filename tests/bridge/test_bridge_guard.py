"""The guard: which tools are used, under which names, at which pace, and that nothing is left out in silence."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listening_servers import serving
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from one_world import OneWorld

import mcp_bridge
from mcp_bridge import SourceError, Tool, ToolFailure, ToolResult
from mcp_bridge.guard import Turns
from mcp_bridge.sources.specs import ServerOptions

NotesUrl = Callable[..., str]


def make_shop(name: str) -> MCPServer:
    server = MCPServer("shop", log_level="ERROR")

    def tool(tool_name: str, **hints: bool) -> None:
        async def run() -> str:
            return f"{tool_name} of {name}"

        annotations = ToolAnnotations.model_validate(hints) if hints else None
        server.tool(name=tool_name, annotations=annotations, structured_output=False)(run)

    tool("get_order", readOnlyHint=True)
    tool("delete_order", readOnlyHint=False, destructiveHint=True)
    tool("rename_order")
    tool("update_order", readOnlyHint=False, destructiveHint=False)
    return server


@pytest.fixture(scope="module")
def shops() -> Iterator[dict[str, str]]:
    """The URLs of the same shop under three names."""
    with ExitStack() as stack:
        apps = {name: make_shop(name).streamable_http_app() for name in ("shop", "orders", "stock")}
        yield {name: f"http://127.0.0.1:{stack.enter_context(serving(app))}/mcp" for name, app in apps.items()}


@pytest.fixture
def shop(shops: dict[str, str]) -> Callable[..., dict[str, Any]]:
    """Makes an mcp.json of one server, `shop`, with these options, or of several named ones."""

    def make(*names: str, **options: Any) -> dict[str, Any]:
        toolbake = {"isolation": "shared", **options}
        return {"mcpServers": {name: {"url": shops[name], "toolbake": toolbake} for name in names or ("shop",)}}

    return make


def names(toolset: mcp_bridge.Toolset) -> list[str]:
    return [tool.name for tool in toolset.tools]


@pytest.mark.parametrize(
    ("options", "kept", "reasons"),
    [
        ({"deny": ["*_order"], "allow": ["get_order"]}, None, None),
        (
            {"allow": ["get_order", "re*"]},
            ["get_order", "rename_order"],
            {"delete_order": "allow does not name it", "update_order": "allow does not name it"},
        ),
        (
            {"allow": ["*"], "deny": ["[du]*"]},
            ["get_order", "rename_order"],
            {"delete_order": "deny has '[du]*'", "update_order": "deny has '[du]*'"},
        ),
        (
            {"only_read_only": True, "read_only": ["rename_order"]},
            ["get_order", "rename_order"],
            dict.fromkeys(
                ("delete_order", "update_order"), "only_read_only is set, and nothing says that it only reads"
            ),
        ),
    ],
)
async def test_lists_and_read_only_mode_leave_tools_out_and_say_so(
    shop: Callable[..., Any], options: Any, kept: Any, reasons: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if kept is None:
        with pytest.raises(SourceError, match=r"no tool is left. Left out are 'get_order' \(deny has '\*_order'\)"):
            async with mcp_bridge.connect(shop(**options)):
                pass
        return
    with caplog.at_level(logging.WARNING):
        async with mcp_bridge.connect(shop(**options)) as toolset:
            assert names(toolset) == kept
            assert {one.tool: one.reason for one in toolset.left_out} == reasons
            assert "shop" in toolset.left_out[0].source
            result = await toolset.call(toolset.left_out[0].tool, {})
            assert (result.error_kind, "Did you mean" in result.text) == ("unknown_tool", True)
    for one in toolset.left_out:
        assert f"tool {one.tool!r} of {one.source} is left out: {one.reason}" in caplog.text


async def test_a_name_in_the_options_that_no_tool_has_is_an_error_and_a_pattern_a_warning(
    shop: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        SourceError, match=r"toolbake\.deny names 'delete_ordr', which is none of its tools: get_order, "
    ):
        async with mcp_bridge.connect(shop(deny=["delete_ordr"])):
            pass
    with caplog.at_level(logging.WARNING):
        async with mcp_bridge.connect(shop(deny=["admin_*"])) as toolset:
            assert len(toolset.tools) == 4
    assert "toolbake.deny has 'admin_*', which fits none of its tools" in caplog.text


@pytest.mark.parametrize("read_only", ["delete_order", "*_order"])
async def test_a_tool_that_both_only_reads_and_destroys_by_the_users_word_is_refused(
    shop: Callable[..., Any], read_only: str
) -> None:
    # A pattern must not make harmless what is named as destructive: training would call it.
    with pytest.raises(SourceError, match=r"'delete_order' is in both toolbake.read_only and .* take it out of one"):
        async with mcp_bridge.connect(shop(read_only=[read_only], destructive=["delete_order"])):
            pass


async def test_the_users_word_about_a_tool_stands_in_place_of_the_servers(shop: Callable[..., Any]) -> None:
    options = {"read_only": ["delete_*"], "destructive": ["get_order"], "idempotent": ["rename_order"]}
    async with mcp_bridge.connect(shop(**options)) as toolset:
        said = {tool.name: tool.annotations for tool in toolset.tools}
        assert (said["delete_order"].read_only, said["delete_order"].destructive) == (True, False)
        assert (said["get_order"].read_only, said["get_order"].destructive) == (False, True)
        assert said["rename_order"].idempotent
        assert [tool.name for tool in toolset.live_destructive] == ["get_order"]


async def test_a_server_whose_tools_only_read_by_the_users_word_is_shared_by_all_worlds(
    breaking: list[str],
) -> None:
    for options, processes in (({"read_only": ["*"]}, 1), ({}, 2)):
        entry = {"command": breaking[0], "args": breaking[1:], "toolbake": options}
        async with mcp_bridge.connect({"mcpServers": {"breaking": entry}}) as toolset:
            async with toolset.open_world("one") as one, toolset.open_world("two") as two:
                told = {(await world.call("pid", {})).text for world in (one, two)}
        assert len(told) == processes


async def test_only_tools_that_say_so_are_destructive_unless_unmarked_ones_are_too(shop: Callable[..., Any]) -> None:
    async with mcp_bridge.connect(shop()) as toolset:
        assert [tool.name for tool in toolset.live_destructive] == ["delete_order"]
    strict = shop(unmarked_are_destructive=True, allow_destructive=["delete_*"])
    async with mcp_bridge.connect(strict) as toolset:
        assert [tool.name for tool in toolset.live_destructive] == ["rename_order"]


async def test_a_server_that_keeps_worlds_and_a_sandbox_have_no_live_tools() -> None:
    from mcp_bridge import publish
    from sandboxes.helpdesk import Helpdesk

    for source in (Helpdesk(), publish(Helpdesk(), control=True)):
        async with mcp_bridge.connect(source) as toolset:
            assert any(tool.annotations.destructive for tool in toolset.tools)
            assert toolset.live_destructive == []
    async with mcp_bridge.connect(publish(Helpdesk(), control=False)) as toolset:
        assert "refund_order" in [tool.name for tool in toolset.live_destructive]


async def test_live_tools_stay_live_behind_a_server_of_ours_that_opens_worlds(shop: Callable[..., Any]) -> None:
    from sandboxes.helpdesk import Helpdesk

    async with mcp_bridge.connect([shop(), Helpdesk()]) as inner:
        served = mcp_bridge.publish(inner, control=True)
        async with mcp_bridge.connect(served) as outer, mcp_bridge.connect(mcp_bridge.publish(outer)) as further:
            for toolset in (outer, further):
                assert "delete_order" in [tool.name for tool in toolset.live_destructive]
                with pytest.raises(SourceError, match="'delete_order'"):
                    toolset.for_training()
            assert [tool.name for tool in outer.live_destructive] == ["delete_order"]
            assert [tool.name for tool in outer.simulated_tools] == [tool.name for tool in inner.simulated_tools]
            assert [tool.name for tool in outer.shared_tools] == [tool.name for tool in inner.shared_tools]
            assert (outer.worlds[0].kind, outer.worlds[0].is_fresh) == ("session", None)
            assert (outer.has_state, outer.can_setup) == (True, True)


# ---- names


async def test_one_name_of_two_servers_is_told_apart_and_each_call_reaches_its_own(shop: Callable[..., Any]) -> None:
    def get_order() -> str:
        return "get_order of the function"

    def hello() -> str:
        return "hello"

    async with mcp_bridge.connect([shop("orders", "stock"), get_order, hello]) as toolset:
        assert "orders__get_order" in names(toolset)
        assert "get_order" not in names(toolset)
        assert "hello" in names(toolset)
        for name, text in [
            ("orders__get_order", "get_order of orders"),
            ("stock__get_order", "get_order of stock"),
            ("functions__get_order", "get_order of the function"),
        ]:
            assert (await toolset.call(name, {})).text == text
        wrong = await toolset.call("get_order", {})
        assert "Did you mean" in wrong.text
        assert {tool.name_at_source for tool in toolset.tools if tool.name.startswith("stock__")} == {
            "get_order",
            "delete_order",
            "rename_order",
            "update_order",
        }


async def test_the_whole_name_of_a_server_is_the_prefix_of_its_tools(shops: dict[str, str]) -> None:
    servers = {"Orders MCP": "orders", "Stock MCP": "stock", "example.com/shop": "shop"}
    source = {name: {"url": shops[of], "toolbake": {"allow": ["get_order"]}} for name, of in servers.items()}
    async with mcp_bridge.connect({"mcpServers": source}) as toolset:
        assert names(toolset) == ["Orders_MCP__get_order", "Stock_MCP__get_order", "example_com_shop__get_order"]
        assert (await toolset.call("Stock_MCP__get_order", {})).text == "get_order of stock"


async def test_a_namespace_goes_before_all_tools_of_its_server_and_a_taken_name_is_refused(
    shop: Callable[..., Any],
) -> None:
    async with mcp_bridge.connect(shop(namespace="desk", allow=["get_order"])) as toolset:
        assert names(toolset) == ["desk__get_order"]
    with pytest.raises(SourceError, match=r"two tools would be called 'desk__get_order'.*another \"toolbake\""):
        async with mcp_bridge.connect(shop("orders", "stock", namespace="desk")):
            pass


async def test_two_functions_of_one_name_stay_an_error() -> None:
    def make() -> Any:
        def look() -> str:
            return ""

        return look

    with pytest.raises(SourceError, match="two tools are called 'look'"):
        async with mcp_bridge.connect([make(), make()]):
            pass


class Named(OneWorld):
    """A source of worlds whose tools answer with the place of the source and their own names."""

    def __init__(self, place: int, tools: Sequence[str]) -> None:
        self.place = place
        self.tools = [Tool(name=name, source=f"source {place}") for name in tools]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,
        timeout_s: float | None = None,
    ) -> ToolResult:
        return ToolResult(text=f"{self.place} {name}")


tool_names = st.text(alphabet="ab_./é", min_size=1, max_size=3) | st.sampled_from(["x" * 70, "x" * 71, "get"])


@given(st.lists(st.lists(tool_names, min_size=1, max_size=4, unique=True), min_size=2, max_size=4))
def test_whatever_the_names_each_is_there_once_and_reaches_its_own_tool(sources: list[list[str]]) -> None:
    async def play() -> None:
        given_names = [name for tools in sources for name in tools]
        async with mcp_bridge.connect([Named(place, tools) for place, tools in enumerate(sources)]) as toolset:
            assert len(set(names(toolset))) == len(given_names)
            reached = {(await toolset.call(tool.name, {})).text for tool in toolset.tools}
            assert reached == {f"{place} {name}" for place, tools in enumerate(sources) for name in tools}
            for tool in toolset.tools:
                assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", tool.name)
                own = tool.name_at_source or tool.name
                if given_names.count(own) == 1 and re.fullmatch("[a-zA-Z0-9_-]{1,64}", own):
                    assert tool.name == own

    anyio.run(play)


async def test_a_name_that_model_apis_do_not_take_is_changed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    given_names = ["files.read", "files/read", "files_read", "x" * 70]
    async with mcp_bridge.connect(Named(0, given_names)) as toolset:
        read, other, own, long = names(toolset)
        assert own == "files_read"
        assert re.fullmatch("files_read_[0-9a-f]{8}", read)
        assert re.fullmatch("files_read_[0-9a-f]{8}", other)
        assert re.fullmatch("x{55}_[0-9a-f]{8}", long)
        for name, at_source in zip(names(toolset), given_names, strict=True):
            assert (await toolset.call(name, {})).text == f"0 {at_source}"
    assert f"tool 'files.read' of source 0 is called {read!r} here" in caplog.text
    async with mcp_bridge.connect(Named(0, ["files.read"])) as toolset:
        assert names(toolset) == ["files_read"]
    with pytest.raises(SourceError, match="source 0 has a tool without a name"):
        async with mcp_bridge.connect(Named(0, ["files.read", ""])):
            pass


# ---- pace and size


async def test_no_more_calls_than_allowed_are_at_a_server_at_once(notes_url: NotesUrl) -> None:
    url, met = notes_url(), []

    async def meet() -> None:
        met.append((await toolset.call("meet", {"count": 3})).text)

    entry = {"url": url, "toolbake": {"max_concurrency": 2}}
    async with mcp_bridge.connect({"mcpServers": {"notes": entry}}) as toolset, mcp_bridge.connect(url) as other:
        await toolset.call("list_notes", {})
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(meet)
            await other.call("list_notes", {})
            # Two are there; the third, which would let them go, waits for its turn. Somebody else comes in its place.
            assert met == []
            assert (await other.call("meet", {"count": 3})).text == "met 3"
    # The fourth call's answer may come before the answers of those that waited longer.
    assert sorted(met) == ["met 3", "met 3", "met 4"]


async def test_as_many_calls_as_allowed_are_at_a_server_at_once(notes_url: NotesUrl) -> None:
    met: list[str] = []

    async def meet() -> None:
        met.append((await toolset.call("meet", {"count": 3})).text)

    entry = {"url": notes_url(), "toolbake": {"max_concurrency": 3}}
    async with mcp_bridge.connect({"mcpServers": {"notes": entry}}) as toolset:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(meet)
    assert met == ["met 3"] * 3


async def test_calls_in_a_second_are_held_to_their_rate_after_the_first_burst(notes_url: NotesUrl) -> None:
    entry = {"url": notes_url(), "toolbake": {"calls_per_second": 20, "isolation": "shared"}}
    async with mcp_bridge.connect({"mcpServers": {"notes": entry}}) as toolset:
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            for _ in range(30):  # in worlds or in the default one: the limit is the server's
                group.start_soon(toolset.call, "list_notes", {})
        # 20 at once, then 10 more at 50 ms each.
        assert time.monotonic() - began >= 0.45


async def test_waiting_for_a_turn_is_not_counted_as_the_servers_time(notes_url: NotesUrl) -> None:
    entry = {"url": notes_url(), "toolbake": {"calls_per_second": 0.2}}
    async with mcp_bridge.connect({"mcpServers": {"notes": entry}}, call_timeout_s=4) as toolset:
        began = time.monotonic()
        results = [await toolset.call("add_note", {"text": "x"}) for _ in range(2)]
        assert time.monotonic() - began >= 4, "none had to wait for longer than a call may take"
        assert [result.is_error for result in results] == [False] * 2


@pytest.mark.virtual_clock
async def test_a_turn_that_was_waited_for_in_vain_is_given_back() -> None:
    turns = Turns(ServerOptions(max_concurrency=1, calls_per_second=0.5))
    async with turns.taken():
        pass
    with anyio.move_on_after(0.02) as scope:
        async with turns.taken():  # a token is two seconds away
            pass
    assert scope.cancelled_caught
    with anyio.fail_after(5):
        async with turns.taken():
            pass


@pytest.mark.virtual_clock
async def test_after_a_seconds_worth_at_once_one_is_let_through_at_a_time() -> None:
    turns, passed = Turns(ServerOptions(calls_per_second=4.0)), []
    began = anyio.current_time()
    for _ in range(8):
        async with turns.taken():
            passed.append(anyio.current_time() - began)
    assert passed == pytest.approx([0, 0, 0, 0, 0.25, 0.5, 0.75, 1.0])


async def test_a_servers_results_can_be_cut_shorter_than_all_others(notes_url: NotesUrl) -> None:
    entry = {"url": notes_url(), "toolbake": {"max_result_chars": 10}}
    async with mcp_bridge.connect({"mcpServers": {"notes": entry}}) as toolset:
        result = await toolset.call("long_text", {"characters": 50})
        assert result.text.startswith("x" * 10 + "\n[40 more characters were cut")
        assert result.truncated_chars == 40


async def test_a_tool_that_only_reads_is_never_destructive_whatever_else_it_says() -> None:
    server = MCPServer("odd", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True, destructive_hint=True))
    async def look() -> str:
        """Look."""
        return ""

    async with mcp_bridge.connect(server) as toolset:
        assert toolset.live_destructive == []


async def test_functions_say_what_they_do_and_the_guard_hears_it() -> None:
    @mcp_bridge.behaves(read_only=True)
    def look() -> str:
        return "nothing"

    @mcp_bridge.behaves(destructive=True)
    def drop(table: str) -> str:
        return f"dropped {table}"

    async with mcp_bridge.connect([look, functools.partial(drop, table="a")]) as toolset:
        assert toolset.tools[0].annotations.read_only
        assert [tool.name for tool in toolset.live_destructive] == ["drop"]
    with pytest.raises(SourceError, match="both read_only and destructive"):
        mcp_bridge.behaves(read_only=True, destructive=True)
    with pytest.raises(SourceError, match="says nothing"):
        mcp_bridge.behaves()


async def test_a_destructive_tool_that_a_server_offers_during_training_is_refused_too() -> None:
    server = MCPServer("growing", log_level="ERROR")

    @server.tool(structured_output=False)
    async def grow(ctx: Context, name: str) -> str:
        """Offer one more tool."""
        server.add_tool(lambda: "gone", name=name, annotations=ToolAnnotations(destructive_hint=True))
        await ctx.notify_tools_changed()
        return "offered"

    async with mcp_bridge.connect(server) as toolset:
        toolset.for_training(["gr*"])
        async with toolset.open_world("one") as world:
            await world.call("grow", {"name": "grind"})  # one that is allowed
        async with toolset.open_world("two") as world:
            assert "grind" in [tool.name for tool in world.tools]
            await world.call("grow", {"name": "drop"})
        for again in ("three", "four"):
            with pytest.raises(ToolFailure, match=r"destructive tools for real.*'drop'"):
                async with toolset.open_world(again):
                    pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow": []}, "toolbake.allow is []; it must have at least 1"),
        ({"deny": "x"}, "toolbake.deny is 'x'; it must be a list of tool names"),
        ({"calls_per_second": 0}, "toolbake.calls_per_second is 0; it must be greater than 0"),
        ({"retries": 11}, "toolbake.retries is 11; it must be less than or equal to 10"),
        ({"only_read_only": "yes"}, "toolbake.only_read_only is 'yes'; it must be a valid boolean"),
        ({"namespace": "a b"}, "toolbake.namespace is 'a b'; it must match pattern"),
        ({"read_only": ["get_order"], "destructive": ["get_order"]}, "in both toolbake.read_only and"),
    ],
)
async def test_a_wrong_option_is_named_with_what_it_must_be(
    shop: Callable[..., Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SourceError, match=re.escape(words)):
        async with mcp_bridge.connect(shop(**options)):
            pass
