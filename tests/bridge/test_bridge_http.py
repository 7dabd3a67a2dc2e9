"""Servers behind a URL: a real uvicorn in a thread, and in another process where a test kills it."""

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from listening_servers import ServerProcess
from servers import notes as notes_server

import mcp_bridge
from mcp_bridge import ServerDied, SourceError
from mcp_bridge.sessions import server_source

Start = Callable[..., str]


@pytest.fixture
def notes_process() -> Iterator[ServerProcess]:
    process = ServerProcess(notes_server.app)
    yield process
    process.kill()


async def test_a_call_over_http_returns_text_and_structured_content(notes_url: Start) -> None:
    async with mcp_bridge.connect(notes_url()) as toolset:
        assert (await toolset.call("add_note", {"text": "milk"})).text == "noted, 1 in all"
        assert (await toolset.call("list_notes", {})).structured == {"notes": ["milk"]}


async def test_eight_calls_over_one_http_session_are_in_flight_together(notes_url: Start) -> None:
    async with mcp_bridge.connect(notes_url()) as toolset:
        met: list[str] = []

        async def meet() -> None:
            met.append((await toolset.call("meet", {"count": 8})).text)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(meet)
        assert met == ["met 8"] * 8


async def test_thirty_worlds_over_http_share_no_state_where_the_server_keeps_worlds(notes_url: Start) -> None:
    async with mcp_bridge.connect(notes_url(control=True)) as toolset:
        read: dict[str, Any] = {}

        async def live(name: str) -> None:
            async with toolset.open_world(name, {"notes": [name]}) as world:
                await world.call("add_note", {"text": "more"})
                read[name] = (await world.call("list_notes", {})).structured["notes"]

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(live, f"w{number}")
        assert read == {f"w{number}": [f"w{number}", "more"] for number in range(30)}


async def test_headers_reach_the_server_and_stay_out_of_reprs(
    notes_url: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = notes_url(token="s3cret-token")
    monkeypatch.setenv("BRIDGE_TEST_TOKEN", "s3cret-token")
    entry = {"url": url, "headers": {"Authorization": "Bearer ${BRIDGE_TEST_TOKEN}"}}
    async with mcp_bridge.connect({"mcpServers": {"notes": entry}}) as toolset:
        assert not (await toolset.call("list_notes", {})).is_error
        assert "s3cret" not in repr(toolset) + repr(toolset.tools) + repr(vars(toolset))


async def test_a_key_in_the_url_is_in_no_line_that_http_clients_log(
    notes_url: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with mcp_bridge.connect(f"{notes_url()}?api_key=very%20secret") as toolset:
        await toolset.call("add_note", {"text": "one"})
    assert "/mcp?***" in caplog.text
    told = [record.getMessage() for record in caplog.records if not record.name.startswith("uvicorn")]
    assert [line for line in told if "secret" in line] == []


async def test_a_server_that_refuses_the_headers_is_told_without_them(notes_url: Start) -> None:
    url = notes_url(token="the-right-one")
    entry = {"url": url, "headers": {"Authorization": "Bearer the-wrong-one"}}
    with pytest.raises(SourceError, match=r"notes \(http://127.*set the right `headers`.*HTTP 401") as raised:
        async with mcp_bridge.connect({"mcpServers": {"notes": entry}}):
            pass
    assert "the-wrong-one" not in str(raised.value)


async def test_a_url_where_nobody_listens_is_named_without_its_secrets() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(SourceError, match=rf"http://127.0.0.1:{port}/mcp cannot be reached") as raised:
            async with mcp_bridge.connect(f"http://user:passw0rd@127.0.0.1:{port}/mcp?token=t0ken-in-url"):
                pass
    assert "passw0rd" not in str(raised.value)
    assert "t0ken" not in str(raised.value)


async def test_a_url_that_is_no_mcp_endpoint_says_so(notes_url: Start) -> None:
    url = notes_url().replace("/mcp", "/elsewhere")
    with pytest.raises(SourceError, match=r"/elsewhere cannot be reached(.|\n)*HTTP 404"):
        async with mcp_bridge.connect(url):
            pass


async def test_a_url_that_accepts_and_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(SourceError, match=r"did not answer within 0\.3 s"):
            async with mcp_bridge.connect(f"http://127.0.0.1:{silent.getsockname()[1]}/mcp", connect_timeout_s=0.3):
                pass


async def test_a_server_killed_during_calls_fails_them_all_and_only_them(
    notes_process: ServerProcess, notes_url: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_source, "_LONGEST_RESTART_S", 0.2)
    url, other = notes_process.url, notes_url()
    async with mcp_bridge.connect(other) as healthy, mcp_bridge.connect(url) as toolset:
        died: list[str] = []

        async def hang() -> None:
            with pytest.raises(ServerDied) as raised:
                await toolset.call("hang", {})
            died.append(str(raised.value))

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(hang)
            # Answered by the same session while the others hang: they are in flight by now.
            assert not (await toolset.call("list_notes", {})).is_error
            await anyio.to_thread.run_sync(notes_process.kill)
        assert len(died) == 4
        with pytest.raises(ServerDied):
            await toolset.call("list_notes", {})
        assert not (await healthy.call("list_notes", {})).is_error


async def test_worlds_of_a_handshake_era_server_have_sessions_that_end_though_it_ignores_the_goodbye(
    notes_url: Start,
) -> None:
    url = notes_url(old=True)
    with anyio.fail_after(30):
        async with mcp_bridge.connect(url) as toolset:
            async with toolset.open_world("one") as one, toolset.open_world("two") as two:
                assert (await one.call("add_note", {"text": "a"})).text == "noted, 1 in all"
                assert not (await two.call("list_notes", {})).is_error


async def test_arguments_that_are_not_unicode_cost_the_call_and_not_the_session(notes_url: Start) -> None:
    async with mcp_bridge.connect(notes_url()) as toolset, toolset.open_world("one") as world:
        result = await world.call("add_note", {"text": "\ud800"})
        assert result.error_kind == "invalid_arguments"
        assert "nothing was sent" in result.text
        assert (await world.call("add_note", {"text": "milk"})).text == "noted, 1 in all"
