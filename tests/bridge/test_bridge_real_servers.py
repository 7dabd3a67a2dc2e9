"""Servers written by others, over stdio: what a user connects first."""

import sys
from collections.abc import Callable
from pathlib import Path

import anyio

import mcp_bridge

Node = Callable[[str], list[str]]


async def test_the_time_server_converts_a_time() -> None:
    async with mcp_bridge.connect([sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]) as toolset:
        assert {tool.name for tool in toolset.tools} == {"get_current_time", "convert_time"}
        arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        assert "21:00" in (await toolset.call("convert_time", arguments)).text
        missing = await toolset.call("convert_time", {"time": "12:00"})
        assert missing.error_kind == "invalid_arguments"
        assert "missing required argument 'source_timezone'" in missing.text
        assert (await toolset.call("convert_time", {**arguments, "target_timezone": "Mars/Olympus"})).is_error


async def test_the_everything_server_answers_with_text_images_and_structure(node_server: Node) -> None:
    async with mcp_bridge.connect(node_server("server-everything")) as toolset:
        assert len(toolset.tools) >= 10
        assert toolset.left_out == []
        assert (await toolset.call("echo", {"message": "hello"})).text == "Echo: hello"
        assert "5" in (await toolset.call("get-sum", {"a": 2, "b": 3})).text
        wrong = await toolset.call("get-sum", {"a": "two", "b": 3})
        assert wrong.error_kind == "invalid_arguments"
        assert 'a is "two"; expected number' in wrong.text
        assert "[image, image/png, " in (await toolset.call("get-tiny-image", {})).text
        weather = await toolset.call("get-structured-content", {"location": "New York"})
        assert isinstance(weather.structured["temperature"], int | float)


async def test_the_filesystem_server_writes_reads_and_refuses(node_server: Node, tmp_path: Path) -> None:
    async with mcp_bridge.connect([*node_server("server-filesystem"), str(tmp_path)]) as toolset:
        note = str(tmp_path / "note.txt")
        assert not (await toolset.call("write_file", {"path": note, "content": "hello"})).is_error
        assert await anyio.Path(note).read_text() == "hello"
        assert (await toolset.call("read_text_file", {"path": note})).text == "hello"
        outside = await toolset.call("read_text_file", {"path": "/etc/hostname"})
        assert outside.error_kind == "tool_error"
        assert "denied" in outside.text.lower()


async def test_an_mcp_json_connects_several_servers_and_calls_them_side_by_side(
    node_server: Node, tmp_path: Path
) -> None:
    node, entry = node_server("server-everything")
    config = tmp_path / "mcp.json"
    config.write_text(
        f'{{"mcpServers": {{"everything": {{"command": "{node}", "args": ["{entry}"]}},'
        f'"time": {{"command": "{sys.executable}", "args": ["-m", "mcp_server_time"]}}}}}}'
    )
    async with mcp_bridge.connect(config) as toolset, toolset.open_world("one") as world:
        texts: dict[str, str] = {}

        async def call(name: str, arguments: dict[str, str]) -> None:
            texts[name] = (await world.call(name, arguments)).text

        async with anyio.create_task_group() as group:
            group.start_soon(call, "echo", {"message": "both"})
            group.start_soon(call, "get_current_time", {"timezone": "UTC"})
        assert texts["echo"] == "Echo: both"
        assert "UTC" in texts["get_current_time"]


async def test_each_world_of_a_node_server_is_a_process_that_ends_with_it(
    node_server: Node, tmp_path: Path, running: Callable[[int], bool]
) -> None:
    pid_files = tmp_path / "pids"
    pid_files.mkdir()
    # Node loads this first: it writes down which process it is in.
    preload = tmp_path / "preload.cjs"
    preload.write_text(f"require('fs').writeFileSync('{pid_files}/' + process.pid, '')")
    node, entry = node_server("server-filesystem")
    arguments = ["--require", str(preload), entry, str(tmp_path)]
    config = {
        "mcpServers": {"files": {"command": node, "args": arguments, "toolbake": {"warm": 0, "protocol": "2025-11-25"}}}
    }
    async with mcp_bridge.connect(config) as toolset:
        async with toolset.open_world("one"), toolset.open_world("two"):
            pids = [int(file.name) for file in pid_files.iterdir()]
            assert len(pids) == 2
            assert all(running(pid) for pid in pids)
        assert not any(running(pid) for pid in pids)
