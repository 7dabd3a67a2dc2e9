"""What servers ask in the middle of a call, and calls as tasks, through a recorder between them and the client."""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from free_ports import free_port
from mcp import Client
from mcp.shared.exceptions import MCPError
from other_environments import python_of
from recorder_runs import node_command

import mcp_bridge
from mcp_bridge import Elicitation, Handlers, SourceError, Tool, ToolFailure
from sandboxes.recorded import Cassette, RecordedTwin, record
from sandboxes.recorded.cassette import CassetteWriter
from sandboxes.recorded.recorder import serve_recorder

TALKATIVE = str(Path(__file__).parents[1] / "bridge" / "servers" / "talkative.py")
OLD, NEW = "2025-11-25", "2026-07-28"
HANDLERS = Handlers(
    elicitation=lambda question: {"colour": "blue"}, sampling=lambda question: "yes", roots=["file:///srv/work"]
)


@asynccontextmanager
async def recorded(server: list[str], to: Path, protocol: str | None = None) -> AsyncIterator[str]:
    """A recorder before a server; its URL."""
    port = free_port()
    entry = {"command": server[0], "args": server[1:], "toolbake": {"protocol": protocol} if protocol else {}}
    begun = anyio.Event()
    async with anyio.create_task_group() as group:
        recorder = functools.partial(serve_recorder, port=port, say=lambda _: begun.set())
        group.start_soon(recorder, {"mcpServers": {"real": entry}}, to)
        await begun.wait()
        yield f"http://127.0.0.1:{port}/mcp"
        group.cancel_scope.cancel()


def through(url: str, protocol: str | None) -> Any:
    return {"mcpServers": {"recorder": {"url": url, "toolbake": {"protocol": protocol} if protocol else {}}}}


@pytest.mark.parametrize(("server", "client"), [(OLD, None), (NEW, NEW), (NEW, OLD)])
async def test_questions_reach_the_client_and_their_answers_the_server(
    server: str, client: str | None, tmp_path: Path
) -> None:
    async with recorded([sys.executable, TALKATIVE], tmp_path / "talk.jsonl", server) as url:
        async with mcp_bridge.connect(through(url, client), handlers=HANDLERS) as toolset:
            assert toolset.servers[0].protocol == (client or server)
            assert (await toolset.call("paint", {"thing": "door"})).text == "The door is blue."
            assert (await toolset.call("think", {})).text == "It said yes."
            assert (await toolset.call("folders", {})).text == "file:///srv/work"
        async with mcp_bridge.connect(through(url, client)) as toolset:
            refused = await toolset.call("paint", {"thing": "door"})
            assert refused.error_kind == "tool_error"
    calls = Cassette.read(tmp_path / "talk.jsonl").calls
    assert [call.tool for call in calls][:3] == ["paint", "think", "folders"]
    assert [call.order for call in calls][:3] == [0, 1, 2], "a call to which the server asks something is one call"
    assert [call.result.text for call in calls[:2] if call.result] == ["The door is blue.", "It said yes."]


BREAKING = str(Path(TALKATIVE).with_name("breaking.py"))


async def test_a_server_that_died_is_started_again_for_the_next_client_of_the_newest_revision(tmp_path: Path) -> None:
    path = tmp_path / "breaking.jsonl"
    async with recorded([sys.executable, BREAKING], path, NEW) as url:
        async with mcp_bridge.connect(through(url, NEW)) as toolset:
            with pytest.raises(ToolFailure):
                await toolset.call("die", {})
        async with mcp_bridge.connect(through(url, NEW)) as toolset:
            assert (await toolset.call("echo", {})).text == "1"
    assert [[call.tool for call in one.calls] for one in Cassette.read(path).sessions] == [["die"], ["echo"]]


async def test_a_client_that_stays_begins_a_session_of_the_cassette_with_the_server_that_is_started_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "breaking.jsonl"
    async with recorded([sys.executable, BREAKING], path, NEW) as url, Client(url) as client:
        assert client.protocol_version == NEW
        await client.call_tool("echo", {})
        with pytest.raises(MCPError):
            await client.call_tool("die", {})
        [told] = (await client.call_tool("echo", {})).content
        assert told.text == "1"  # the server has forgotten what went before
    sessions = [[call.tool for call in one.calls] for one in Cassette.read(path).sessions]
    assert sessions == [["echo", "die"], ["echo"]]


async def test_a_call_that_is_cancelled_is_recorded_without_words_of_python(tmp_path: Path) -> None:
    begun = anyio.Event()

    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    async with mcp_bridge.connect([wait]) as toolset, record(toolset, tmp_path / "c.jsonl").open_world("w") as world:
        async with anyio.create_task_group() as group:
            group.start_soon(world.call, "wait", {})
            await begun.wait()
            group.cancel_scope.cancel()
    [call] = Cassette.read(tmp_path / "c.jsonl").calls
    assert call.failure is not None
    assert call.failure.text == "the call was stopped before its answer came"


async def test_a_port_that_is_taken_is_told_before_there_is_a_cassette(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(SourceError, match="is in use by another program"):
            await serve_recorder([sys.executable, BREAKING], tmp_path / "c.jsonl", port=taken.getsockname()[1])
    assert not (tmp_path / "c.jsonl").exists()


async def test_the_server_is_met_in_the_revision_of_each_client(tmp_path: Path) -> None:
    """FastMCP asks in the middle of a call, which the newest revision does not have."""
    server = [str(python_of("fastmcp")), str(Path(TALKATIVE).with_name("converting.py"))]
    handlers = Handlers(elicitation=lambda question: {"value": "blue"})
    path = tmp_path / "asking.jsonl"
    async with recorded(server, path) as url:
        for protocol, told in (("2025-06-18", "accept blue"), (OLD, "accept blue"), (NEW, "unavailable on 2026-07-28")):
            async with mcp_bridge.connect(through(url, protocol), handlers=handlers, connect_timeout_s=60) as toolset:
                assert toolset.servers[0].protocol == protocol
                result = await toolset.call("ask", {})
                assert (told in result.text, result.is_error) == (True, protocol == NEW), result.text
    assert [call.result.is_error for call in Cassette.read(path).calls if call.result] == [False, False, True]


async def test_tools_that_only_some_clients_are_offered_and_tasks_are_recorded_and_replayed(tmp_path: Path) -> None:
    asked: list[str] = []

    def user(question: Elicitation) -> dict[str, str]:
        asked.append(question.message)
        return {"interpretation": "snake"}

    path = tmp_path / "everything.jsonl"
    research = ("simulate-research-query", {"topic": "python", "ambiguous": True})
    async with recorded(node_command("server-everything"), path) as url:
        async with mcp_bridge.connect(url) as toolset:
            plain = {tool.name for tool in toolset.tools}
        handlers = Handlers(elicitation=user, sampling=lambda question: "a word")
        async with mcp_bridge.connect(url, handlers=handlers) as toolset:
            offered = {tool.name for tool in toolset.tools}
            assert offered - plain >= {"trigger-elicitation-request", "trigger-sampling-request"}
            said = await toolset.call("trigger-sampling-request", {"prompt": "Say a word."})
            assert "a word" in said.text
            found = await toolset.call(*research)
            assert "python (snake)" in found.text
    assert len(asked) == 1
    assert {tool.name for tool in Cassette.read(path).header.tools} == plain | offered
    async with mcp_bridge.connect(RecordedTwin(path)) as twin:
        assert (await twin.call("trigger-sampling-request", {"prompt": "Say a word."})).text == said.text
        assert (await twin.call(*research)).text == found.text


def test_a_second_header_may_only_add_tools(tmp_path: Path) -> None:
    path, look, write = tmp_path / "growing.jsonl", Tool(name="look"), Tool(name="write")
    writer = CassetteWriter(path, [look], source="here")
    writer.learn([look, write])
    writer.learn([look])
    assert [tool.name for tool in Cassette.read(path).header.tools] == ["look", "write"]
    CassetteWriter(path, [look], source="here")  # one that sees fewer of them goes on in it
    assert len(path.read_text().splitlines()) == 2
    with pytest.raises(SourceError, match="a recording of other tools"):
        CassetteWriter(path, [look, Tool(name="other")], source="here")
    changed = Cassette.read(path).header.model_copy(update={"tools": [write]})
    path.write_text(f"{path.read_text()}{changed.as_text()}\n")
    with pytest.raises(SourceError, match="second header of other tools"):
        Cassette.read(path)
