"""Lines of a stdio server that are no messages: each costs its call at most, and that at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mcp_bridge
from mcp_bridge import ToolFailure

SERVER = r"""
import json, sys

OK = {"content": [{"type": "text", "text": "ok"}]}
BODY = '{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":{"n":%s}}}'

def answer(name, id):
    if name == "chatty":
        yield from ("a line of a log", "{}", "[1, 2]", '"text"')
        yield json.dumps({"jsonrpc": "2.0", "id": 99999, "result": OK})
    if name == "half_a_letter":
        text = '{"content":[{"type":"text","text":"a\\ud83d b \\ud83d\\ude00"}]}'
        yield '{"jsonrpc":"2.0","id":%d,"result":%s}' % (id, text)
    elif name == "no_result":
        yield '{"jsonrpc":"2.0","id":%d,"result":null}' % id
    elif name == "id_last":
        yield '{"result":{"content":[}, "id":%d, "jsonrpc":"2.0"}' % id
    elif name == "huge_number":
        yield BODY % (id, "9" * 5000)
    elif name == "deep":
        yield BODY % (id, "[" * 3000 + "]" * 3000)
    elif name == "cut":
        yield '{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","te' % id
    elif name == "batch":
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "at work"}}
        yield json.dumps([log, {"jsonrpc": "2.0", "id": id, "result": OK}])
    elif name == "byte_order_mark":
        yield "\ufeff" + json.dumps({"jsonrpc": "2.0", "id": id, "result": OK})
    elif name == "half_a_notification":
        for params in ({"progressToken": None, "progress": 1}, {}):
            yield json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        yield json.dumps({"jsonrpc": "2.0", "method": "vendor/news", "params": {"id": id}})
        yield json.dumps({"jsonrpc": "2.0", "id": id, "result": OK})
    elif name == "no_content":
        yield json.dumps({"jsonrpc": "2.0", "id": id, "result": {"structuredContent": {"n": 7}}})
    elif name == "null_content":
        yield json.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": None}})
    else:
        if name == "stray_error":
            yield json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "the disk is full"}})
        yield json.dumps({"jsonrpc": "2.0", "id": id, "result": OK})

NAMES = ["chatty", "half_a_letter", "no_result", "id_last", "huge_number", "deep", "cut", "fine"]
NAMES += ["batch", "byte_order_mark", "no_content", "null_content", "stray_error", "half_a_notification"]
ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "tools/call":
        lines = answer(asked["params"]["name"], asked["id"])
    else:
        tools = {"tools": [{"name": one, "inputSchema": {"type": "object"}} for one in NAMES]}
        result = ABOUT if asked["method"] == "initialize" else tools
        lines = [json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})]
    for one in lines:
        print(one, flush=True)
"""


async def test_a_line_that_is_no_message_costs_its_call_at_most_and_at_once(
    script: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    program, path = script(SERVER)
    entry = {"command": program, "args": ["-S", path], "toolbake": {"protocol": "2025-06-18", "warm": 0}}
    # No call waits for its limit: that is longer than this test may take.
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}, call_timeout_s=600) as toolset:
        async with toolset.open_world("w") as world:
            assert (await world.call("chatty", {})).text == "ok"
            assert (await world.call("half_a_letter", {})).text == "a\ufffd b \U0001f600"
            for name in ("no_result", "id_last", "huge_number", "deep", "cut"):
                with pytest.raises(ToolFailure, match="the answer is not a message of MCP") as raised:
                    await world.call(name, {})
                assert (type(raised.value), raised.value.delivery) == (ToolFailure, "answered")
                assert world.ledger.lines[-1].event == "failed"
            assert (await world.call("fine", {})).text == "ok"
        assert caplog.text.count("is not an MCP message") == 1


async def test_what_servers_write_in_other_forms_is_read_all_the_same(
    script: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    logged = []
    program, path = script(SERVER)
    entry = {"command": program, "args": ["-S", path], "toolbake": {"protocol": "2025-06-18", "warm": 0}}
    handlers = mcp_bridge.Handlers(log=logged.append)
    config = {"mcpServers": {"s": entry}}
    async with mcp_bridge.connect(config, handlers=handlers, call_timeout_s=600) as toolset:
        assert (await toolset.call("batch", {})).text == "ok"
        assert [entry.data for entry in logged] == ["at work"]
        assert (await toolset.call("byte_order_mark", {})).text == "ok"
        structured = await toolset.call("no_content", {})
        assert (structured.text, structured.structured) == ('{"n":7}', {"n": 7})
        assert (await toolset.call("null_content", {})).text == "(empty result)"
        assert not caplog.records
        assert (await toolset.call("stray_error", {})).text == "ok"
    assert "sent an error without saying which request it answers: 'the disk is full'" in caplog.text


async def test_a_server_that_prints_is_warned_of_once_for_all_its_worlds_and_calls(
    script: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    program, path = script(SERVER)
    entry = {"command": program, "args": ["-S", path], "toolbake": {"protocol": "2025-06-18"}}
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}) as toolset:
        for world_id in ("one", "two"):
            async with toolset.open_world(world_id) as world:
                await world.call("chatty", {})
                await world.call("chatty", {})
    (warning,) = [one for one in caplog.records if "is not an MCP message" in one.message]
    assert (
        "wrote a line to stdout that is not an MCP message: 'a line of a log'. Others of this server" in warning.message
    )


async def test_notifications_that_lack_what_they_tell_are_warned_of_once(
    script: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    program, path = script(SERVER)
    entry = {"command": program, "args": ["-S", path], "toolbake": {"protocol": "2025-06-18", "isolation": "shared"}}
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}) as toolset, toolset.open_world("w") as world:
        for _ in range(2):
            assert (await world.call("half_a_notification", {})).text == "ok"
    (warning,) = caplog.records
    assert "that is not an MCP message" in warning.message
    assert "notifications/progress" in warning.message


async def test_arguments_that_cannot_be_written_cost_their_call_and_no_world(
    script: Callable[[str], list[str]],
) -> None:
    program, path = script(SERVER)
    entry = {"command": program, "args": ["-S", path], "toolbake": {"protocol": "2025-06-18", "isolation": "shared"}}
    async with mcp_bridge.connect({"mcpServers": {"s": entry}}, call_timeout_s=600) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            result = await one.call("fine", {"text": "\ud800"})
            assert result.error_kind == "invalid_arguments"
            assert "nothing was sent" in result.text
            assert (await one.call("fine", {})).text == (await two.call("fine", {})).text == "ok"
            assert [line.event for line in one.ledger.lines] == ["started", "answered"] * 2
