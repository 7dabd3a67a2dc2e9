"""Several clients of one server that keeps worlds: the same ids must not meet."""

import sys
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from free_ports import free_port
from mcp.server.lowlevel import Server

from mcp_bridge import SourceError, ToolFailure, World, connect, publish
from mcp_bridge.control_tools import CONTROL_ENV
from sandboxes.helpdesk import Helpdesk


@pytest.fixture
def server() -> Server[Any]:
    return publish(Helpdesk(), control=True)


def _order() -> str:
    orders: dict[str, Any] = Helpdesk().state()["orders"]
    return next(key for key, row in orders.items() if row["status"] == "processing")


async def _status(world: World) -> str:
    state = await world.state()
    assert state is not None
    return str(state["orders"][_order()]["status"])


async def test_two_clients_that_choose_the_same_world_ids_have_worlds_of_their_own(server: Server[Any]) -> None:
    async with connect(server) as first, connect(server) as second:
        async with first.open_world("untrained/1") as one:
            async with second.open_world("untrained/1") as two:
                assert not (await two.call("cancel_order", {"order_id": _order()})).is_error
                assert await _status(two) == "cancelled"
                assert await _status(one) == "processing"
            assert await _status(one) == "processing"


async def test_the_default_worlds_of_two_clients_are_not_one(server: Server[Any]) -> None:
    async with connect(server) as first, connect(server) as second:
        assert not (await first.call("cancel_order", {"order_id": _order()})).is_error
        assert "processing" in (await second.call("get_order", {"order_id": _order()})).text


CLIENT = """
import sys, anyio
from mcp_bridge import connect

async def main():
    async with connect(sys.argv[1]) as toolset, toolset.open_world("grpo/3/1/0"):
        print("open", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def _listens(port: int) -> None:
    with anyio.fail_after(60):
        while True:
            try:
                async with await anyio.connect_tcp("127.0.0.1", port):
                    return
            except OSError:
                await anyio.sleep(0.01)


async def test_a_run_can_be_resumed_against_the_server_on_which_it_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONTROL_ENV, "1")
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    async with anyio.create_task_group() as group:
        group.start_soon(Helpdesk().serve, port)
        await _listens(port)
        async with await anyio.open_process([sys.executable, "-c", CLIENT, url], stderr=None) as client:
            assert client.stdout is not None
            assert await BufferedByteReceiveStream(client.stdout).receive_until(b"\n", 100) == b"open"
            client.kill()
        async with connect(url) as resumed, resumed.open_world("grpo/3/1/0") as world:
            assert await _status(world) == "processing"
        group.cancel_scope.cancel()


@pytest.mark.parametrize("world_id", ["untrained/1", "session/1"])
async def test_a_world_that_the_server_refuses_to_open_again_leaves_the_open_one_alone(
    server: Server[Any], world_id: str
) -> None:
    async with connect(server) as toolset, toolset.open_world(world_id) as world:
        with pytest.raises((SourceError, ToolFailure), match="is open already"):
            async with toolset.open_world(world_id):
                pass
        assert await _status(world) == "processing"
