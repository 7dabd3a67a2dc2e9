"""Servers of every revision of MCP, each on the release of the SDK that speaks it, in an environment of its own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from listening_servers import listening, serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import mcp_bridge
from mcp_bridge import SourceError
from mcp_bridge.sessions import session

Release = Callable[..., list[str]]
LONG_S = 60.0
"""For starts on a machine that others use too."""
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]


def config(entry: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"mcpServers": {"orders": {**entry, "toolbake": options}}}


def of_command(command: list[str], **options: Any) -> dict[str, Any]:
    return config({"command": command[0], "args": command[1:]}, **options)


def count(folder: Path) -> int:
    return len(list(folder.iterdir()))


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    """A folder in which a server leaves a file for each start; its path makes the command one never seen before."""
    folder = tmp_path / "starts"
    folder.mkdir()
    return folder


async def is_spoken_to(command: list[str], newest: str) -> None:
    async with mcp_bridge.connect(command, connect_timeout_s=LONG_S) as toolset:
        assert [server.protocol for server in toolset.servers] == [newest]
        assert toolset.servers[0].name == "any-release"
        assert (await toolset.call("add", {"a": 2, "b": 3})).text == "5"


async def test_a_server_that_stops_at_the_newest_question_is_started_again_once_and_then_known(
    release: Release, starts: Path
) -> None:
    command = release("1.3", "--starts", str(starts))
    await is_spoken_to(command, "2024-11-05")
    assert count(starts) == 2
    await is_spoken_to(command, "2024-11-05")
    assert count(starts) == 3


async def test_a_revision_that_was_asked_for_once_is_not_what_the_server_is_met_in_later(
    release: Release, starts: Path
) -> None:
    command = release("2.3", "--starts", str(starts))
    old = of_command(command, protocol="2025-11-25")
    async with mcp_bridge.connect(old, connect_timeout_s=LONG_S) as toolset:
        assert toolset.servers[0].protocol == "2025-11-25"
    await is_spoken_to(command, "2026-07-28")


async def test_a_server_that_shook_hands_is_not_asked_for_the_newest_revision_again(
    release: Release, starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SILENCE_S", LONG_S)  # a slow start is not taken for an old server
    # What a release before the newest revision makes of the question is an error in its log.
    command = release("1.26", "--starts", str(starts))
    for _ in range(2):
        await is_spoken_to(command, "2025-11-25")
    assert count(starts) == 2


async def test_a_slow_server_is_not_taken_for_an_old_one(release: Release, starts: Path) -> None:
    await is_spoken_to(release("2.3", "--starts", str(starts), "--slow"), "2026-07-28")
    # The second start, in the old way, has lost.
    assert count(starts) == 2


async def test_a_server_that_computes_while_it_starts_is_started_once(
    release: Release, starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_LOOK_S", "_LONGEST_START_S"):  # it may wait for a processor, too
        monkeypatch.setattr(session, limit, LONG_S)
    await is_spoken_to(release("2.3", "--starts", str(starts), "--compute", "1"), "2026-07-28")
    assert count(starts) == 1


async def test_a_slow_server_that_can_run_only_once_is_waited_for(release: Release, starts: Path) -> None:
    await is_spoken_to(release("2.3", "--starts", str(starts), "--slow", "--alone"), "2026-07-28")
    assert count(starts) == 2


async def test_a_command_that_ends_at_once_says_so_in_both_ways(script: Callable[[str], list[str]]) -> None:
    command = script("import sys; sys.exit('no licence')")
    with pytest.raises(SourceError, match=r"ended before it answered[\s\S]*no licence"):
        async with mcp_bridge.connect(command):
            pass


async def test_a_server_that_ends_at_the_newest_question_is_started_again(script: Callable[[str], list[str]]) -> None:
    async with mcp_bridge.connect(script(ENDS_AT_DISCOVER)) as toolset:
        assert toolset.servers[0].protocol == "2025-03-26"
        assert (await toolset.call("hello", {})).text == "hello"


ENDS_AT_DISCOVER = """
import json, sys

answers = {
    "initialize": {
        "protocolVersion": "2025-03-26",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "a", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "hello"}]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answers[message["method"]]
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


SWITCHED = f"""
import os, sys

with open(os.environ["STARTS"], "a") as starts:
    starts.write("x")
if os.environ.get("OLD") or os.path.exists(os.environ["STARTS"] + ".old"):
    exec({ENDS_AT_DISCOVER!r})
    sys.exit()
sys.path.insert(0, {str(Path(__file__).parent / "servers")!r})
from by_hand import serve, tool
serve([tool("hello")], lambda *asked: "hello")
"""


async def test_how_to_begin_with_a_server_is_known_for_its_environment(
    script: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SILENCE_S", LONG_S)  # a slow start is not taken for an old server
    program, path = script(SWITCHED)
    starts = tmp_path / "starts"

    async def is_met(protocol: str, count: int, **env: str) -> None:
        starts.write_text("")
        entry = {"command": program, "args": [path], "env": {"STARTS": str(starts), **env}}
        async with mcp_bridge.connect(config(entry)) as toolset:
            assert toolset.servers[0].protocol == protocol
        assert len(starts.read_text()) == count

    await is_met("2026-07-28", 1)
    await is_met("2025-03-26", 2, OLD="1")
    await is_met("2026-07-28", 1)
    # Another server under the same command: what was known is tried, and then found out again.
    (tmp_path / "starts.old").touch()
    await is_met("2025-03-26", 3)


@pytest.mark.parametrize("revision", [REVISIONS[0], REVISIONS[-1]])
async def test_a_revision_is_spoken_where_it_is_asked_for(release: Release, revision: str) -> None:
    async with mcp_bridge.connect(of_command(release("2.3"), protocol=revision)) as toolset:
        assert toolset.servers[0].protocol == revision
        assert (await toolset.call("spoken", {})).text == revision


@pytest.mark.parametrize("revision", REVISIONS[:4])
async def test_each_revision_with_a_handshake_is_spoken_with_a_release_that_knows_no_other(
    release: Release, revision: str
) -> None:
    async with mcp_bridge.connect(of_command(release("1.26"), protocol=revision)) as toolset:
        assert toolset.servers[0].protocol == revision
        assert (await toolset.call("spoken", {})).text == revision


@pytest.mark.parametrize(
    ("sdk", "asked", "message"),
    [
        ("1.3", "2025-06-18", "speaks revision 2024-11-05 of MCP, not 2025-06-18"),
        ("1.26", "2026-07-28", "speaks an older revision of MCP, not 2026-07-28"),
    ],
)
async def test_a_revision_that_the_server_does_not_speak_is_refused(
    release: Release, sdk: str, asked: str, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        async with mcp_bridge.connect(of_command(release(sdk), protocol=asked)):
            pass


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_server_that_is_away_ends_or_refuses_is_not_taken_for_one_of_another_revision(revision: str) -> None:
    async def refuse(request: Request) -> Response:
        return Response(status_code=int(request.path_params["status"]))

    async def told(entry: dict[str, Any]) -> str:
        with pytest.raises(SourceError) as failure:
            async with mcp_bridge.connect(config(entry, protocol=revision), connect_timeout_s=LONG_S):
                pass
        return str(failure.value)

    ended = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no database')"]}
    assert "ended before it answered as an MCP server" in await told(ended)
    assert "cannot be reached (ConnectError" in await told({"url": f"http://127.0.0.1:{free_port()}/mcp"})
    with serving(Starlette(routes=[Route("/{status}", refuse, methods=["GET", "POST"])])) as port:
        assert "refused us; log in with `toolbake login" in await told({"url": f"http://127.0.0.1:{port}/401"})
        failing = await told({"url": f"http://127.0.0.1:{port}/503"})
    assert "cannot be reached" in failing
    assert "The server answered HTTP 503" in failing


async def test_an_unknown_revision_is_refused_with_the_choices() -> None:
    with pytest.raises(SourceError, match=r"toolbake\.protocol is '2023'; the choices are '2024-11-05'"):
        async with mcp_bridge.connect(of_command([sys.executable], protocol="2023")):
            pass


@pytest.fixture
def over_http(release: Release) -> Iterator[Callable[[str, str], str]]:
    """Starts a server of a release over HTTP and gives its URL."""
    import contextlib

    with contextlib.ExitStack() as stack:

        def start(sdk: str, transport: str) -> str:
            port = free_port()
            command = release(sdk, "--transport", transport, "--port", str(port))
            stack.enter_context(listening(command, "Uvicorn running on"))
            return f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"

        yield start


async def test_a_server_behind_a_url_is_spoken_to_in_its_newest_revision(
    over_http: Callable[[str, str], str],
) -> None:
    async with mcp_bridge.connect(over_http("1.26", "streamable-http")) as toolset:
        assert toolset.servers[0].protocol == "2025-11-25"
        assert (await toolset.call("add", {"a": 2, "b": 3})).text == "5"


async def test_each_revision_is_spoken_over_http_where_it_is_asked_for_and_else_the_newest(
    over_http: Callable[[str, str], str],
) -> None:
    url = over_http("2.3", "streamable-http")
    async with mcp_bridge.connect(url) as toolset:
        assert toolset.servers[0].protocol == "2026-07-28"
        assert (await toolset.call("add", {"a": 2, "b": 3})).text == "5"
    for revision in REVISIONS:
        async with mcp_bridge.connect(config({"url": url}, protocol=revision)) as toolset:
            assert toolset.servers[0].protocol == revision
            assert (await toolset.call("spoken", {})).text == revision


@pytest.mark.parametrize("sdk", ["1.3", "1.26", "2.3"])
async def test_a_server_of_the_old_http_transport_is_reached_with_and_without_being_told(
    over_http: Callable[[str, str], str], sdk: str
) -> None:
    url = over_http(sdk, "sse")
    for kind in ({"type": "sse"}, {}):
        async with mcp_bridge.connect(config({"url": url, **kind})) as toolset:
            assert (await toolset.call("add", {"a": 2, "b": 3})).text == "5"
            async with toolset.open_world("one") as one, toolset.open_world("two") as two:
                assert (await one.call("add", {"a": 1, "b": 1})).text == "2"
                assert (await two.call("add", {"a": 2, "b": 2})).text == "4"
