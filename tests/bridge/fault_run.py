"""Many calls against servers that fail on purpose, and what became of each: for a test, and for the benchmark."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
from listening_servers import ServerProcess
from servers import call_ledger

import mcp_bridge
from mcp_bridge import OutcomeUnknown, ToolFailure

SERVERS = Path(__file__).parent / "servers"
TOOLS = ("charge", "charge", "set_status", "look")
CONCURRENT_WORLDS = 12
CALL_TIMEOUT_S = 15.0
GIVEN_UP_AFTER_S = 240.0

Way = Literal["stdio", "http", "http-handshake"]


@dataclass
class Tally:
    """What was told of each call, beside what the server wrote down."""

    way: str
    told: dict[str, str] = field(default_factory=dict)
    """Call id to `answered`, `failed` (nothing was done) or `unknown`."""
    ran: Counter[str] = field(default_factory=Counter)
    """Call id to how often it was executed; in brackets what may be repeated."""
    kills: int = 0
    begun: int = 0

    @property
    def once(self) -> int:
        """Answered, and executed once, or again only where that does no harm."""
        return sum(self.told.get(call) == "answered" and (n == 1 or _may_repeat(call)) for call, n in self.ran.items())

    @property
    def repeated(self) -> int:
        """Read-only and idempotent calls that were made again after a lost answer."""
        return sum(n > 1 and _may_repeat(call) for call, n in self.ran.items())

    @property
    def doubled(self) -> int:
        """Calls that must not be repeated, executed more than once."""
        return sum(n > 1 and not _may_repeat(call) for call, n in self.ran.items())

    @property
    def failed(self) -> int:
        return sum(told == "failed" for told in self.told.values())

    @property
    def unknown(self) -> int:
        return sum(told == "unknown" for told in self.told.values())

    @property
    def wrong(self) -> int:
        """Told as answered and never executed, or told as not done and executed though it changes something."""
        answered = sum(told == "answered" and not self.ran[call] for call, told in self.told.items())
        done = sum(told == "failed" and self.ran[call] > 0 and "/look/" not in call for call, told in self.told.items())
        return answered + done

    @property
    def silent(self) -> int:
        """Begun, and nothing told."""
        return self.begun - len(self.told)


def _may_repeat(call: str) -> bool:
    return "/charge/" not in call


async def fault_run(
    way: Way,
    calls: int,
    *,
    seed: int,
    folder: Path,
    kills: int,
    world_calls: int = 10,
    over_stdio: str = "call_ledger.py",
) -> Tally:
    """`calls` calls in worlds of `world_calls`, while servers die `kills` times beside what they do by themselves.

    `over_stdio`: the server that is started for each world where the way is `stdio`.
    """
    tally = Tally(way)
    ledger = folder / f"{way}.ledger"
    ledger.touch()
    chance = random.Random(seed)
    async with _server(way, ledger, seed, deaths=10 / calls, over_stdio=over_stdio) as (source, kill):
        async with mcp_bridge.connect(source, call_timeout_s=CALL_TIMEOUT_S) as toolset:
            kill_at = set(chance.sample(range(calls // 10, calls), kills))
            limiter = anyio.CapacityLimiter(CONCURRENT_WORLDS)

            async def live(number: int) -> None:
                async with limiter:
                    await _live(number)

            async def _live(number: int) -> None:
                left = [f"{way}/{number}/{TOOLS[chance.randrange(4)]}/{one}" for one in range(world_calls)]
                while left:
                    # A world that is lost ends its rollout; the rest of the calls is made in another.
                    await _world(f"{number}-{len(left)}", left)

            async def _world(name: str, left: list[str]) -> None:
                try:
                    async with toolset.open_world(name) as world:
                        while left:
                            if tally.begun in kill_at:
                                kill_at.discard(tally.begun)
                                tally.kills += 1
                                background.start_soon(kill)
                            call = left.pop(0)
                            tally.begun += 1
                            if not await _call(world, call, tally):
                                return
                except ToolFailure:
                    return  # no session for a world: no call was begun

            with anyio.fail_after(GIVEN_UP_AFTER_S + calls / 10):
                async with anyio.create_task_group() as background:
                    async with anyio.create_task_group() as worlds:
                        for number in range(calls // world_calls):
                            worlds.start_soon(live, number)
    tally.ran.update(line.split()[1] for line in ledger.read_text().splitlines())
    return tally


async def _call(world: Any, call: str, tally: Tally) -> bool:
    """Whether the world can go on."""
    try:
        await world.call(call.split("/")[2], {"item": call}, call_id=call)
    except OutcomeUnknown as failure:
        tally.told[call] = "unknown"
        return not failure.world_lost
    except ToolFailure as failure:
        # Of a call that only reads it does not matter whether it was executed.
        tally.told[call] = "failed"
        return not failure.world_lost
    tally.told[call] = "answered"
    return True


@asynccontextmanager
async def _server(
    way: Way, ledger: Path, seed: int, *, deaths: float, over_stdio: str
) -> AsyncIterator[tuple[Any, Any]]:
    """What to connect to, and what kills a server. `deaths`: how likely a child ends by itself in any one call."""
    if way == "stdio":

        async def kill_child() -> None:
            await anyio.to_thread.run_sync(_kill_one_child, str(ledger), seed)

        args = [str(SERVERS / over_stdio), str(ledger), "--seed", str(seed), "--silent", "0.001", "--die", str(deaths)]
        yield {"mcpServers": {"ledger": {"command": sys.executable, "args": args}}}, kill_child
        return
    keeper = await anyio.to_thread.run_sync(Keeper, ledger, seed, way == "http-handshake")
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(keeper.keep)
            yield keeper.url, keeper.kill
            group.cancel_scope.cancel()
    finally:
        await anyio.to_thread.run_sync(keeper.end)


class Keeper:
    """Starts an HTTP server again whenever it has ended, as a supervisor in production would."""

    def __init__(self, ledger: Path, seed: int, handshake: bool) -> None:
        chances = {"cut": 0.01, "silent": 0.001, "die": 0.0005}
        self._server = ServerProcess(call_ledger.app, file=str(ledger), handshake=handshake, seed=seed, **chances)
        self.url = self._server.url

    def _start(self) -> None:
        for _ in range(20):
            try:
                self._server.start()
            except ChildProcessError:
                continue  # killed before it listened
            return
        raise RuntimeError("the ledger server does not start; its stderr is above")

    async def keep(self) -> None:
        while True:
            await anyio.to_thread.run_sync(self._server.process.join, abandon_on_cancel=True)
            await anyio.to_thread.run_sync(self._start)

    async def kill(self) -> None:
        self._server.process.kill()

    def end(self) -> None:
        self._server.kill()


def _kill_one_child(ledger: str, seed: int) -> None:
    import psutil

    children = [one for one in psutil.Process().children(recursive=True) if ledger in _command_of(one)]
    if children:
        random.Random(seed + len(children)).choice(children).kill()


def _command_of(process: Any) -> str:
    import psutil

    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
