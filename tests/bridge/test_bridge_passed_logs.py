"""What a server tells while it works, and its icons, through `serve-tools` to the client."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

pytestmark = pytest.mark.timeout(300)  # three processes on a busy machine

TELLING = Path(__file__).parent / "servers" / "telling.py"


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Client, list[tuple[str, Any, str | None]]]]:
    """A client of `toolbake serve-tools` before the telling server, and the log that it hears."""
    heard: list[tuple[str, Any, str | None]] = []

    async def hear(message: Any) -> None:
        if isinstance(message, types.LoggingMessageNotification):
            heard.append((message.params.level, message.params.data, message.params.logger))

    args = ["-m", "toolbake", "serve-tools", "--command", f"{sys.executable} {TELLING}"]
    parameters = StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ))
    async with Client(stdio_client(parameters), message_handler=hear, **options) as client:
        yield client, heard


async def test_a_client_that_shook_hands_hears_the_log_of_its_calls_from_the_level_that_it_chooses() -> None:
    async with served(mode="legacy") as (client, heard):
        assert client.server_capabilities.logging is not None
        await client.call_tool("work", {})
        steps = [("info", {"step": 1}, "work"), ("notice", {"step": 2}, "work"), ("warning", {"step": 3}, "work")]
        assert heard == steps, "all of it before the result, in its order, from info on where nobody chose"
        heard.clear()
        level = types.SetLevelRequest(params=types.SetLevelRequestParams(level="warning"))
        await client.session.send_request(level, types.EmptyResult)
        await client.call_tool("work", {})
        assert heard == steps[2:]


async def test_a_client_of_the_newest_revision_hears_the_log_where_its_requests_ask_for_it() -> None:
    async with served() as (client, heard):
        await client.call_tool("work", {})
        assert heard == []
        await client.call_tool("work", {}, meta={types.LOG_LEVEL_META_KEY: "notice"})
        assert heard == [("notice", {"step": 2}, "work"), ("warning", {"step": 3}, "work")]


async def test_tools_are_served_with_the_icons_of_their_server() -> None:
    async with served() as (client, _):
        tools = (await client.list_tools()).tools
    assert {tool.name: [icon.mime_type for icon in tool.icons or ()] for tool in tools} == {
        "work": ["image/png"],
        "change": ["image/png"],
    }
