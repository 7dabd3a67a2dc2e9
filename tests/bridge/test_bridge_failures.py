"""What breaks costs the call at most: dead and restarted servers, hung and crashed children, answers without end."""

import contextlib
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listening_servers import ServerProcess
from servers import failing

import mcp_bridge
from mcp_bridge import CallTimeout, OutcomeUnknown, ServerDied, ToolFailure
from mcp_bridge.sessions import server_source
from mcp_bridge.sessions.messages import EventSplitter, LineSplitter, LongLine

BREAKING = [sys.executable, str(Path(__file__).parent / "servers" / "breaking.py")]


@pytest.fixture
def http_failing() -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def start(**options: bool) -> ServerProcess:
        started.append(ServerProcess(failing.app, **options))
        return started[-1]

    yield start
    for server in started:
        server.kill()


def with_options(source: Any, **options: Any) -> dict[str, Any]:
    entry = {"url": source} if isinstance(source, str) else {"command": source[0], "args": source[1:]}
    return {"mcpServers": {"failing": {**entry, "toolbake": options}}}


@pytest.mark.parametrize("json", [False, True])
async def test_an_answer_that_is_cut_costs_its_call_and_no_other_of_the_session(
    http_failing: Callable[..., ServerProcess], json: bool
) -> None:
    async with mcp_bridge.connect(http_failing(json=json).url) as toolset, toolset.open_world("one") as world:
        ended: list[BaseException] = []

        async def wait() -> None:
            try:
                await world.call("hang", {})
            except BaseException as error:
                ended.append(error)
                raise

        async with anyio.create_task_group() as others:
            others.start_soon(wait)
            assert (await world.call("echo", {})).text == "1"
            with pytest.raises(OutcomeUnknown, match="'cut' took effect is unknown"):
                await world.call("cut", {})
            assert (await world.call("echo", {})).text == "2"
            assert not ended, "the call in flight was lost with the other one"
            others.cancel_scope.cancel()


async def test_a_server_of_the_newest_revision_that_restarts_loses_no_world(
    http_failing: Callable[..., ServerProcess],
) -> None:
    server = http_failing()
    async with mcp_bridge.connect(server.url) as toolset, toolset.open_world("one") as world:
        first = (await world.call("pid", {})).text
        await anyio.to_thread.run_sync(server.kill)
        async with anyio.create_task_group() as group:
            # Begun while nobody listens, and answered when somebody does: nothing was sent before.
            group.start_soon(anyio.to_thread.run_sync, server.start)
            assert (await world.call("echo", {})).text == "1"
        assert (await world.call("pid", {})).text != first


async def test_a_handshake_server_that_restarts_costs_the_worlds_that_it_held_something_for(
    http_failing: Callable[..., ServerProcess],
) -> None:
    server = http_failing(handshake=True)
    async with mcp_bridge.connect(server.url) as toolset:
        async with toolset.open_world("changed") as changed, toolset.open_world("read") as read:
            await changed.call("echo", {})
            await read.call("read", {})
            await anyio.to_thread.run_sync(server.restart)
            # Only reading was done here, so a new session holds all that the old one did.
            assert not (await read.call("read", {})).is_error
            assert (await read.call("echo", {})).text == "1"
            with pytest.raises(ServerDied, match="session") as raised:
                await changed.call("echo", {})
            assert (raised.value.delivery, raised.value.world_lost) == ("refused", True)
            with pytest.raises(ServerDied, match=r"'changed' in .* is lost") as raised:
                await changed.call("read", {})
            assert (raised.value.delivery, raised.value.world_lost) == ("not_sent", True)
        async with toolset.open_world("new") as world:
            assert (await world.call("echo", {})).text == "2"


async def test_a_handshake_server_whose_session_is_shared_is_greeted_again_after_a_restart(
    http_failing: Callable[..., ServerProcess],
) -> None:
    server = http_failing(handshake=True)
    async with mcp_bridge.connect(with_options(server.url, isolation="shared")) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            assert (await one.call("echo", {})).text == "1"
            await anyio.to_thread.run_sync(server.restart)
            assert (await one.call("echo", {})).text == "1"
            assert (await two.call("echo", {})).text == "2"


async def test_a_server_that_stays_away_fails_the_call_before_it_is_sent(
    http_failing: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_source, "_LONGEST_RESTART_S", 0.2)
    server = http_failing()
    async with mcp_bridge.connect(with_options(server.url, retries=0)) as toolset:
        async with toolset.open_world("one") as world:
            await world.call("echo", {})
            server.kill()
            # What is written to a connection that was kept open may have been read before the end.
            with pytest.raises(ToolFailure):
                await world.call("echo", {})
            with pytest.raises(ServerDied, match="does not answer") as raised:
                await world.call("echo", {})
            assert raised.value.delivery == "not_sent"


async def test_a_crashed_child_shows_its_stderr_and_its_world_is_lost() -> None:
    async with mcp_bridge.connect(BREAKING) as toolset:
        async with toolset.open_world("one") as world, toolset.open_world("two") as other:
            await world.call("echo", {})
            with pytest.raises(OutcomeUnknown, match="the disk is full") as raised:
                await world.call("die", {})
            assert raised.value.world_lost
            with pytest.raises(ServerDied, match=r"'one' in .* is lost(.|\n)*the disk is full"):
                await world.call("read", {})
            assert (await other.call("echo", {})).text == "1"


async def test_a_child_that_died_before_anything_happened_is_replaced_in_its_world() -> None:
    import psutil

    async with mcp_bridge.connect(BREAKING) as toolset, toolset.open_world("one") as world:
        first = int((await world.call("pid", {})).text)
        process = psutil.Process(first)
        process.kill()
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        second = int((await world.call("pid", {})).text)
        assert second != first
        assert (await world.call("echo", {})).text == "1"


async def test_a_process_of_many_worlds_that_crashes_loses_those_where_something_had_happened(
    controlled_notes: list[str],
) -> None:
    async with mcp_bridge.connect(controlled_notes) as toolset, contextlib.AsyncExitStack() as stack:
        names = ("changed", "given up", "read", "untouched")
        worlds = {name: await stack.enter_async_context(toolset.open_world(name, {"notes": [name]})) for name in names}
        await worlds["changed"].call("add_note", {"text": "more"})
        await worlds["read"].call("list_notes", {})
        with pytest.raises(CallTimeout):
            await worlds["given up"].call("hang", {}, timeout_s=0.2)
        # The server goes on, and so do the worlds.
        assert (await worlds["given up"].call("list_notes", {})).structured == {"notes": ["given up"]}
        with pytest.raises(OutcomeUnknown, match="boom"):
            await worlds["changed"].call("crash", {})
        for name in ("changed", "given up"):
            with pytest.raises(ServerDied, match=f"'{name}' in .* is lost: the server does not know it any more"):
                await worlds[name].call("list_notes", {})
        for name in ("read", "untouched"):
            assert (await worlds[name].call("list_notes", {})).structured == {"notes": [name]}
            assert (await worlds[name].call("add_note", {"text": "more"})).text == "noted, 2 in all"
        await stack.aclose()
        async with toolset.open_world("new", {"notes": ["fresh"]}) as world:
            assert await world.state() == {"notes": ["fresh"], "worlds_open": 1}


def helpdesk() -> Any:
    from mcp_bridge import publish
    from sandboxes.helpdesk import Helpdesk

    return publish(Helpdesk(), control=True).streamable_http_app()


async def test_a_server_of_many_worlds_behind_a_url_that_restarts_loses_those_where_something_had_happened() -> None:
    server = ServerProcess(helpdesk)
    try:
        async with mcp_bridge.connect(server.url) as toolset:
            async with (
                toolset.open_world("changed", {"seed": 1}) as changed,
                toolset.open_world("read", {"seed": 2}) as read,
            ):
                order = {"customer_id": "C-1", "product": "lamp", "quantity": 1}
                await changed.call("place_order", order)
                before = await read.state()
                await read.call("get_policy", {"topic": "returns"})
                await anyio.to_thread.run_sync(server.restart)
                assert not (await read.call("get_policy", {"topic": "returns"})).is_error
                assert await read.state() == before
                with pytest.raises(ToolFailure, match="'changed'"):
                    await changed.call("get_policy", {"topic": "returns"})
    finally:
        server.kill()


async def test_a_hung_child_costs_its_call_then_its_world_and_is_killed(running: Callable[[int], bool]) -> None:
    async with mcp_bridge.connect(BREAKING) as toolset:
        async with toolset.open_world("one") as world:
            pid = int((await world.call("pid", {})).text)
            await world.call("echo", {})
            with pytest.raises(CallTimeout):
                await world.call("freeze", {}, timeout_s=0.5)
            with pytest.raises(ServerDied, match=r"did not answer: TimeoutError: no answer within 1 s"):
                await world.call("echo", {}, timeout_s=2)
        assert not running(pid)
        async with toolset.open_world("two") as world:
            assert (await world.call("echo", {})).text == "1"


FROZEN_WORLDS = f"""
import sys, time
sys.path.append({str(Path(__file__).parent / "servers")!r})
from by_hand import serve, tool

def call(name, arguments, meta):
    if name == "freeze":
        time.sleep(3600)
    return "{{}}"

serve([tool("echo"), tool("freeze"), *({{**tool(name), "_meta": {{"toolbake/control": name}}}}
       for name in ("open_world", "world_state", "close_world"))], call)
"""


async def test_a_server_of_all_worlds_that_hangs_is_replaced_for_the_next_world() -> None:
    async with mcp_bridge.connect([sys.executable, "-c", FROZEN_WORLDS], call_timeout_s=2) as toolset:
        with contextlib.suppress(ToolFailure):
            async with toolset.open_world("one") as world:
                await world.call("freeze", {}, timeout_s=0.5)
        async with toolset.open_world("two") as world:
            assert (await world.call("echo", {})).text == "{}"


async def test_a_call_that_was_given_up_leaves_a_server_that_still_answers_in_its_place() -> None:
    async with mcp_bridge.connect(BREAKING) as toolset, toolset.open_world("one") as world:
        await world.call("echo", {})
        with pytest.raises(CallTimeout):
            await world.call("hang", {}, timeout_s=0.2)
        assert (await world.call("echo", {})).text == "2"


async def test_an_answer_of_20_mb_over_stdio_costs_its_call_and_little_time_or_memory() -> None:
    async with mcp_bridge.connect(BREAKING) as toolset, toolset.open_world("one") as world:
        await world.call("echo", {})
        peak_kb, cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        result = await world.call("big", {"megabytes": 20})
        assert result.is_error
        assert "The answer has 20.0 MB, more than the 8 MB that are read (max_answer_mb" in result.text
        assert time.process_time() - cpu_s < 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb < 60_000
        assert (await world.call("echo", {})).text == "2"


@pytest.mark.parametrize(("form", "size"), [("handshake", "more than 8 MB"), ("json", "20.0 MB")])
async def test_an_answer_of_20_mb_over_http_costs_its_call(
    http_failing: Callable[..., ServerProcess], form: str, size: str
) -> None:
    async with mcp_bridge.connect(http_failing(**{form: True}).url) as toolset, toolset.open_world("one") as world:
        result = await world.call("big", {"megabytes": 20})
        assert result.is_error
        assert f"The answer has {size}" in result.text
        assert (await world.call("echo", {})).text == "1"


@pytest.mark.parametrize("over_http", [False, True])
async def test_an_answer_below_the_limit_is_read_whole(
    http_failing: Callable[..., ServerProcess], over_http: bool
) -> None:
    source = http_failing().url if over_http else BREAKING
    async with mcp_bridge.connect(with_options(source, max_answer_mb=5.0), max_result_chars=10**8) as toolset:
        assert len((await toolset.call("big", {"megabytes": 4.9})).text) == 4_900_000
        assert (await toolset.call("big", {"megabytes": 5.1})).is_error


async def test_a_line_without_an_end_ends_the_session_and_says_why() -> None:
    async with mcp_bridge.connect(with_options(BREAKING, max_answer_mb=1.0)) as toolset:
        async with toolset.open_world("one") as world, toolset.open_world("two") as other:
            with pytest.raises(ToolFailure, match=r"(?i)a line of more than 16\.\d MB came on stdout"):
                await world.call("noise", {})
            assert (await other.call("echo", {})).text == "1"


IDS = st.integers(0, 10**9)
TEXTS = st.text(max_size=40)


@given(st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b" "))), st.data())
def test_lines_are_the_same_however_they_are_cut_into_chunks(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    splitter = LineSplitter(30)
    found: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found.extend(splitter.feed(whole[start:end]))
    assert len(found) == len(lines)
    for line, one in zip(lines, found, strict=True):
        if len(line) <= 30:
            assert one == line
        else:
            assert (one.size, one.ended) == (len(line), True)
            assert line.startswith(one.head)
            assert len(one.head) > 30
            assert line == one.tail


@given(
    st.lists(st.lists(st.binary(max_size=40).map(lambda data: re.sub(rb"[\r\n]", b"", data)), max_size=3), max_size=4),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
def test_events_are_the_same_however_they_are_cut_into_chunks(
    events: list[list[bytes]], end: bytes, data: st.DataObject
) -> None:
    lines = [b"event: it" + end + b"".join(b"data: " + one + end for one in event) + end for event in events]
    whole = b": hello" + end + b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    splitter = EventSplitter(30)
    found: list[Any] = []
    for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found.extend(splitter.feed(whole[start:stop]))
    told = [b"\n".join(event) for event in events if event]
    assert len(found) == len(told)
    for text, (kind, one) in zip(told, found, strict=True):
        assert kind == "it"
        assert one == text if not isinstance(one, LongLine) else len(text) > 24 and text.startswith(one.head)


@pytest.mark.parametrize(
    ("lines", "answered"),
    [
        (['{"id": 7, "result": {"a": "%s"}}'], 7),
        (['{"result": {"a": "%s"}, "id": 7}'], 7),
        (['{"id": 7, "result":', '{"a": "%s"}}'], 7),
        # What looks like an answer is inside another message.
        (['{"method": "m", "params": [', '{"id": 7, "result": "%s"}', "]}"], None),
        (['{"result": ["%s", {"a": 1', ', "id": 7}', "]}"], None),
    ],
)
def test_a_long_event_answers_the_request_that_is_its_own(lines: list[str], answered: int | None) -> None:
    body = "".join(f"data: {line}\n" for line in lines) + "\n"
    (found,) = EventSplitter(5000).feed(body.replace("%s", "x" * 9000).encode())
    assert isinstance(found[1], LongLine)
    assert found[1].answers() == answered


@given(st.dictionaries(st.sampled_from(["jsonrpc", "id", "result", "error", "method", "params", "x"]), st.nothing()))
def test_nothing_is_no_answer(message: dict[str, Any]) -> None:
    assert LongLine(2, True, b"{}", b"{}").answers() is None


JSON = st.recursive(
    st.none() | st.integers() | TEXTS | st.just('","id":7,"result":'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "result", "x"]) | TEXTS, inner),
    max_leaves=8,
)


@given(st.permutations(["jsonrpc", "id", "body"]), IDS, st.sampled_from(["result", "error", "params"]), JSON)
def test_the_id_of_an_answer_that_is_too_long_is_its_own_or_not_told(
    order: list[str], number: int, body: str, inner: Any
) -> None:
    import json

    members = {
        "jsonrpc": ("jsonrpc", "2.0"),
        "id": ("id", number),
        "body": (body, {"id": 5, "inner": inner, "z": "y" * 9000}),
    }
    line = json.dumps(dict(members[one] for one in order)).encode()
    told = LongLine(len(line), True, line[:4096], line[-4096:]).answers()
    assert told in (None, number)
    if body != "params" and order != ["jsonrpc", "body", "id"]:
        answers_first = order in (["jsonrpc", "id", "body"], ["id", "body", "jsonrpc"])
        assert told == number or not answers_first
    if body == "params":
        assert told is None
