"""What servers ask and tell during a call: questions to a user or a model, folders, progress, logs; cancellation."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from listening_servers import free_port, listening

import mcp_bridge
from mcp_bridge import Elicitation, Handlers, LogEntry, Progress, Sampling, SourceError, ToolFailure

TALKATIVE = [sys.executable, str(Path(__file__).parent / "servers" / "talkative.py")]
ERAS = ["2025-11-25", "2026-07-28"]
LONG = 60


def talkative(protocol: str, *arguments: str) -> dict[str, Any]:
    command, *args = [*TALKATIVE, *arguments]
    return {"mcpServers": {"talk": {"command": command, "args": args, "toolbake": {"protocol": protocol}}}}


@pytest.mark.parametrize("protocol", ERAS)
async def test_questions_are_answered_by_the_handlers(protocol: str, tmp_path: Path) -> None:
    asked: list[Any] = []

    def user(question: Elicitation) -> dict[str, str]:
        asked.append(question)
        return {"colour": "blue"}

    async def model(question: Sampling) -> str:
        asked.append(question)
        return "word"

    handlers = Handlers(elicitation=user, sampling=model, roots=[tmp_path])
    async with mcp_bridge.connect(talkative(protocol), handlers=handlers) as toolset:
        assert (await toolset.call("paint", {"thing": "door"})).text == "The door is blue."
        assert (await toolset.call("think", {})).text == "It said word."
        assert (await toolset.call("folders", {})).text == tmp_path.as_uri()
    question, words = asked
    assert question.message == "Which colour shall the door have?"
    assert question.schema["required"] == ["colour"]
    assert question.server.startswith("talk (")
    assert (words.system_prompt, words.max_tokens) == ("Be short.", 5)
    assert words.messages[0]["content"]["text"] == "Say a word."


async def test_the_folders_in_an_mcp_json_are_those_that_its_server_may_work_in(tmp_path: Path) -> None:
    source = talkative("2025-11-25")
    source["mcpServers"]["talk"]["toolbake"]["roots"] = ["work", "file:///srv/shared"]
    (tmp_path / "mcp.json").write_text(json.dumps(source))
    for handlers in (None, Handlers(roots=["/elsewhere"])):
        async with mcp_bridge.connect(str(tmp_path / "mcp.json"), handlers=handlers) as toolset:
            told = (await toolset.call("folders", {})).text
        assert told == f"{(tmp_path / 'work').as_uri()} file:///srv/shared"


@pytest.mark.parametrize("option", ["isolation", "protocol", "resources", "prompts", "roots", "warm", "max_sessions"])
async def test_an_option_that_only_mcp_servers_have_a_use_for_is_refused_for_an_api(option: str) -> None:
    value = {
        "isolation": "shared",
        "protocol": "2025-11-25",
        "resources": True,
        "prompts": True,
        "roots": ["work"],
        "warm": 1,
        "max_sessions": 1,
    }[option]
    source = {"mcpServers": {"api": {"openapi": "api.json", "toolbake": {option: value}}}}
    with pytest.raises(SourceError, match=f"{option} does nothing for a live API"):
        async with mcp_bridge.connect(source):
            pass


@pytest.mark.parametrize("protocol", ERAS)
async def test_questions_of_a_server_behind_a_url_are_answered_too(protocol: str) -> None:
    port = free_port()
    steps: list[float] = []
    handlers = Handlers(
        elicitation=lambda question: {"colour": "blue"},
        sampling=lambda question: "word",
        progress=lambda one: steps.append(one.progress),
    )
    with listening([*TALKATIVE, "--http", str(port)], "Uvicorn running on"):
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "toolbake": {"protocol": protocol}}
        async with mcp_bridge.connect({"mcpServers": {"talk": entry}}, handlers=handlers) as toolset:
            assert (await toolset.call("paint", {"thing": "door"})).text == "The door is blue."
            assert (await toolset.call("think", {})).text == "It said word."
            assert (await toolset.call("count", {"to": 3})).text == "done"
    assert steps == [1, 2, 3]


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_question_that_is_declined_is_the_tools_to_answer(protocol: str) -> None:
    handlers = Handlers(elicitation=lambda question: None)
    async with mcp_bridge.connect(talkative(protocol), handlers=handlers) as toolset:
        declined = await toolset.call("paint", {"thing": "door"})
        assert declined.error_kind == "tool_error"
        assert "decline" in declined.text


@pytest.mark.parametrize("protocol", ERAS)
@pytest.mark.parametrize(("tool", "arguments"), [("paint", {"thing": "door"}), ("think", {}), ("folders", {})])
async def test_a_question_that_nobody_answers_is_an_error_that_the_policy_reads(
    protocol: str, tool: str, arguments: dict[str, str]
) -> None:
    async with mcp_bridge.connect(talkative(protocol)) as toolset:
        refused = await toolset.call(tool, arguments)
        assert refused.error_kind == "tool_error"
        assert refused.text
        assert (await toolset.call("count", {"to": 1})).text == "done"


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_server_that_asks_without_being_allowed_to_is_told_what_was_refused(
    protocol: str, script: Callable[[str], list[str]]
) -> None:
    # Unlike the SDK's own helpers, it does not look first at what the client can do.
    command = script(RUDE)
    source = {"command": command[0], "args": command[1:], "toolbake": {"protocol": protocol}}
    async with mcp_bridge.connect({"mcpServers": {"rude": source}}) as toolset:
        refused = await toolset.call("ask", {})
    assert refused.error_kind == "tool_error"
    assert "The tool asked the user: 'Which colour?'. This was refused: nobody answers servers here." in refused.text


RUDE = """
import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}

async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name="ask", input_schema={"type": "object"})])

async def call_tool(context, params):
    question = types.ElicitRequestFormParams(message="Which colour?", requested_schema=FORM)
    if context.protocol_version >= "2026":
        return types.InputRequiredResult(input_requests={"colour": types.ElicitRequest(params=question)})
    await context.session.send_request(types.ElicitRequest(params=question), types.ElicitResult)

server = Server("rude", on_list_tools=list_tools, on_call_tool=call_tool)

async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_handler_that_raises_leaves_the_rollout_unscored(protocol: str) -> None:
    def broken(question: Elicitation) -> dict[str, str]:
        raise ValueError("no user is there")

    async with mcp_bridge.connect(talkative(protocol), handlers=Handlers(elicitation=broken)) as toolset:
        with pytest.raises(ToolFailure, match=r"handlers\.elicitation failed .*ValueError: no user is there"):
            await toolset.call("paint", {"thing": "door"})
        assert (await toolset.call("count", {"to": 1})).text == "done"


async def test_a_handler_that_gives_something_else_leaves_the_rollout_unscored() -> None:
    handlers = Handlers(sampling=lambda question: 7)  # type: ignore[arg-type, return-value]
    async with mcp_bridge.connect(talkative("2025-11-25"), handlers=handlers) as toolset:
        with pytest.raises(ToolFailure, match=r"handlers\.sampling failed .*it returned a int; return the text"):
            await toolset.call("think", {})


def test_a_handler_that_is_no_function_is_refused() -> None:
    with pytest.raises(SourceError, match=r"handlers\.sampling is 'a model'; it must be a function"):
        Handlers(sampling="a model")  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ERAS)
async def test_progress_reaches_the_handler_in_its_order_with_the_call_it_is_of(protocol: str) -> None:
    heard: list[Progress] = []
    handlers = Handlers(progress=heard.append)
    async with mcp_bridge.connect(talkative(protocol), handlers=handlers) as toolset:
        assert (await toolset.call("count", {"to": 3}, call_id="call-7")).text == "done"
    assert [(one.progress, one.total, one.message) for one in heard] == [
        (1, 3, "at 1"),
        (2, 3, "at 2"),
        (3, 3, "at 3"),
    ]
    assert {(one.tool, one.call_id) for one in heard} == {("count", "call-7")}


@pytest.mark.parametrize("protocol", ERAS)
async def test_the_servers_log_reaches_the_handler(protocol: str) -> None:
    heard: list[LogEntry] = []
    async with mcp_bridge.connect(talkative(protocol), handlers=Handlers(log=heard.append)) as toolset:
        assert (await toolset.call("tell", {"text": "low on paint"})).text == "told"
    assert [(one.level, one.data) for one in heard] == [("warning", "low on paint")]


async def test_a_server_is_asked_for_all_of_its_log_where_somebody_hears_it(script: Callable[[str], list[str]]) -> None:
    command, *args = script(LEVELS)
    source = {"mcpServers": {"levels": {"command": command, "args": args, "toolbake": {"protocol": "2025-11-25"}}}}
    async with mcp_bridge.connect(source, handlers=Handlers(log=lambda entry: None)) as toolset:
        assert (await toolset.call("level", {})).text == "debug"
    async with mcp_bridge.connect(source) as toolset:
        assert (await toolset.call("level", {})).text == "none was set"


LEVELS = """
import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

level = ["none was set"]

async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name="level", input_schema={"type": "object"})])

async def call_tool(context, params):
    return types.CallToolResult(content=[types.TextContent(text=level[-1])])

async def set_level(context, params):
    level.append(params.level)
    return types.EmptyResult()

server = Server("levels", on_list_tools=list_tools, on_call_tool=call_tool, on_set_logging_level=set_level)

async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


async def test_the_servers_log_is_in_ours_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    source = talkative("2025-11-25")
    source["mcpServers"]["talk"]["env"] = {"TOKEN": "s3cret-value"}
    caplog.set_level(logging.DEBUG, logger="mcp_bridge")
    async with mcp_bridge.connect(source) as toolset:
        await toolset.call("tell", {"text": "the token is s3cret-value"})
    told = [record.getMessage() for record in caplog.records if "logs (warning)" in record.getMessage()]
    assert told == [f"{toolset.servers[0].label} logs (warning): the token is ***"]


@pytest.fixture
def said(tmp_path: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """A FIFO for a server's notes, and a function that waits for the next line."""
    path = tmp_path / "notes"
    os.mkfifo(path)
    # For both directions: opening does not wait, and there is no end between two writers.
    with os.fdopen(os.open(path, os.O_RDWR), "r") as reading:
        yield str(path), lambda: reading.readline().strip()


@pytest.mark.parametrize("protocol", ERAS)
@pytest.mark.parametrize("over_http", [False, True])
async def test_a_cancelled_call_is_cancelled_in_the_server_and_the_session_goes_on(
    said: tuple[str, Callable[[], str]], protocol: str, over_http: bool
) -> None:
    path, next_line = said
    source = talkative(protocol, "--notes", path)
    server = None
    if over_http:
        port = free_port()
        server = listening([*TALKATIVE, "--notes", path, "--http", str(port)], "Uvicorn running on")
        server.__enter__()
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "toolbake": {"protocol": protocol}}
        source = {"mcpServers": {"talk": entry}}
    try:
        async with mcp_bridge.connect(source) as toolset, toolset.open_world("one") as world:
            async with anyio.create_task_group() as group:
                group.start_soon(world.call, "wait", {})
                with anyio.fail_after(LONG):
                    assert await anyio.to_thread.run_sync(next_line) == "waiting"
                    group.cancel_scope.cancel()
            with anyio.fail_after(LONG):
                assert await anyio.to_thread.run_sync(next_line) == "cancelled"
            assert (await world.call("count", {"to": 1})).text == "done"
    finally:
        if server is not None:
            server.__exit__(None, None, None)
