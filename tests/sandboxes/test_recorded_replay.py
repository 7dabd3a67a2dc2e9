"""`toolbake replay`: a cassette as a server, for any client, with a world for each session."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from noting import record_notes
from recorder_runs import hearing_ctrl_c

import mcp_bridge
from sandboxes.divergence import compare
from sandboxes.recorded import Cassette

EXAMPLE = Path(__file__).parents[2] / "examples" / "recorded" / "files.jsonl"
WRITE = ("write_file", {"path": "notes/today.md", "content": "- buy milk\n"})


def replaying(cassette: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "toolbake", "replay", str(cassette), *options]


async def test_a_client_of_the_bridge_meets_the_recording_with_worlds_and_forks() -> None:
    cassette = Cassette.read(EXAMPLE)
    async with mcp_bridge.connect(replaying(EXAMPLE), connect_timeout_s=60) as toolset:
        assert [one.name for one in toolset.servers] == [cassette.header.server["name"]]
        assert toolset.can_fork
        assert toolset.live_destructive == [], "nothing real is behind it"
        assert (await compare(cassette, toolset)).agreement == 1.0
        async with toolset.open_world("one") as world:
            with pytest.raises(mcp_bridge.ToolFailure, match="was not recorded after 0 changes"):
                await world.call("read_text_file", {"path": "elsewhere.md"})


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_any_client_is_given_the_recorded_answers_over_stdio(mode: Any, tmp_path: Path) -> None:
    await record_notes(tmp_path / "notes.jsonl", [("add_note", {"text": "milk"}), ("list_notes", {})])
    command = replaying(tmp_path / "notes.jsonl", "--unseen", "nearest", "--nearest-at-least", "0.1")
    async with Client(stdio_client(StdioServerParameters(command=command[0], args=command[1:])), mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [
            *("add_note", "get_note", "change_note", "list_notes", "tick")
        ]
        near = await client.call_tool("add_note", {"text": "milk!"})
        assert near.structured_content == {"note_id": "n-100"}
        listed = await client.call_tool("list_notes", {})
        assert listed.structured_content == {"notes": [{"note_id": "n-100", "text": "milk"}]}
        with pytest.raises(MCPError, match="never called in the recording"):
            await client.call_tool("tick", {})


async def test_each_session_over_http_begins_where_the_recording_began(tmp_path: Path, unused_tcp_port: int) -> None:
    sessions: Sequence[Any] = [("list_notes", {}), ("add_note", {"text": "milk"}), ("list_notes", {})]
    await record_notes(tmp_path / "notes.jsonl", list(sessions))
    command = replaying(tmp_path / "notes.jsonl", "--http", str(unused_tcp_port))
    async with await anyio.open_process(hearing_ctrl_c(command), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        told = b""
        while b"replaying 3 calls of 5 tools on http" not in told:
            told += await process.stderr.receive()
        url = f"http://127.0.0.1:{unused_tcp_port}/mcp"
        async with Client(url, mode="legacy") as one, Client(url, mode="legacy") as two:
            await one.call_tool("add_note", {"text": "milk"})
            counts = [len((await each.call_tool("list_notes", {})).structured_content["notes"]) for each in (one, two)]
            assert counts == [1, 0]
        process.send_signal(signal.SIGINT)
        told = b"".join([part async for part in process.stderr])
        assert b"answered 3 calls: 3 recorded" in told
