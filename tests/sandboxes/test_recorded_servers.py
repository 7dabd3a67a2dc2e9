"""Real servers recorded by `toolbake record`, replayed without them, and compared."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from recorder_runs import Call, hearing_ctrl_c, node_command, play, recorder

import mcp_bridge
from mcp_bridge.errors import SourceError
from sandboxes.divergence import compare
from sandboxes.helpdesk import Helpdesk
from sandboxes.recorded import Cassette, NotRecorded, RecordedTwin, record

pytestmark = pytest.mark.timeout(300)  # each test starts several servers


EXAMPLE = Path(__file__).parents[2] / "examples" / "recorded" / "everything.jsonl"
ADDING = """
from mcp.server.mcpserver import MCPServer

def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

if __name__ == "__main__":
    server = MCPServer("adding")
    server.tool()(add)
    server.run()
"""


def file_calls(folder: Path) -> list[Call]:
    note = str(folder / "note.txt")
    return [
        ("list_directory", {"path": str(folder)}),
        ("write_file", {"path": note, "content": "one\n"}),
        ("read_text_file", {"path": note}),
        ("edit_file", {"path": note, "edits": [{"oldText": "one", "newText": "two"}]}),
        ("read_text_file", {"path": note}),
        ("read_text_file", {"path": "/etc/hostname"}),
        ("move_file", {"source": note, "destination": str(folder / "kept.txt")}),
        ("list_directory", {"path": str(folder)}),
    ]


async def test_a_recorded_filesystem_session_is_replayed_without_the_server(tmp_path: Path) -> None:
    folder, cassette = tmp_path / "files", tmp_path / "files.jsonl"
    folder.mkdir()
    calls = file_calls(folder)
    command = recorder([*node_command("server-filesystem"), str(folder)], cassette, "--scrub", re.escape(str(folder)))
    (lived,) = await play(command, calls)
    assert (folder / "kept.txt").read_text() == "two\n"
    assert [result.is_error for result in lived] == [False] * 5 + [True] + [False] * 2
    assert str(tmp_path / "files/") not in cassette.read_text()

    twin = RecordedTwin(cassette)
    (replayed,) = await play(twin, calls)
    for real, played in zip(lived, replayed, strict=True):
        assert played.text == real.text.replace(str(folder), "***")
        assert played.is_error == real.is_error
    assert twin.report()["answers"] == {"recorded": 8}
    assert twin.report()["counted_as_changes"] == []

    report = await compare(cassette, twin)
    assert report.agrees
    assert (report.compared, report.sessions) == (8, 1)
    assert {tool.name for tool in twin.tools} == {tool.tool for tool in report.tools}


async def test_a_recorded_everything_session_is_replayed_with_structure_images_and_resources(tmp_path: Path) -> None:
    cassette = tmp_path / "everything.jsonl"
    calls: list[Call] = [
        ("echo", {"message": "hello"}),
        ("get-sum", {"a": 2, "b": 3}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "New York"}),
        ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
    ]
    lived, again = await play(recorder(node_command("server-everything"), cassette), calls, calls[:2])
    (replayed,) = await play(RecordedTwin(cassette), calls)
    assert [(r.text, r.structured) for r in replayed] == [(r.text, r.structured) for r in lived]
    assert again[0].text == "Echo: hello"
    report = await compare(cassette, RecordedTwin(cassette))
    assert report.agrees, report.to_markdown()
    assert (report.compared, report.sessions) == (7, 2)


async def test_a_client_sees_through_the_recorder_what_it_would_see_of_the_server(tmp_path: Path) -> None:
    server = node_command("server-everything")
    seen = []
    for command in (server, recorder(server, tmp_path / "cassette.jsonl")):
        parameters = StdioServerParameters(command=command[0], args=command[1:])
        async with Client(stdio_client(parameters)) as client:
            progress: list[float] = []

            async def note(done: float, total: float | None, message: str | None) -> None:
                progress.append(done)  # noqa: B023 - used before the next round

            tools = await client.list_tools()
            image = await client.call_tool("get-tiny-image", {})
            slow = {"duration": 0.2, "steps": 2}
            ran = await client.call_tool("trigger-long-running-operation", slow, progress_callback=note)
            resources, prompts = await client.list_resources(), await client.list_prompts()
            first = resources.resources[0].uri
            prompt = await client.get_prompt("simple-prompt")
            info = client.server_info
            assert info is not None
            seen.append(
                {
                    # `execution` speaks of tasks, which the recorder's newer era of the protocol no longer has.
                    "tools": [tool.model_dump(exclude={"execution"}) for tool in tools.tools],
                    "image": [part.model_dump() for part in image.content],
                    "ran": [part.model_dump() for part in ran.content],
                    "progress": progress,
                    "resources": [one.uri for one in resources.resources],
                    "read": (await client.read_resource(first)).contents[0].uri,
                    "prompts": prompts.prompts,
                    "prompt": prompt.messages,
                    "instructions": client.instructions,
                    "info": (info.name, info.version),
                }
            )
    direct, recorded = seen
    assert recorded == direct
    assert direct["progress"]
    assert [call.tool for call in Cassette.read(tmp_path / "cassette.jsonl").calls] == [
        "get-tiny-image",
        "trigger-long-running-operation",
    ]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_clients_of_every_era_are_recorded(tmp_path: Path, mode: str) -> None:
    command = recorder(node_command("server-everything"), tmp_path / "cassette.jsonl")
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with Client(stdio_client(parameters), mode=mode) as client:  # type: ignore[arg-type]
        assert not (await client.call_tool("echo", {"message": mode})).is_error
    (call,) = Cassette.read(tmp_path / "cassette.jsonl").calls
    assert call.result is not None
    assert call.result.text == f"Echo: {mode}"


async def test_over_http_each_client_session_is_a_session_of_the_cassette_and_of_the_server(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    cassette = tmp_path / "files.jsonl"
    command = recorder([*node_command("server-filesystem"), str(tmp_path)], cassette, "--http", str(unused_tcp_port))
    url = f"http://127.0.0.1:{unused_tcp_port}/mcp"
    async with await anyio.open_process(hearing_ctrl_c(command), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        told = b""
        while b"recording" not in told:
            told += await process.stderr.receive()
        async with anyio.create_task_group() as group:
            for name in ("one", "two"):
                group.start_soon(functools.partial(_write_over_http, url, str(tmp_path / name), name))
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    found = Cassette.read(cassette)
    assert len(found.sessions) == 2
    assert sorted(session.calls[0].arguments["content"] for session in found.sessions) == ["one", "two"]


async def _write_over_http(url: str, path: str, text: str) -> None:
    async with Client(url, mode="legacy") as client:
        assert not (await client.call_tool("write_file", {"path": path, "content": text})).is_error


async def test_over_http_worlds_of_a_server_that_keeps_them_apart_are_sessions_of_their_own(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    command = recorder(
        [sys.executable, "-m", "sandboxes.helpdesk"], tmp_path / "desk.jsonl", "--http", str(unused_tcp_port)
    )
    async with await anyio.open_process(hearing_ctrl_c(command), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        told = b""
        while b"recording" not in told:
            told += await process.stderr.receive()
        url = f"http://127.0.0.1:{unused_tcp_port}/mcp"
        order = {"customer_id": "C25", "product": "chair", "quantity": 1}
        calls: list[Call] = [("place_order", order), ("get_stock", {"product": "chair"})]
        try:
            first, second = await play(url, calls, calls)
        finally:
            process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    assert not first[0].is_error, first[0].text
    assert [result.text for result in first] == [result.text for result in second]
    assert [len(session.calls) for session in Cassette.read(tmp_path / "desk.jsonl").sessions] == [2, 2]


async def test_a_killed_recorder_leaves_a_cassette_that_can_be_read_and_gone_on_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cassette = tmp_path / "cassette.jsonl"
    command = recorder(node_command("server-everything"), cassette)
    await anyio.to_thread.run_sync(_kill_after_a_call, command, "before the end")
    with cassette.open("ab") as file:
        file.write('{"kind":"call","session":"half of a l\u00e9'.encode()[:-1])  # in the midst of a letter, too

    found = Cassette.read(cassette)
    assert "the last line was cut off" in caplog.text
    caplog.clear()
    assert [one.arguments for one in found.calls] == [{"message": "before the end"}]
    await play(recorder(node_command("server-everything"), cassette), [("echo", {"message": "after it"})])
    found = Cassette.read(cassette)
    assert not caplog.text
    assert [one.arguments["message"] for one in found.calls] == ["before the end", "after it"]


TWO_TOOLS = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("desk")

@server.tool()
def look(text: str) -> str:
    "Look."
    return text + "!"

@server.tool()
def delete_all() -> str:
    "Delete."
    return "deleted"

server.run()
"""


async def test_tools_that_an_mcp_json_leaves_out_are_not_there_behind_the_recorder(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(TWO_TOOLS)
    entry = {"command": sys.executable, "args": [str(tmp_path / "desk.py")], "toolbake": {"deny": ["delete_*"]}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": entry}}))
    words = ["-m", "toolbake", "record", str(tmp_path / "mcp.json"), "--to", str(tmp_path / "c.jsonl")]
    with (tmp_path / "stderr").open("w") as errors:
        async with Client(stdio_client(StdioServerParameters(command=sys.executable, args=words), errors)) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["look"]
            with pytest.raises(Exception, match=r"does not call 'delete_all': deny has 'delete_\*'"):
                await client.call_tool("delete_all", {})
            await client.call_tool("look", {"text": "here"})
    assert "left out: delete_all (deny has 'delete_*')" in (tmp_path / "stderr").read_text()
    found = Cassette.read(tmp_path / "c.jsonl")
    assert ([tool.name for tool in found.header.tools], [one.tool for one in found.calls]) == (["look"], ["look"])


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        ("record --command '{python} {server}' --to {new}", signal.SIGINT, 130),
        ("record --command '{python} {server}' --to {new}", signal.SIGTERM, 143),
        ("replay {recorded}", signal.SIGTERM, 143),
        ("serve-tools {server}:add", signal.SIGINT, 130),
    ],
)
def test_a_signal_ends_a_server_whose_client_keeps_its_standard_input_open(
    words: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    server = tmp_path / "adding.py"
    server.write_text(ADDING)
    paths = {"server": server, "new": tmp_path / "new.jsonl", "recorded": EXAMPLE, "python": sys.executable}
    command = [sys.executable, "-m", "toolbake", *shlex.split(words.format(**paths))]
    with subprocess.Popen(hearing_ctrl_c(command), stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        _shake_hands(process)
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def _kill_after_a_call(command: list[str], message: str) -> None:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        _shake_hands(process)
        _answer(process, 2, {"name": "echo", "arguments": {"message": message}})
        process.kill()


def _shake_hands(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    _send(process, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    assert json.loads(process.stdout.readline())["id"] == 1
    _send(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})


def _answer(process: subprocess.Popen[str], number: int, call: dict[str, object]) -> dict[str, Any]:
    assert process.stdout is not None
    _send(process, {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
    while (answer := json.loads(process.stdout.readline())).get("id") != number:
        pass
    return dict(answer)


def _send(process: subprocess.Popen[str], message: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def test_a_server_that_cannot_start_is_told_with_its_stderr(tmp_path: Path) -> None:
    server = [sys.executable, "-c", "import sys; sys.exit('no such database')"]
    done = subprocess.run(
        recorder(server, tmp_path / "cassette.jsonl"),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1
    assert "no such database" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "cassette.jsonl").exists()


async def test_secrets_of_the_servers_environment_are_in_no_cassette(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    node, entry = node_command("server-everything")
    env = {"SHOP_TOKEN": "tok-4417-abc-secret", "QUOTED": 'pass "with" quotes'}
    config.write_text(json.dumps({"mcpServers": {"all": {"command": node, "args": [entry], "env": env}}}))
    cassette = tmp_path / "cassette.jsonl"
    command = [sys.executable, "-m", "toolbake", "record", str(config), "--to", str(cassette)]
    said = 'the key is tok-4417-abc-secret, {"password": "hunter2"}, pass "with" quotes'
    ((environment, echoed),) = await play(command, [("get-env", {}), ("echo", {"message": said})])
    assert "tok-4417-abc-secret" in environment.text, "the client itself is told the truth"
    assert "hunter2" in echoed.text
    text = cassette.read_text()
    for secret in ("tok-4417-abc-secret", "hunter2", "with"):
        assert secret not in re.sub(r'"tools":\[.*\]', "", text), secret


async def test_what_the_user_says_of_tools_is_recorded_and_a_server_agrees_with_itself(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(ADDING)
    config, cassette = tmp_path / "mcp.json", tmp_path / "cassette.jsonl"
    command = [sys.executable, "-m", "toolbake", "record", str(config), "--to", str(cassette)]
    for options in ({}, {"read_only": ["a*"]}):  # in the same file, when it was found out
        server = {"command": sys.executable, "args": [str(tmp_path / "server.py")], "toolbake": options}
        config.write_text(json.dumps({"mcpServers": {"adding": server}}))
        await play(command, [("add", {"a": 1, "b": 2})])
    found = Cassette.read(cassette)
    assert [tool.annotations.read_only for tool in found.header.tools] == [True]
    assert len(found.sessions) == 2
    twin = RecordedTwin(cassette)
    assert (twin.call_now("add", {"a": 1, "b": 2}).structured, twin.state()["changes"]) == ({"result": 3}, {})
    assert twin.report()["counted_as_changes"] == []
    async with mcp_bridge.connect(config, connect_timeout_s=60) as toolset:
        report = await compare(cassette, toolset)
    assert report.agrees, report.to_markdown()


async def test_a_cassette_is_no_state_that_worlds_of_a_recorder_share(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "server.py").write_text(ADDING)
    command = recorder([sys.executable, str(tmp_path / "server.py")], tmp_path / "cassette.jsonl")
    await play(command, [("add", {"a": 1, "b": 2})] * 2, [("add", {"a": 1, "b": 2})])
    assert len(Cassette.read(tmp_path / "cassette.jsonl").calls) == 3
    assert "may share" not in caplog.text


async def test_worlds_of_a_server_that_keeps_them_apart_are_sessions_with_their_setups(tmp_path: Path) -> None:
    cassette = tmp_path / "desk.jsonl"
    command = recorder([sys.executable, "-m", "sandboxes.helpdesk"], cassette)
    setups = [{"seed": 3}, {"seed": 4}]
    lived = {}
    async with mcp_bridge.connect(command, connect_timeout_s=60) as toolset:
        for setup in setups:
            async with toolset.open_world("w", setup) as world:  # the second has the name of the first
                state = await world.state()
                assert state is not None
                order_id = next(iter(state["orders"]))
                lived[setup["seed"]] = (order_id, (await world.call("get_order", {"order_id": order_id})).text)
    found = Cassette.read(cassette)
    assert [dict(session.setup) for session in found.sessions] == setups
    assert {tool.name for tool in found.header.tools} == {tool.name for tool in Helpdesk().tools}, "no control tools"
    twin = RecordedTwin(cassette)
    for setup in setups:
        async with twin.open_world("w", setup) as world:
            order_id, text = lived[setup["seed"]]
            assert (await world.call("get_order", {"order_id": order_id})).text == text
    assert (await compare(cassette, Helpdesk())).agreement == 1.0


async def test_a_call_that_the_client_gave_up_is_recorded_as_one_without_an_answer(tmp_path: Path) -> None:
    cassette = tmp_path / "cassette.jsonl"
    command = recorder(node_command("server-everything"), cassette)
    async with mcp_bridge.connect(command, connect_timeout_s=60) as toolset:
        with pytest.raises(mcp_bridge.CallTimeout):
            await toolset.call("trigger-long-running-operation", {"duration": 60, "steps": 1}, timeout_s=0.5)
        assert (await toolset.call("echo", {"message": "still here"})).text == "Echo: still here"
    calls = sorted(Cassette.read(cassette).calls, key=lambda call: call.order)
    assert [call.tool for call in calls] == ["trigger-long-running-operation", "echo"]
    assert calls[0].failure is not None


DYING = """
import os, anyio, mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

async def list_tools(context, params):
    names = ("live", "refuse", "die")
    return types.ListToolsResult(tools=[types.Tool(name=n, input_schema={"type": "object"}) for n in names])

async def call_tool(context, params):
    if params.name == "die":
        os._exit(7)
    if params.name == "refuse":
        raise MCPError(types.INTERNAL_ERROR, "there is no such table")
    return types.CallToolResult(content=[types.TextContent(text="alive")])

async def main():
    server = Server("dying", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


async def test_a_server_that_dies_under_the_recorder_fails_for_the_client_and_in_the_cassette(tmp_path: Path) -> None:
    script, cassette = tmp_path / "dying.py", tmp_path / "cassette.jsonl"
    script.write_text(DYING)
    command = recorder([sys.executable, str(script)], cassette)
    async with mcp_bridge.connect(command, connect_timeout_s=60) as toolset:
        assert (await toolset.call("live", {})).text == "alive"
        refused = await toolset.call("refuse", {})
        assert (refused.text, refused.error_kind) == ("there is no such table", "tool_error")
        with pytest.raises(mcp_bridge.ToolFailure):
            await toolset.call("die", {})
    calls = Cassette.read(cassette).calls
    failed = [(call.tool, call.failure is not None) for call in calls]
    assert failed == [("live", False), ("refuse", False), ("die", True)]
    twin = RecordedTwin(cassette)
    assert twin.call_now("live", {}).text == "alive"
    assert (twin.call_now("refuse", {}).text, twin.report()["recorded_failures"]) == (refused.text, 1)


def test_the_recorder_of_a_server_that_died_ends_with_one_message_and_status_1(tmp_path: Path) -> None:
    script, cassette = tmp_path / "dying.py", tmp_path / "cassette.jsonl"
    script.write_text(DYING)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(recorder([sys.executable, str(script)], cassette), text=True, **pipes) as process:
        _shake_hands(process)
        answers = [_answer(process, number, {"name": name}) for number, name in enumerate(("live", "die", "live"), 2)]
        _, told = process.communicate()
    assert ["error" in one for one in answers] == [False, True, True]
    assert "the session is over" in answers[2]["error"]["message"]
    assert [line.split(" ")[0] for line in told.splitlines()] == ["recording", "recorded", "error:"], told
    assert "the session is over" in told
    assert f"{cassette} has what was recorded until then." in told
    assert process.returncode == 1
    assert [call.tool for call in Cassette.read(cassette).calls] == ["live", "die", "live"]


@pytest.mark.parametrize("place", ["file", "folder"])
def test_what_cannot_be_written_costs_the_client_no_answer_and_the_recorder_ends_with_status_1(
    tmp_path: Path, place: str
) -> None:
    script, folder = tmp_path / "dying.py", tmp_path / "tapes"
    cassette = folder / "cassette.jsonl"
    gone, aside = (cassette if place == "file" else folder), tmp_path / "aside"
    script.write_text(DYING)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(recorder([sys.executable, str(script)], cassette), text=True, **pipes) as process:
        _shake_hands(process)
        answers = [_answer(process, 2, {"name": "live"})]
        gone.rename(aside)
        if place == "file":
            cassette.mkdir()
        answers += [_answer(process, number, {"name": name}) for number, name in ((3, "live"), (4, "refuse"))]
        if place == "file":
            cassette.rmdir()
        assert not gone.exists()
        aside.rename(gone)
        answers.append(_answer(process, 5, {"name": "live"}))
        _, told = process.communicate()
    assert [one.get("error", {}).get("message", "") for one in answers] == ["", "", "there is no such table", ""]
    (session,) = Cassette.read(cassette).sessions
    assert (len(session.calls), session.gaps) == (2, [(1, 2)])
    assert "recorded 2 calls; 2 calls were made and are not in the cassette;" in told
    assert told.count("cannot be written") == 2, told  # when it began, and at the end
    assert "record the sessions again" in told.splitlines()[-1]
    assert process.returncode == 1


async def test_a_rollout_is_recorded_from_python_and_failures_too(tmp_path: Path) -> None:
    def divide(left: int, right: int) -> str:
        """Divide."""
        if right == 0:
            raise mcp_bridge.ToolFailure("the calculator is on fire")
        return str(left // right)

    async with mcp_bridge.connect(divide) as toolset:
        recording = record(toolset, tmp_path / "divide.jsonl")
        async with recording.open_world("one") as world:
            assert (await world.call("divide", {"left": 6, "right": 3})).text == "2"
            with pytest.raises(mcp_bridge.ToolFailure):
                await world.call("divide", {"left": 6, "right": 0})
    calls = Cassette.read(tmp_path / "divide.jsonl").calls
    assert [call.order for call in calls] == [0, 1]
    assert calls[1].failure is not None
    assert calls[1].failure.text == "the calculator is on fire"

    twin = RecordedTwin(tmp_path / "divide.jsonl")
    assert twin.call_now("divide", {"left": 6, "right": 3}).text == "2"
    with pytest.raises(NotRecorded):
        twin.call_now("divide", {"left": 6, "right": 0})
    assert twin.report()["recorded_failures"] == 1
    report = await compare(tmp_path / "divide.jsonl", RecordedTwin(tmp_path / "divide.jsonl"))
    assert report.agrees
    assert report.tools[0].without_answer == 1


async def test_a_fork_of_a_recorded_world_is_a_session_that_begins_with_its_past(tmp_path: Path) -> None:
    path = tmp_path / "desk.jsonl"
    orders = Helpdesk().state()["orders"]
    first, second, third = [key for key, row in orders.items() if row["status"] == "processing"][:3]
    recording = record(Helpdesk(), path)
    async with recording.open_world("one", {"seed": 0}) as world:
        await world.call("cancel_order", {"order_id": first})
        copied = await world.fork()
        await world.call("cancel_order", {"order_id": second})
        async with copied.open("two") as fork:
            await fork.call("cancel_order", {"order_id": third})
        await copied.aclose()
    sessions = Cassette.read(path).sessions
    told = [[(call.order, call.arguments["order_id"]) for call in session.calls] for session in sessions]
    assert told == [[(0, first), (1, second)], [(0, first), (1, third)]]
    assert [dict(session.setup) for session in sessions] == [{"seed": 0}, {"seed": 0}]
    assert (await compare(path, Helpdesk())).agrees


async def test_a_cassette_of_other_tools_is_not_gone_on_with(tmp_path: Path) -> None:
    def one(text: str) -> str:
        return text

    def two(text: str) -> str:
        return text

    async with mcp_bridge.connect(one) as first, mcp_bridge.connect(two) as second:
        record(first, tmp_path / "cassette.jsonl")
        with pytest.raises(SourceError, match="other tools"):
            record(second, tmp_path / "cassette.jsonl")


async def test_many_recorders_of_one_file_do_not_mix_their_lines(tmp_path: Path) -> None:
    def echo(text: str) -> str:
        """Say it again."""
        return text

    async with mcp_bridge.connect(echo) as toolset:
        recordings = [record(toolset, tmp_path / "cassette.jsonl") for _ in range(4)]

        async def use(number: int) -> None:
            async with recordings[number % 4].open_world(f"w{number}") as world:
                for turn in range(5):
                    await world.call("echo", {"text": f"{number}/{turn}" * 500})

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(use, number)
    found = Cassette.read(tmp_path / "cassette.jsonl")
    assert len(found.sessions) == 12
    assert all([call.order for call in session.calls] == [*range(5)] for session in found.sessions)
    assert os.stat(tmp_path / "cassette.jsonl").st_mode & 0o077 == 0, "only its owner may read it"
