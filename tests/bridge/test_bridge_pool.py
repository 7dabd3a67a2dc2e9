"""Where worlds get their sessions from: spares that are ready and healthy, a limit that makes worlds wait."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.server.lowlevel import Server

import mcp_bridge
from mcp_bridge import ServerDied, SourceError
from mcp_bridge.sessions import pool as health
from mcp_bridge.sessions.pool import SessionPool
from mcp_bridge.sessions.session import Session, open_session
from mcp_bridge.sessions.transports import Transport
from mcp_bridge.sources.specs import ServerObjectSpec

BREAKING = [sys.executable, str(Path(__file__).parent / "servers" / "breaking.py")]


class Started:
    """The processes of one server: a file for each that was started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def config(self, **options: Any) -> dict[str, Any]:
        entry = {"command": BREAKING[0], "args": [*BREAKING[1:], "--started", str(self.folder)]}
        # With the revision given, a slow start is not taken for an old server and begun twice.
        return {"mcpServers": {"breaking": {**entry, "toolbake": {"protocol": "2026-07-28", **options}}}}

    def all(self) -> list[int]:
        return [int(name) for name in os.listdir(self.folder)]

    def alive(self) -> list[int]:
        return [pid for pid in self.all() if psutil.pid_exists(pid) and _status(pid) != psutil.STATUS_ZOMBIE]

    async def until(self, count: int) -> None:
        with anyio.fail_after(60):
            while len(self.all()) < count:  # noqa: ASYNC110 - another process cannot set an event of ours
                await anyio.sleep(0.01)


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path / "started")


async def pid_of(world: Any) -> int:
    return int((await world.call("pid", {})).text)


async def test_who_opens_one_world_pays_for_one_process(started: Started) -> None:
    async with mcp_bridge.connect(started.config()) as toolset:
        async with toolset.open_world("one") as world:
            pid = await pid_of(world)
        assert started.all() == [pid]
    assert not started.alive()


async def test_while_worlds_are_opened_the_next_ones_find_a_process_that_is_ready(started: Started) -> None:
    async with mcp_bridge.connect(started.config(warm=2)) as toolset:
        async with toolset.open_world("one"), toolset.open_world("two"):
            await started.until(4)
            before = started.all()
            async with toolset.open_world("three") as world:
                assert await pid_of(world) in before
                await started.until(5)
    assert not started.alive()


async def test_without_warm_sessions_a_process_is_started_for_each_world_alone(started: Started) -> None:
    async with mcp_bridge.connect(started.config(warm=0)) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            assert sorted(started.all()) == sorted([await pid_of(one), await pid_of(two)])


async def test_worlds_wait_for_one_of_the_most_sessions_and_a_log_line_says_so(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    most_alive = 0
    # Without a spare, which may be started beside the last world.
    async with mcp_bridge.connect(started.config(max_sessions=2, warm=0)) as toolset:

        async def live(number: int) -> None:
            nonlocal most_alive
            async with toolset.open_world(f"w{number}") as world:
                await world.call("echo", {})
                most_alive = max(most_alive, len(started.alive()))

        with caplog.at_level(logging.WARNING):
            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(live, number)
    assert most_alive <= 2
    assert len(started.all()) == 5
    assert "all 2 sessions of breaking" in caplog.text
    assert not started.alive()


async def test_worlds_whose_sessions_died_go_on_where_no_more_than_theirs_may_be_open(started: Started) -> None:
    async with mcp_bridge.connect(started.config(max_sessions=2, warm=0)) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            before = {await pid_of(one), await pid_of(two)}
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            with anyio.fail_after(60):
                while started.alive():  # noqa: ASYNC110 - another process cannot set an event of ours
                    await anyio.sleep(0.01)
                assert before.isdisjoint({await pid_of(one), await pid_of(two)})


async def test_a_world_that_is_given_up_while_it_waits_takes_nothing_with_it(started: Started) -> None:
    async with mcp_bridge.connect(started.config(max_sessions=1)) as toolset:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(toolset.open_world("one"))
            with anyio.move_on_after(0.2) as waiting:
                async with toolset.open_world("never"):
                    pass
            assert waiting.cancelled_caught
            assert (await one.call("echo", {})).text == "1"
        async with toolset.open_world("two") as world:
            assert (await world.call("echo", {})).text == "1"


async def test_a_spare_that_dies_is_replaced_before_a_world_asks_for_it(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    async with mcp_bridge.connect(started.config(warm=1)) as toolset:
        async with toolset.open_world("one") as one, toolset.open_world("two") as two:
            await started.until(3)
            (spare,) = set(started.all()) - {await pid_of(one), await pid_of(two)}
            psutil.Process(spare).kill()
            await started.until(4)
            async with toolset.open_world("three") as world:
                assert await pid_of(world) != spare
    # Where it died before it was ready, that is what the log says.
    assert "another one takes its place" in caplog.text or "could be opened ahead" in caplog.text


async def test_a_spare_that_hangs_is_found_out_when_a_world_asks_for_it(
    started: Started, monkeypatch: pytest.MonkeyPatch, running: Callable[[int], bool]
) -> None:
    monkeypatch.setattr(health, "FRESH_S", 0.0)
    monkeypatch.setattr(health, "ANSWER_S", 0.5)
    async with mcp_bridge.connect(started.config(warm=0)) as toolset:
        (spare,) = started.all()
        os.kill(spare, signal.SIGSTOP)
        async with toolset.open_world("one") as world:
            assert await pid_of(world) != spare
    assert not running(spare), "the process that hung is still there"


async def test_a_server_that_no_longer_starts_fails_its_world_and_no_other(started: Started, tmp_path: Path) -> None:
    gate = tmp_path / "gate.py"
    gate.write_text(
        f"import os, runpy, sys\nif os.path.exists({str(tmp_path / 'shut')!r}): sys.exit('the licence has run out')\n"
        f"sys.argv, sys.path[0] = [{BREAKING[1]!r}], {str(Path(BREAKING[1]).parent)!r}\n"
        f"runpy.run_path({BREAKING[1]!r}, run_name='__main__')\n"
    )
    async with mcp_bridge.connect([sys.executable, str(gate)]) as toolset, toolset.open_world("one") as world:
        (tmp_path / "shut").touch()
        with pytest.raises(ServerDied, match="the licence has run out") as raised:
            async with toolset.open_world("two"):
                pass
        assert raised.value.delivery == "not_sent"
        assert (await world.call("echo", {})).text == "1"


@pytest.mark.parametrize("option", [{"warm": 1}, {"max_sessions": 3}])
async def test_options_of_the_pool_are_refused_where_all_worlds_share_a_session(
    started: Started, option: dict[str, int]
) -> None:
    with pytest.raises(SourceError, match=f"{next(iter(option))} does nothing, because all worlds share one session"):
        async with mcp_bridge.connect(started.config(isolation="shared", **option)):
            pass


@settings(max_examples=40)
@given(
    warm=st.integers(0, 3),
    most=st.integers(1, 4),
    plans=st.lists(st.tuples(st.sampled_from(["ends", "dies", "given up"]), st.integers(0, 3)), max_size=12),
)
def test_whatever_leases_do_no_limit_is_passed_and_no_session_is_left(
    warm: int, most: int, plans: list[tuple[str, int]]
) -> None:
    anyio.run(_leases, warm, most, plans)


async def _leases(warm: int, most: int, plans: list[tuple[str, int]]) -> None:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="t", input_schema={"type": "object"})])

    transport = Transport(
        ServerObjectSpec("one", None, factory=lambda: Server("one", on_list_tools=list_tools)), connect_timeout_s=60
    )
    opened: list[Session] = []
    served: list[Session] = []

    async with anyio.create_task_group() as group:

        async def opening() -> Session:
            session = await open_session(transport, group)
            opened.append(session)
            assert sum(not one.dead for one in opened) <= most
            return session

        first = await opening()
        pool = SessionPool(opening, group, first, label="one", warm=warm, most=most)

        async def lease(plan: str, pauses: int) -> None:
            with anyio.CancelScope() as scope:
                if plan == "given up":
                    group.start_soon(cancel_later, scope, pauses)
                session = await pool.lease()
                try:
                    assert not session.dead
                    assert session not in served, "two leases had one session"
                    served.append(session)
                    for _ in range(pauses):
                        await anyio.lowlevel.checkpoint()
                    if plan == "dies":
                        # As a world does that looks for another session, finds none and ends.
                        await pool.give_back(session)
                finally:
                    with anyio.CancelScope(shield=True):
                        await pool.give_back(session)

        async def cancel_later(scope: anyio.CancelScope, pauses: int) -> None:
            for _ in range(pauses):
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as leases:
                for plan, pauses in plans:
                    leases.start_soon(lease, plan, pauses)
            await pool.aclose()
    assert all(session.dead for session in opened)
