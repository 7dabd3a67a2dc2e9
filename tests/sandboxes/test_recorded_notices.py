"""What a server tells without being asked, and what it shows of itself, through a recorder to the client."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from recorder_runs import recorder
from test_recorded_asking import recorded

TELLING = [sys.executable, str(Path(__file__).parents[1] / "bridge" / "servers" / "telling.py")]
NOTE = "note://1"


class Heard:
    """What a client was told, in its order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._more = anyio.Event()

    async def hear(self, message: Any) -> None:
        self.told.append(message)
        self._more.set()
        self._more = anyio.Event()

    def log(self) -> list[tuple[str, Any, str | None]]:
        entries = [one.params for one in self.told if isinstance(one, types.LoggingMessageNotification)]
        return [(entry.level, entry.data, entry.logger) for entry in entries]

    async def until(self, kind: type) -> Any:
        while not any(isinstance(one, kind) for one in self.told):
            await self._more.wait()
        return next(one for one in self.told if isinstance(one, kind))


@asynccontextmanager
async def client_of(way: str, path: Path, **options: Any) -> AsyncIterator[Client]:
    """A client of a recorder before the telling server: over HTTP, or over standard input and output."""
    if way == "http":
        async with recorded(TELLING, path) as url, Client(url, **options) as client:
            yield client
    else:
        command, *args = recorder(TELLING, path)
        parameters = StdioServerParameters(command=command, args=args, env=dict(os.environ))
        async with Client(stdio_client(parameters), **options) as client:
            yield client


async def set_level(client: Client, level: Any) -> None:
    asked = types.SetLevelRequest(params=types.SetLevelRequestParams(level=level))
    await client.session.send_request(asked, types.EmptyResult)


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_a_client_that_shook_hands_hears_log_and_changes_through_a_recorder(way: str, tmp_path: Path) -> None:
    heard = Heard()
    async with client_of(way, tmp_path / "told.jsonl", mode="legacy", message_handler=heard.hear) as client:
        has = client.server_capabilities
        assert has.logging is not None
        assert (has.tools.list_changed, has.resources.subscribe, has.resources.list_changed) == (True, True, True)
        await client.call_tool("work", {})
        assert [level for level, _, _ in heard.log()] == ["warning"], "what the server sends where nobody chose"
        await set_level(client, "info")
        await client.call_tool("work", {})
        steps = [("info", {"step": 1}, "work"), ("notice", {"step": 2}, "work"), ("warning", {"step": 3}, "work")]
        assert heard.log()[1:] == steps, "all of it before the result, in its order"
        await client.session.send_request(
            types.SubscribeRequest(params=types.SubscribeRequestParams(uri=NOTE)), types.EmptyResult
        )
        await client.call_tool("change", {})
        assert (await heard.until(types.ResourceUpdatedNotification)).params.uri == NOTE
        await heard.until(types.ToolListChangedNotification)
        await client.session.send_request(
            types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=NOTE)), types.EmptyResult
        )
        heard.told.clear()
        await client.call_tool("change", {})
        await heard.until(types.ToolListChangedNotification)
        assert not any(isinstance(one, types.ResourceUpdatedNotification) for one in heard.told)


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_a_client_of_the_newest_revision_subscribes_and_asks_for_the_log_through_a_recorder(
    way: str, tmp_path: Path
) -> None:
    heard = Heard()
    async with client_of(way, tmp_path / "told.jsonl", message_handler=heard.hear) as client:
        await client.call_tool("work", {})
        assert heard.log() == [], "nobody asked for it"
        await client.call_tool("work", {}, meta={types.LOG_LEVEL_META_KEY: "notice"})
        assert [level for level, _, _ in heard.log()] == ["notice", "warning"]
        async with client.listen(resource_subscriptions=[NOTE]) as events:
            assert events.honored.resource_subscriptions == [NOTE]
            assert not events.honored.tools_list_changed
            await client.call_tool("change", {})
            assert await anext(aiter(events)) == ResourceUpdated(NOTE)
        async with client.listen(tools_list_changed=True) as events:
            await client.call_tool("change", {})
            assert await anext(aiter(events)) == ToolsListChanged()


async def test_a_client_that_shook_hands_hears_the_log_of_a_server_that_is_asked_for_it_in_each_request(
    tmp_path: Path,
) -> None:
    heard = Heard()
    async with recorded(TELLING, tmp_path / "told.jsonl", "2026-07-28") as url:
        async with Client(url, mode="legacy", message_handler=heard.hear) as client:
            await client.call_tool("work", {})
            await set_level(client, "notice")
            await client.call_tool("work", {})
            assert [level for level, _, _ in heard.log()] == ["warning", "notice", "warning"]


async def test_a_recorder_shows_the_name_titles_and_icons_of_its_server(tmp_path: Path) -> None:
    async with recorded(TELLING, tmp_path / "told.jsonl") as url:
        for mode in ("auto", "legacy"):
            async with Client(url, mode=mode) as client:  # type: ignore[arg-type]
                shown = client.server_info
                assert shown is not None
                assert (shown.name, shown.version, shown.title) == ("telling", "3", "The telling server")
                assert (shown.description, shown.website_url) == ("It tells.", "https://telling.example")
                tools = (await client.list_tools()).tools
                assert shown.icons is not None
                assert all(tool.icons == shown.icons for tool in tools)
