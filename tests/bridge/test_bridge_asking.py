"""What servers ask and tell during a call: questions to a user or a model, folders, progress, logs; cancellation."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from listening_servers import serving
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from servers import talkative as talkative_server

import mcp_bridge
from mcp_bridge import Elicitation, Handlers, LogEntry, Progress, Sampling, SourceError, ToolFailure

TALKATIVE = [sys.executable, str(Path(__file__).parent / "servers" / "talkative.py")]
ERAS = ["2025-11-25", "2026-07-28"]
LONG = 60

# Of the server, which is in this process.
pytestmark = pytest.mark.filterwarnings("ignore:.* deprecated as of 2026-07-28:mcp.MCPDeprecationWarning")


def over_stdio(protocol: str, *arguments: str) -> dict[str, Any]:
    command, *args = [*TALKATIVE, *arguments]
    return {"mcpServers": {"talk": {"command": command, "args": args, "toolbake": {"protocol": protocol}}}}


def of_url(url: str, protocol: str) -> dict[str, Any]:
    return {"mcpServers": {"talk": {"url": url, "toolbake": {"protocol": protocol}}}}


Talkative = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def talkative() -> Iterator[Talkative]:
    """The talkative server over HTTP, for a revision. What it tells comes to us as over stdio, which has tests of its
    own below."""
    with serving(talkative_server.app()) as port:
        yield lambda protocol: of_url(f"http://127.0.0.1:{port}/mcp", protocol)


@pytest.mark.parametrize("protocol", ERAS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_what_a_server_asks_and_tells_reaches_the_handlers(
    transport: str, protocol: str, tmp_path: Path, talkative: Talkative
) -> None:
    asked: list[Any] = []
    steps: list[float] = []
    logged: list[LogEntry] = []

    def user(question: Elicitation) -> dict[str, str]:
        asked.append(question)
        return {"colour": "blue"}

    async def model(question: Sampling) -> str:
        asked.append(question)
        return "word"

    def follow(step: Progress) -> None:
        steps.append(step.progress)

    handlers = Handlers(elicitation=user, sampling=model, roots=[tmp_path], progress=follow, log=logged.append)
    source = over_stdio(protocol) if transport == "stdio" else talkative(protocol)
    async with mcp_bridge.connect(source, handlers=handlers) as toolset:
        assert (await toolset.call("paint", {"thing": "door"})).text == "The door is blue."
        assert (await toolset.call("think", {})).text == "It said word."
        assert (await toolset.call("folders", {})).text == tmp_path.as_uri()
        assert (await toolset.call("count", {"to": 3})).text == "done"
        assert (await toolset.call("tell", {"text": "low on paint"})).text == "told"
    question, words = asked
    assert question.message == "Which colour shall the door have?"
    assert question.schema["required"] == ["colour"]
    assert question.server.startswith("talk (")
    assert (words.system_prompt, words.max_tokens) == ("Be short.", 5)
    assert words.messages[0]["content"]["text"] == "Say a word."
    assert steps == [1, 2, 3]
    assert [(one.level, one.data) for one in logged] == [("warning", "low on paint")]


async def test_the_folders_in_an_mcp_json_are_those_that_its_server_may_work_in(
    tmp_path: Path, talkative: Talkative
) -> None:
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
async def test_a_question_that_is_declined_is_the_tools_to_answer(protocol: str, talkative: Talkative) -> None:
    handlers = Handlers(elicitation=lambda question: None)
    async with mcp_bridge.connect(talkative(protocol), handlers=handlers) as toolset:
        declined = await toolset.call("paint", {"thing": "door"})
        assert declined.error_kind == "tool_error"
        assert "decline" in declined.text


@pytest.mark.parametrize("protocol", ERAS)
@pytest.mark.parametrize(("tool", "arguments"), [("paint", {"thing": "door"}), ("think", {}), ("folders", {})])
async def test_a_question_that_nobody_answers_is_an_error_that_the_policy_reads(
    protocol: str, tool: str, arguments: dict[str, str], talkative: Talkative
) -> None:
    async with mcp_bridge.connect(talkative(protocol)) as toolset:
        refused = await toolset.call(tool, arguments)
        assert refused.error_kind == "tool_error"
        assert refused.text
        assert (await toolset.call("count", {"to": 1})).text == "done"


def rude() -> Server[Any]:
    """Unlike the SDK's own helpers, it does not look first at what the client can do."""
    form = {"type": "object", "properties": {"colour": {"type": "string"}}}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="ask", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> Any:
        question = types.ElicitRequestFormParams(message="Which colour?", requested_schema=form)
        if context.protocol_version >= "2026":
            return types.InputRequiredResult(input_requests={"colour": types.ElicitRequest(params=question)})
        return await context.session.send_request(types.ElicitRequest(params=question), types.ElicitResult)

    return Server("rude", on_list_tools=list_tools, on_call_tool=call_tool)


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_server_that_asks_without_being_allowed_to_is_told_what_was_refused(protocol: str) -> None:
    with serving(rude().streamable_http_app()) as port:
        async with mcp_bridge.connect(of_url(f"http://127.0.0.1:{port}/mcp", protocol)) as toolset:
            refused = await toolset.call("ask", {})
    assert refused.error_kind == "tool_error"
    assert "The tool asked the user: 'Which colour?'. This was refused: nobody answers servers here." in refused.text


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_handler_that_raises_leaves_the_rollout_unscored(protocol: str, talkative: Talkative) -> None:
    def broken(question: Elicitation) -> dict[str, str]:
        raise ValueError("no user is there")

    async with mcp_bridge.connect(talkative(protocol), handlers=Handlers(elicitation=broken)) as toolset:
        with pytest.raises(ToolFailure, match=r"handlers\.elicitation failed .*ValueError: no user is there"):
            await toolset.call("paint", {"thing": "door"})
        assert (await toolset.call("count", {"to": 1})).text == "done"


async def test_a_handler_that_gives_something_else_leaves_the_rollout_unscored(talkative: Talkative) -> None:
    handlers = Handlers(sampling=lambda question: 7)  # type: ignore[arg-type, return-value]
    async with mcp_bridge.connect(talkative("2025-11-25"), handlers=handlers) as toolset:
        with pytest.raises(ToolFailure, match=r"handlers\.sampling failed .*it returned an int; return the text"):
            await toolset.call("think", {})


def test_a_handler_that_is_no_function_is_refused() -> None:
    with pytest.raises(SourceError, match=r"handlers\.sampling is 'a model'; it must be a function"):
        Handlers(sampling="a model")  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ERAS)
async def test_progress_reaches_the_handler_in_its_order_with_the_call_it_is_of(
    protocol: str, talkative: Talkative
) -> None:
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


async def test_a_handler_that_fails_on_the_progress_of_one_call_costs_no_other_call_of_the_session() -> None:
    reported, others_ended = anyio.Event(), anyio.Event()
    server = MCPServer("kitchen", log_level="ERROR")

    @server.tool()
    async def bake(ctx: Context) -> str:
        """Bake a cake."""
        await ctx.report_progress(1, 2, "half")
        await others_ended.wait()
        return "baked"

    @server.tool()
    async def stir() -> str:
        """Stir."""
        return "stirred"

    def follow(_: Progress) -> None:
        anyio.from_thread.run_sync(reported.set)
        raise RuntimeError("the handler broke")

    async def baking(toolset: mcp_bridge.Toolset) -> None:
        with pytest.raises(ToolFailure, match=r"handlers\.progress failed .* the handler broke"):
            await toolset.call("bake", {})

    async with mcp_bridge.connect(server, handlers=Handlers(progress=follow)) as toolset:
        async with anyio.create_task_group() as group:
            group.start_soon(baking, toolset)
            await reported.wait()
            assert (await toolset.call("stir", {})).text == "stirred"
            others_ended.set()


def levels() -> Server[Any]:
    """Tells which level of log it was asked for."""
    level = ["none was set"]

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="level", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=level[-1])])

    async def set_level(context: Any, params: Any) -> types.EmptyResult:
        level.append(params.level)
        return types.EmptyResult()

    return Server("levels", on_list_tools=list_tools, on_call_tool=call_tool, on_set_logging_level=set_level)


async def test_a_server_is_asked_for_all_of_its_log_where_somebody_hears_it() -> None:
    for handlers, level in ((Handlers(log=lambda entry: None), "debug"), (None, "none was set")):
        with serving(levels().streamable_http_app()) as port:
            source = of_url(f"http://127.0.0.1:{port}/mcp", "2025-11-25")
            async with mcp_bridge.connect(source, handlers=handlers) as toolset:
                assert (await toolset.call("level", {})).text == level


async def test_the_servers_log_is_in_ours_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    source = over_stdio("2025-11-25")
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
    with ExitStack() as stack:
        source = over_stdio(protocol, "--notes", path)
        if over_http:
            port = stack.enter_context(serving(talkative_server.app(notes=path)))
            source = of_url(f"http://127.0.0.1:{port}/mcp", protocol)
        async with mcp_bridge.connect(source) as toolset, toolset.open_world("one") as world:
            async with anyio.create_task_group() as group:
                group.start_soon(world.call, "wait", {})
                with anyio.fail_after(LONG):
                    assert await anyio.to_thread.run_sync(next_line) == "waiting"
                    group.cancel_scope.cancel()
            with anyio.fail_after(LONG):
                assert await anyio.to_thread.run_sync(next_line) == "cancelled"
            assert (await world.call("count", {"to": 1})).text == "done"
