"""Errors come out as themselves, whatever task groups are between."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import MCPServer

import mcp_bridge
from mcp_bridge import ServerDied, SourceError, Tool, ToolResult, World


class Grouping:
    """A sandbox with a task group around everything, as many have."""

    def __init__(self, *, opening: Exception | None = None, calling: Exception | None = None) -> None:
        self.opening, self.calling = opening, calling

    @property
    def tools(self) -> list[Tool]:
        return [Tool(name="count_up")]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Mapping[str, Any] | None = None) -> AsyncIterator[World]:
        async with anyio.create_task_group():
            if self.opening is not None:
                raise self.opening
            yield self

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        async with anyio.create_task_group():
            if self.calling is not None:
                raise self.calling
        return ToolResult(text="counted")

    async def state(self) -> dict[str, Any] | None:
        return None


def healthy() -> MCPServer:
    server = MCPServer("healthy")
    server.tool(structured_output=False)(look)
    return server


def broken() -> MCPServer:
    return MCPServer("no tools at all")


async def look() -> str:
    return "seen"


async def test_of_two_sources_the_broken_one_is_a_source_error() -> None:
    with pytest.raises(SourceError, match="offers no tools"):
        async with mcp_bridge.connect([healthy(), broken()]):
            pass


async def test_an_error_of_another_kind_while_servers_start_is_in_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = ValueError("a bug of the bridge")

    async def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr("mcp_bridge.sessions.server_source.open_session", fail)
    with pytest.raises(ValueError, match="a bug of the bridge") as raised:
        async with mcp_bridge.connect([healthy(), healthy()]):
            pass
    assert raised.value is fault


async def raise_while_connected(error: BaseException) -> None:
    async with mcp_bridge.connect([healthy(), Grouping()]) as toolset:
        await toolset.call("look", {})
        raise error


@pytest.mark.parametrize(
    "error", [ValueError("mine"), SourceError("mine"), SystemExit(3), ExceptionGroup("mine", [ValueError("a")])]
)
async def test_an_error_of_the_callers_own_comes_out_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        await raise_while_connected(error)
    assert raised.value is error


@pytest.mark.parametrize("error", [ValueError("mine"), SourceError("mine"), ExceptionGroup("mine", [ValueError("a")])])
async def test_an_error_raised_in_a_world_passes_through_the_sources_task_group(error: Exception) -> None:
    async with mcp_bridge.connect([healthy(), Grouping()]) as toolset:
        with pytest.raises(type(error)) as raised:
            async with toolset.open_world("one"):
                raise error
    assert raised.value is error


async def test_a_world_that_cannot_be_opened_is_told_without_a_group() -> None:
    error = SourceError("no such seed")
    async with mcp_bridge.connect(Grouping(opening=error)) as toolset:
        with pytest.raises(SourceError, match="no such seed"):
            async with toolset.open_world("one"):
                pass
        with pytest.raises(SourceError, match="no such seed"):
            await toolset.call("count_up", {})


async def test_a_failing_call_is_told_without_a_group() -> None:
    async with mcp_bridge.connect(Grouping(calling=ServerDied("gone"))) as toolset:
        with pytest.raises(ServerDied, match="gone"):
            await toolset.call("count_up", {})
        async with toolset.open_world("one") as world:
            with pytest.raises(ServerDied, match="gone"):
                await world.call("count_up", {})


async def test_groups_of_the_bridges_errors_come_out_as_the_first_with_the_others_in_its_notes() -> None:
    with pytest.raises(SourceError, match="first") as raised:
        async with mcp_bridge.connect(Grouping()):
            raise ExceptionGroup("all", [SourceError("first"), ExceptionGroup("more", [ServerDied("second")])])
    assert raised.value.__notes__ == ["besides: ServerDied: second"]
