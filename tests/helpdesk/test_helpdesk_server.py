from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from mcp_bridge import SourceError, connect, publish
from mcp_bridge.control_tools import CONTROL_ENV, CONTROL_META, WORLD_META
from sandboxes.helpdesk import Helpdesk, tasks

FOLDER = Path(__file__).parents[2] / "examples/helpdesk"


@asynccontextmanager
async def _started(args: Sequence[str], cwd: Path, *, control: bool = False) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=sys.executable, args=list(args), cwd=cwd, env={CONTROL_ENV: "1"} if control else {}
    )
    async with Client(stdio_client(parameters)) as client:
        yield client


async def _verbs(client: Client) -> dict[str, str]:
    listed = (await client.list_tools()).tools
    return {tool.meta[CONTROL_META]: tool.name for tool in listed if tool.meta and CONTROL_META in tool.meta}


def _text(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("args", [["-m", "sandboxes.helpdesk"], [str(FOLDER / "server.py")]])
async def test_any_client_can_start_it_and_sees_the_plain_tools_alone(args: list[str], tmp_path: Path) -> None:
    async with _started(args, tmp_path) as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == [tool.name for tool in Helpdesk().tools]
        assert {tool.name for tool in listed if tool.annotations and tool.annotations.read_only_hint} == {
            *("find_customer", "list_orders", "get_order", "get_stock", "get_policy")
        }
        order = next(iter(Helpdesk().state()["orders"]))
        found = await client.call_tool("get_order", {"order_id": order})
        assert _text(found) == Helpdesk().call_now("get_order", {"order_id": order}).text
        wrong = await client.call_tool("get_order", {"order": order})
        assert wrong.is_error
        assert "order_id" in _text(wrong)
        hidden = await client.call_tool("toolbake_open_world", {"world": "w"})
        assert hidden.is_error
        named = await client.call_tool("get_order", {"order_id": order}, meta={WORLD_META: "w"})
        assert _text(named) == _text(found)  # without control tools there is the session's own world only


async def test_the_json_file_starts_it_from_its_own_folder() -> None:
    async with connect(FOLDER / "mcp.json") as toolset:
        assert [tool.name for tool in toolset.tools] == [tool.name for tool in Helpdesk().tools]
        assert toolset.has_state


async def test_demonstrations_replay_to_the_gold_state_through_the_real_server(tmp_path: Path) -> None:
    sample = tasks(("1", "2", "3", "4", "5"))[::40]
    async with _started(["-m", "sandboxes.helpdesk"], tmp_path, control=True) as client:
        verbs = await _verbs(client)
        assert set(verbs) == {"open_world", "world_state", "close_world", "fork_world"}
        for task in sample:
            await client.call_tool(verbs["open_world"], {"world": task["id"], "setup": task["setup"]})
        for task in sample:  # all worlds are open at once
            world = {"world": task["id"]}
            before = (await client.call_tool(verbs["world_state"], world)).structured_content or {}
            for call in (call for message in task["demonstration"] for call in message.get("tool_calls", ())):
                await client.call_tool(call["name"], call["arguments"], meta={WORLD_META: task["id"]})
            after = (await client.call_tool(verbs["world_state"], world)).structured_content or {}
            assert Helpdesk().diff(before, after) == task["expected"]["changes"], task["id"]
            await client.call_tool(verbs["close_world"], world)
            with pytest.raises(MCPError, match="no world"):
                await client.call_tool("get_policy", {"topic": "returns"}, meta={WORLD_META: task["id"]})


async def test_worlds_of_a_server_share_nothing_and_mistakes_about_them_are_protocol_errors() -> None:
    desk = Helpdesk()
    order = next(key for key, row in desk.state()["orders"].items() if row["status"] == "processing")
    async with Client(publish(desk, control=True)) as client:
        verbs = await _verbs(client)
        for world in ("a", "b"):
            await client.call_tool(verbs["open_world"], {"world": world})
        await client.call_tool("cancel_order", {"order_id": order}, meta={WORLD_META: "a"})
        states = [(await client.call_tool(verbs["world_state"], {"world": world})).structured_content for world in "ab"]
        assert [(state or {})["orders"][order]["status"] for state in states] == ["cancelled", "processing"]
        assert '"processing"' in _text(await client.call_tool("get_order", {"order_id": order}))
        for name, arguments, message in [
            (verbs["open_world"], {"world": "a"}, "open already"),
            (verbs["open_world"], {"world": "c", "setup": {"sed": 1}}, "'sed'"),
            (verbs["open_world"], {"world": "c", "setup": {"seed": -1}}, "seed is -1"),
            (verbs["open_world"], {"world": "c", "setup": {"scenario": "x"}}, "second_branch"),
            (verbs["open_world"], {"setup": {}}, "world"),
            (verbs["world_state"], {"world": "c"}, "no world 'c'"),
            (verbs["close_world"], {"world": "c"}, "no world 'c'"),
        ]:
            with pytest.raises(MCPError, match=message):
                await client.call_tool(name, arguments)


async def test_the_environment_decides_about_control(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("1", 4), ("0", 0), ("", 0)):
        monkeypatch.setenv(CONTROL_ENV, value)
        async with Client(publish(Helpdesk())) as client:
            assert len(await _verbs(client)) == expected


async def test_it_is_served_over_http(unused_tcp_port: int) -> None:
    order = next(iter(Helpdesk().state()["orders"]))
    async with anyio.create_task_group() as group:
        group.start_soon(Helpdesk().serve, unused_tcp_port)
        await _listening(unused_tcp_port)
        async with Client(f"http://127.0.0.1:{unused_tcp_port}/mcp") as client:
            found = await client.call_tool("get_order", {"order_id": order})
            assert _text(found) == Helpdesk().call_now("get_order", {"order_id": order}).text
        group.cancel_scope.cancel()


async def test_a_port_in_use_is_said_so(unused_tcp_port: int) -> None:
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        with pytest.raises(SourceError, match=f"port {unused_tcp_port}"):
            await Helpdesk().serve(unused_tcp_port)


async def _listening(port: int) -> None:
    """Returns when something accepts connections there."""
    with anyio.fail_after(30):
        while True:
            try:
                stream = await anyio.connect_tcp("127.0.0.1", port)
            except OSError:
                await anyio.lowlevel.checkpoint()
            else:
                return await stream.aclose()


def test_the_environment_of_the_tests_has_no_control() -> None:
    assert os.environ.get(CONTROL_ENV) is None
