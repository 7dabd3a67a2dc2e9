"""`mcp_bridge.worlds`: a backend for each rollout in a server of one's own, whatever its server object is."""

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from listening_servers import serving
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from other_environments import python_of
from servers import hotel

import mcp_bridge
from mcp_bridge.control_tools import CONTROL_ENV, WORLD_META

HOTEL = str(Path(hotel.__file__))
ROOT = str(Path(__file__).parents[2])
FREE = {"rooms": {"1": {"free": True, "price": 0}, "2": {"free": True, "price": 0}}}


def command(kind: str) -> Any:
    python = str(python_of("fastmcp")) if kind == "fastmcp" else sys.executable
    entry = {"command": python, "args": [HOTEL, kind], "env": {"PYTHONPATH": ROOT}}
    return {"mcpServers": {"hotel": {**entry, "toolbake": {"connect_timeout_s": 60}}}}


@pytest.mark.parametrize("kind", ["sdk", "lowlevel", "fastmcp"])
async def test_each_rollout_has_the_backend_that_its_setup_asks_for(kind: str) -> None:
    async with mcp_bridge.connect(command(kind)) as toolset:
        assert [tool.name for tool in toolset.tools] == ["book"]
        assert [one.kind for one in toolset.worlds] == ["control"]
        async with toolset.open_world("a", {"seed": 7}) as a, toolset.open_world("b") as b:
            assert (await a.call("book", {"room": "1"})).text == "booked 1"
            assert (await b.call("book", {"room": "1"})).text == "booked 1"
            assert (await a.call("book", {"room": "1"})).is_error
            state = await a.state()
            assert state == {"rooms": {"1": {"free": False, "price": 7}, "2": {"free": True, "price": 7}}}
            copied = await a.fork()  # type: ignore[attr-defined]
            async with copied.open("c") as c:
                assert await c.state() == state
                assert (await c.call("book", {"room": "2"})).text == "booked 2"
            await copied.aclose()
            assert await a.state() == state
        with pytest.raises(mcp_bridge.SourceError, match=r"sed.*Hotel\(seed: int = 0, free: bool = True\)"):
            async with toolset.open_world("d", {"sed": 7}):
                pass


async def test_many_worlds_at_once_share_nothing_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_ENV, "1")
    server = hotel.sdk()
    with serving(server.streamable_http_app()) as port:
        async with mcp_bridge.connect(f"http://127.0.0.1:{port}/mcp") as toolset:

            async def play(number: int) -> None:
                async with toolset.open_world(f"w{number}", {"seed": number}) as world:
                    assert (await world.call("book", {"room": "1"})).text == "booked 1"
                    state = await world.state()
                    assert state is not None
                    assert state["rooms"]["1"] == {"free": False, "price": number}

            async with anyio.create_task_group() as group:
                for number in range(64):
                    group.start_soon(play, number)


async def test_other_clients_see_the_plain_tools_and_share_one_backend() -> None:
    server = hotel.sdk()
    async with Client(server) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["book"]
        assert not (await client.call_tool("book", {"room": "1"})).is_error
    async with Client(server) as other:
        assert (await other.call_tool("book", {"room": "1"})).is_error


async def test_a_backend_is_closed_with_its_world_and_makes_room_when_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONTROL_ENV, "1")
    server = MCPServer("hotel", log_level="ERROR")
    closed: list[int] = []

    async def make(seed: int) -> int:
        return seed

    async def close(seed: int) -> None:
        closed.append(seed)

    current = mcp_bridge.worlds(server, make=make, close=close, max_worlds=1)

    @server.tool()
    def read() -> int:
        return current()

    async with mcp_bridge.connect(server) as toolset:
        async with toolset.open_world("a", {"seed": 1}) as world:
            assert (await world.call("read", {})).structured == {"result": 1}
            with pytest.raises(mcp_bridge.ToolFailure, match="1 worlds are open, which is the most"):
                async with toolset.open_world("b", {"seed": 2}):
                    pass
        assert closed == [1]
        with pytest.raises(mcp_bridge.SourceError, match="missing a required argument: 'seed'"):
            async with toolset.open_world("c"):
                pass
    with pytest.raises(RuntimeError, match="ask for it inside a tool"):
        current()


async def test_an_idle_world_makes_room_but_neither_the_shared_one_nor_one_with_a_call_under_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = MCPServer("notes", log_level="ERROR")
    closed: list[list[str]] = []
    held, may_go_on = anyio.Event(), anyio.Event()

    def close(notes: list[str]) -> None:
        closed.append(notes)
        raise OSError("the disk is full")

    notes = mcp_bridge.worlds(server, make=list, close=close, control=True, idle_s=0)

    @server.tool()
    async def add(text: str, hold: bool = False) -> str:
        notes().append(text)
        if hold:
            held.set()
            await may_go_on.wait()
        return " ".join(notes())

    async with Client(server) as client:

        async def call(text: str, world: str | None = None, *, hold: bool = False) -> str:
            meta: Any = {WORLD_META: world} if world else None
            result = await client.call_tool("add", {"text": text, "hold": hold}, meta=meta)
            return str(result.content[0].text)  # type: ignore[union-attr]

        async def hold() -> None:
            assert await call("a", "busy", hold=True) == "a b"

        assert await call("shared") == "shared"
        await client.call_tool("toolbake_open_world", {"world": "busy"})
        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await held.wait()
            await client.call_tool("toolbake_open_world", {"world": "idle"})
            await call("left", "idle")
            await client.call_tool("toolbake_open_world", {"world": "new"})
            assert closed == [["left"]]
            assert await call("b", "busy") == "a b"
            may_go_on.set()
        assert await call("still") == "shared still"
    assert "the disk is full" in caplog.text


async def test_worlds_that_are_opened_at_once_are_counted_and_no_id_is_opened_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONTROL_ENV, "1")
    server = MCPServer("hotel", log_level="ERROR")
    made, may_go_on = [], anyio.Event()

    async def make() -> int:
        made.append(len(made))
        await may_go_on.wait()
        return made[-1]

    mcp_bridge.worlds(server, make=make, max_worlds=2)
    refused: list[str] = []

    async def open_world(client: Client, world: str) -> None:
        try:
            await client.call_tool("toolbake_open_world", {"world": world})
        except MCPError as error:
            refused.append(str(error))
            if len(refused) == 3:
                may_go_on.set()

    async with Client(server) as client, anyio.create_task_group() as group:
        for world in ("a", "a", "b", "c", "d"):
            group.start_soon(open_world, client, world)
    assert len(made) == 2
    assert sum("is open already" in one for one in refused) == 1
    assert sum("2 worlds are open, which is the most" in one for one in refused) == 2


def test_a_server_that_cannot_have_worlds_is_refused_by_its_kind() -> None:
    with pytest.raises(mcp_bridge.SourceError, match=r"builtins\.dict; give an MCPServer or Server"):
        mcp_bridge.worlds({}, make=hotel.Hotel)
    with pytest.raises(mcp_bridge.SourceError, match="'hotel' has worlds already"):
        hotel.given(hotel.sdk())
    with pytest.raises(
        mcp_bridge.SourceError, match=r"worlds\(make=<.*Hotel.*a Hotel cannot be called; give a function"
    ):
        mcp_bridge.worlds(MCPServer("hotel"), make=hotel.Hotel())  # type: ignore[arg-type]
    with pytest.raises(mcp_bridge.SourceError, match=r"worlds\(state=\{\}\).*such as state=Hotel.tables"):
        mcp_bridge.worlds(MCPServer("hotel"), make=hotel.Hotel, state={})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sdk", "lowlevel", "fastmcp"])
async def test_what_make_raises_reaches_the_client_with_its_type_and_text(kind: str) -> None:
    async with mcp_bridge.connect(command(kind)) as toolset:
        with pytest.raises(
            mcp_bridge.ToolFailure,
            match=r"make= of worlds raised TypeError .*'seven'.*: .*hotel.*\.py:\d+\)",
        ):
            async with toolset.open_world("a", {"seed": "seven"}):
                pass
        with pytest.raises(
            mcp_bridge.SourceError, match=r"refused the setup \{'sed': 7\}: the setup \{'sed': 7\} does "
        ):
            async with toolset.open_world("a", {"sed": 7}):
                pass
        async with toolset.open_world("b", {"seed": 1}) as world:
            assert (await world.call("book", {"room": "1"})).text == "booked 1"


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (lambda one: {}["beds"], r"state= of worlds raised KeyError: 'beds' \(.*test_server_worlds\.py:\d+\)"),
        (lambda one: [one], "state= of worlds returned a list; it must return a dict"),
        (lambda one: {"rooms": {"1": one}}, "state= of worlds returned what has no JSON form .*Hotel"),
    ],
)
async def test_a_state_that_cannot_be_told_reaches_the_client_with_its_reason(
    state: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTROL_ENV, "1")
    server = MCPServer("hotel", log_level="ERROR")
    current = mcp_bridge.worlds(server, make=hotel.Hotel, state=state)

    @server.tool()
    def book(room: str) -> str:
        return current().book(room)

    async with mcp_bridge.connect(server) as toolset, toolset.open_world("a") as world:
        with pytest.raises(mcp_bridge.ToolFailure, match=told):
            await world.state()


@pytest.mark.parametrize("kind", ["sdk", "lowlevel", "fastmcp"])
async def test_what_make_raises_breaks_a_call_of_a_client_without_worlds_in_its_own_words(kind: str) -> None:
    config = command(kind)
    config["mcpServers"]["hotel"]["env"] |= {CONTROL_ENV: "0", "HOTEL": "closed"}
    async with mcp_bridge.connect(config) as toolset:
        with pytest.raises(mcp_bridge.ToolFailure, match=r"make= of worlds raised FileNotFoundError.*: rooms\.csv"):
            await toolset.call("book", {"room": "1"})


async def test_what_make_raises_reaches_clients_without_worlds() -> None:
    def make() -> hotel.Hotel:
        raise FileNotFoundError("rooms.csv")

    server = MCPServer("hotel", log_level="ERROR")
    current = mcp_bridge.worlds(server, make=make)

    @server.tool()
    def book(room: str) -> str:
        return current().book(room)

    async with Client(server) as client:
        with pytest.raises(MCPError, match=r"make= of worlds raised FileNotFoundError.*rooms\.csv"):
            await client.call_tool("book", {"room": "1"})


async def test_annotations_that_are_text_are_shown_without_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Postponed:
        def __init__(self, seed: "int" = 0) -> "None":
            pass

    monkeypatch.setenv(CONTROL_ENV, "1")
    server = MCPServer("hotel", log_level="ERROR")
    current = mcp_bridge.worlds(server, make=Postponed)

    @server.tool()
    def show() -> str:
        return str(current())

    async with mcp_bridge.connect(server) as toolset:
        with pytest.raises(mcp_bridge.SourceError, match=r"does not fit Postponed\(seed: int = 0\): "):
            async with toolset.open_world("a", {"sed": 7}):
                pass
