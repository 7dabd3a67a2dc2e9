"""Sessions over stdio: real processes, faults, time limits, what is left behind."""

import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import mcp_types as types
import psutil
import pytest

import mcp_bridge
from mcp_bridge import CallTimeout, ServerDied, SourceError, ToolFailure, Toolset

pytestmark = pytest.mark.asyncio(loop_scope="module")  # that of `notebooks`

Script = Callable[[str], list[str]]

LISTING_SERVER = """
import json, sys
def answer(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
TOOL = {"name": "tool", "description": "", "inputSchema": {"type": "object", "properties": {}}}
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        answer(message, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                         "serverInfo": {"name": "hand-made", "version": "1"}})
    elif method == "tools/list":
        answer(message, {"tools": [TOOL]})
    elif method == "tools/call":
        CALL
    elif "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"],
                          "error": {"code": -32601, "message": "no such method"}}), flush=True)
"""


async def test_a_call_over_stdio_returns_text_and_structured_content(notebooks: Toolset) -> None:
    assert (await notebooks.call("meta", {})).text.startswith("[")
    async with notebooks.open_world("milk") as world:
        assert (await world.call("add_note", {"text": "milk"})).text == "noted, 1 in all"
        result = await world.call("list_notes", {})
        assert result.structured == {"notes": ["milk"]}
        assert not result.is_error
        assert result.duration_s > 0
    tool = next(tool for tool in notebooks.tools if tool.name == "list_notes")
    assert tool.annotations.read_only is True
    assert tool.annotations.destructive is None


async def test_eight_calls_of_one_session_are_in_flight_together(notebooks: Toolset) -> None:
    met: list[str] = []

    async def meet() -> None:
        met.append((await notebooks.call("meet", {"count": 8})).text)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(meet)
    assert met == ["met 8"] * 8


async def test_a_call_over_its_time_limit_raises_and_leaves_the_session_usable(notebooks: Toolset) -> None:
    async with notebooks.open_world("late") as world:
        await world.call("add_note", {"text": "kept"})
        with pytest.raises(CallTimeout, match=r"'hang' did not answer within 0\.1 s in world 'late'"):
            await world.call("hang", {}, timeout_s=0.1)
        assert (await world.call("list_notes", {})).structured == {"notes": ["kept"]}
    with pytest.raises(CallTimeout, match=r"'hang' did not answer within 0\.1 s in world 'default'"):
        await notebooks.call("hang", {}, timeout_s=0.1)


async def test_a_cancelled_call_leaves_the_session_usable(notebooks: Toolset) -> None:
    with anyio.move_on_after(0.1) as scope:
        await notebooks.call("hang", {})
    assert scope.cancelled_caught
    assert not (await notebooks.call("list_notes", {})).is_error


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True])
async def test_a_time_limit_that_is_no_positive_number_is_refused(notes: list[str], value: float) -> None:
    with pytest.raises(SourceError, match=r"`call_timeout_s` is .* must be a number above 0"):
        async with mcp_bridge.connect(notes, call_timeout_s=value):
            pass


async def test_a_server_that_dies_in_a_call_raises_with_the_end_of_its_stderr(notes: list[str]) -> None:
    async with mcp_bridge.connect(notes) as toolset:
        with pytest.raises(ServerDied, match="boom: the backend is gone"):
            await toolset.call("crash", {})
        with pytest.raises(ServerDied, match="boom: the backend is gone"):
            await toolset.call("list_notes", {})


async def test_every_call_in_flight_learns_that_the_server_died(breaking: list[str]) -> None:
    async with mcp_bridge.connect(breaking) as toolset, toolset.open_world("one") as world:
        died: list[str] = []

        async def call(name: str) -> None:
            with pytest.raises(ServerDied) as raised:
                await world.call(name, {})
            died.append(str(raised.value))

        async with anyio.create_task_group() as group:
            for name in ["hang", "hang", "hang", "die"]:
                group.start_soon(call, name)
        assert len(died) == 4


async def test_a_world_opened_after_a_crash_has_a_new_process(breaking: list[str]) -> None:
    async with mcp_bridge.connect(breaking) as toolset:
        async with toolset.open_world("one") as world:
            await world.call("echo", {})
            with pytest.raises(ServerDied):
                await world.call("die", {})
        async with toolset.open_world("two") as world:
            assert (await world.call("echo", {})).text == "1"


async def test_no_process_is_left_when_the_block_is_left_and_when_it_raises(
    breaking: list[str], running: Callable[[int], bool]
) -> None:
    pids: list[int] = []

    async def block() -> None:
        async with mcp_bridge.connect(breaking) as toolset:
            async with toolset.open_world("one") as one, toolset.open_world("two") as two:
                for world in (one, two):
                    pids.append(int((await world.call("pid", {})).text))
                assert pids[0] != pids[1]
                assert all(running(pid) for pid in pids)
            assert not any(running(pid) for pid in pids)
            pids.append(int((await toolset.call("pid", {})).text))
            raise KeyError("from the block")

    with pytest.raises(KeyError, match="from the block"):
        await block()
    assert len(pids) == 3
    assert not running(pids[2])


async def test_no_process_is_left_when_the_block_is_cancelled(
    breaking: list[str], running: Callable[[int], bool]
) -> None:
    pids: list[int] = []
    with anyio.CancelScope() as scope:
        async with mcp_bridge.connect(breaking) as toolset, toolset.open_world("one") as world:
            pids.append(int((await world.call("pid", {})).text))
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not running(pids[0])


async def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(SourceError, match=r"'no-such-command-at-all' cannot be started \(No such file"):
        async with mcp_bridge.connect(["no-such-command-at-all", "--flag"]):
            pass


async def test_a_cwd_that_does_not_exist_is_named(tmp_path: Path) -> None:
    config = {"mcpServers": {"one": {"command": sys.executable, "cwd": str(tmp_path / "gone")}}}
    with pytest.raises(SourceError, match=r"cwd '.*gone' is not a folder"):
        async with mcp_bridge.connect(config):
            pass


async def test_a_command_that_dies_at_start_shows_its_stderr(script: Script) -> None:
    command = script("raise SystemExit('the licence file is missing')")
    with pytest.raises(SourceError, match=r"ended before it answered(.|\n)*the licence file is missing"):
        async with mcp_bridge.connect(command):
            pass


async def test_stderr_is_shown_from_its_end_however_much_there_is(script: Script) -> None:
    text = "import sys\nfor n in range(200_000): print('line', n, file=sys.stderr)\nsys.exit('the very end')"
    with pytest.raises(SourceError) as raised:
        async with mcp_bridge.connect(script(text)):
            pass
    assert "the very end" in str(raised.value)
    assert "line 199999" in str(raised.value)
    assert len(str(raised.value)) < 5_000


async def test_a_server_that_never_answers_is_given_up_and_killed(
    script: Script,
) -> None:
    command = script("import sys\nfor line in sys.stdin: pass")
    with pytest.raises(SourceError, match=r"did not answer within 1\.5 s"):
        async with mcp_bridge.connect(command, connect_timeout_s=1.5):
            pass
    assert [one for one in psutil.Process().children(recursive=True) if command[-1] in one.cmdline()] == []


async def test_a_server_that_dies_of_the_modern_probe_is_started_again_in_the_older_era(script: Script) -> None:
    text = LISTING_SERVER.replace("CALL", "answer(message, {'content': [{'type': 'text', 'text': 'old'}]})")
    dies = text.replace(
        'method = message.get("method")', 'method = message.get("method")\n    assert method != "server/discover"'
    )
    async with mcp_bridge.connect(script(dies)) as toolset:
        assert (await toolset.call("tool", {})).text == "old"


async def test_a_result_against_the_servers_own_output_schema_is_a_failure_of_the_server(script: Script) -> None:
    text = LISTING_SERVER.replace("CALL", "answer(message, {'content': [], 'structuredContent': {'n': 'one'}})")
    schema = '"outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}, "inputSchema"'
    async with mcp_bridge.connect(script(text.replace('"inputSchema"', schema))) as toolset:
        with pytest.raises(ToolFailure, match=r"failed on 'tool'.*Invalid structured content"):
            await toolset.call("tool", {})


@pytest.mark.parametrize(
    ("code", "kind"),
    [(-32602, "invalid_arguments")]
    + [(code, "tool_error") for code in (404, 0, -32603, -32000, -32001, -32002, -32600, -32601, -32700)],
)
async def test_an_error_that_a_server_answers_a_call_with_is_read_by_the_policy_whatever_its_code(
    script: Script, code: int, kind: str
) -> None:
    error = f"{{'jsonrpc': '2.0', 'id': message['id'], 'error': {{'code': {code}, 'message': 'told so'}}}}"
    text = LISTING_SERVER.replace("CALL", f"print(json.dumps({error}), flush=True)")
    async with mcp_bridge.connect(script(text)) as toolset:
        result = await toolset.call("tool", {})
        assert (result.text, result.error_kind) == ("told so", kind)


@pytest.mark.parametrize("code", [types.HEADER_MISMATCH, types.UNSUPPORTED_PROTOCOL_VERSION])
async def test_a_request_that_the_protocol_refuses_is_no_answer_of_the_tool(script: Script, code: int) -> None:
    error = f"{{'jsonrpc': '2.0', 'id': message['id'], 'error': {{'code': {code}, 'message': 'told so'}}}}"
    text = LISTING_SERVER.replace("CALL", f"print(json.dumps({error}), flush=True)")
    async with mcp_bridge.connect(script(text)) as toolset:
        with pytest.raises(ToolFailure, match="told so"):
            await toolset.call("tool", {})


async def test_tools_that_cannot_be_listed_again_are_no_answer_of_the_tool(script: Script) -> None:
    changed = "print(json.dumps({'jsonrpc': '2.0', 'method': 'notifications/tools/list_changed'}), flush=True)"
    text = LISTING_SERVER.replace("CALL", f"{changed}\n        answer(message, {{'content': []}})\n        listed = 1")
    refused = "{'jsonrpc': '2.0', 'id': message['id'], 'error': {'code': -32603, 'message': 'no list'}}"
    text = text.replace(
        'elif method == "tools/list":',
        f'elif method == "tools/list" and "listed" in globals():\n        print(json.dumps({refused}), flush=True)\n'
        '    elif method == "tools/list":',
    )
    async with mcp_bridge.connect(script(text)) as toolset, toolset.open_world("w") as world:
        await world.call("tool", {})
        with pytest.raises(ToolFailure, match="failed on 'tools/list'"):
            await world.call("tool", {})


async def test_a_server_without_tools_is_refused(script: Script) -> None:
    text = LISTING_SERVER.replace("[TOOL]", "[]").replace("CALL", "pass")
    with pytest.raises(SourceError, match="offers no tools"):
        async with mcp_bridge.connect(script(text)):
            pass


async def test_an_input_schema_that_is_no_json_schema_is_refused(script: Script) -> None:
    text = LISTING_SERVER.replace('"properties": {}', '"properties": {"a": {"type": "text"}}').replace("CALL", "pass")
    with pytest.raises(SourceError, match=r"no tool is left. Left out are 'tool' \(.*not a valid JSON Schema: 'text'"):
        async with mcp_bridge.connect(script(text)):
            pass


async def test_half_a_set_of_control_tools_is_refused(script: Script) -> None:
    text = LISTING_SERVER.replace(
        '"inputSchema"', '"_meta": {"toolbake/control": "open_world"}, "inputSchema"'
    ).replace("CALL", "pass")
    with pytest.raises(SourceError, match=r"\['open_world'\] but not \['close_world'\]"):
        async with mcp_bridge.connect(script(text)):
            pass


async def test_all_servers_that_cannot_start_are_told_at_once() -> None:
    config = {"mcpServers": {"first": {"command": "no-such-one"}, "second": {"command": "no-such-two"}}}
    with pytest.raises(SourceError, match=r"2 sources cannot be used(.|\n)*no-such"):
        async with mcp_bridge.connect(config):
            pass


async def test_worlds_cannot_be_opened_or_called_once_they_are_closed(breaking: list[str]) -> None:
    async with mcp_bridge.connect(breaking) as toolset:
        async with toolset.open_world("one") as world:
            pass
        with pytest.raises(ToolFailure, match="'one' is closed"):
            await world.call("echo", {})
    with pytest.raises(RuntimeError, match="the toolset is closed"):
        async with toolset.open_world("two"):
            pass
