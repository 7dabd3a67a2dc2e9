"""Tool calls a second, over HTTP and in process, beside raw POSTs and the SDK's own client; opening; concurrency.

    python tests/benchmarks/tool_calls.py [--rounds 3] [--seconds 2] [--sessions 256 1024] [--parts in-process]

The server is an `MCPServer` whose one tool returns a structured result with an output schema; over HTTP it runs in a
process of its own, the same for all. Every contender's sessions are open before the first is measured; then they take
turns. "bridge" is the whole of it: a world for each session, arguments validated, a ledger, limits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from pydantic import BaseModel

ARGUMENTS = {"order_id": "A-1"}
MODERN = "2026-07-28"
PARTS = ("http", "in-process", "functions", "openings", "concurrency")
Call = Callable[[], Awaitable[Any]]


# ---------------------------------------------------------------------------------------------------------------------
# The servers


class Order(BaseModel):
    order_id: str
    status: str
    total: float
    items: list[str]


async def get_order(order_id: str, verbose: bool = False) -> Order:
    """Read an order."""
    return Order(order_id=order_id, status="open", total=12.5, items=["a", "b"])


def high_level() -> Any:
    """The SDK's `MCPServer`."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench", log_level="WARNING")

    server.add_tool(get_order)

    @server.tool()
    async def wait() -> str:
        await asyncio.sleep(0.5)
        return "waited"

    return server


def low_level() -> Any:
    """The SDK's `Server`: the same tool, less between it and the caller."""
    import mcp_types as types
    from mcp.server import Server

    texts = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "order_id": texts,
            "status": texts,
            "total": {"type": "number"},
            "items": {"type": "array", "items": texts},
        },
        "required": ["order_id", "status", "total", "items"],
    }
    takes = {"type": "object", "properties": {"order_id": texts}, "required": ["order_id"]}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="get_order", input_schema=takes, output_schema=schema)])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        order = {"order_id": params.arguments["order_id"], "status": "open", "total": 12.5, "items": ["a", "b"]}
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(order))], structured_content=order)

    return Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)


def serve() -> None:
    """Over HTTP; prints the port once it listens."""
    import socket

    import uvicorn

    # Named as TCP: else asyncio leaves Nagle's algorithm on, and each answer waits 40 ms for an acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    print(listening.getsockname()[1], flush=True)
    # Sessions wait for their turn longer than the usual five seconds, and the SDK's do not survive a closed connection.
    config = uvicorn.Config(high_level().streamable_http_app(), log_level="error", timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listening])


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The URL of a server in another process."""
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------------------------------------------------------------
# The contenders: each opens its sessions and gives one function for each that makes a call


@contextlib.asynccontextmanager
async def raw_posts(url: str, sessions: int) -> AsyncIterator[list[Call]]:
    """The request that the SDK's client would send, and its answer as JSON: nothing else."""
    import aiohttp

    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "get_order",
    }
    prefix = "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": MODERN,
        f"{prefix}clientInfo": {"name": "bench", "version": "1"},
        f"{prefix}clientCapabilities": {},
    }
    params = {"name": "get_order", "arguments": ARGUMENTS, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def call() -> None:
            async with http.post(url, data=json.dumps(body), headers=headers) as response:
                assert "result" in json.loads(await response.read())

        yield [call] * sessions


@contextlib.asynccontextmanager
async def sdk_over_http(url: str, sessions: int, *, shared: bool) -> AsyncIterator[list[Call]]:
    """The SDK's client, its sessions on one pool of connections or on one each."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    tls = httpx2.create_ssl_context()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    ended = asyncio.Event()

    async def own(*, task_status: anyio.abc.TaskStatus[Call]) -> None:
        # Each in a task of its own: a thousand of the SDK's clients do not nest in one.
        async with contextlib.AsyncExitStack() as stack:
            client = one if shared else httpx2.AsyncClient(verify=tls, timeout=None, limits=limits)
            if not shared:
                await stack.enter_async_context(client)
            transport = streamable_http_client(url, http_client=client)
            task_status.started(_of_client(await stack.enter_async_context(Client(transport))))
            await ended.wait()

    async with (
        httpx2.AsyncClient(verify=tls, timeout=None, limits=limits) as one,
        anyio.create_task_group() as owners,
    ):
        yield [await owners.start(own) for _ in range(sessions)]
        ended.set()


@contextlib.asynccontextmanager
async def sdk_in_process(server: Any, sessions: int, *, mode: str) -> AsyncIterator[list[Call]]:
    """The SDK's client on a server object."""
    from mcp import Client

    async with contextlib.AsyncExitStack() as stack:
        yield [_of_client(await stack.enter_async_context(Client(server, mode=mode))) for _ in range(sessions)]


@contextlib.asynccontextmanager
async def bridge(source: Any, sessions: int) -> AsyncIterator[list[Call]]:
    """Worlds of a toolset, each on a session of its own."""
    from mcp_bridge import connect

    if isinstance(source, str):
        source = {"mcpServers": {"bench": {"url": source, "toolbake": {"isolation": "session"}}}}
    async with connect(source) as toolset, contextlib.AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(toolset.open_world(f"bench-{n}")) for n in range(sessions)]
        yield [_of_world(world) for world in worlds]


def _of_client(client: Any) -> Call:
    async def call() -> None:
        result = await client.call_tool("get_order", ARGUMENTS)
        assert not result.is_error

    return call


def _of_world(world: Any) -> Call:
    async def call() -> None:
        result = await world.call("get_order", ARGUMENTS)
        assert not result.is_error

    return call


# ---------------------------------------------------------------------------------------------------------------------
# Measuring


@dataclass
class Figures:
    """What one contender did, round by round."""

    rates: list[float] = field(default_factory=list)
    """Calls a second."""
    cpu_us: list[float] = field(default_factory=list)
    """Microseconds of this process's processor time for each call."""

    def row(self, name: str, first: Figures) -> str:
        ratio = statistics.median(a / b for a, b in zip(self.rates, first.rates, strict=True))
        spread = f"{min(self.rates):.0f} to {max(self.rates):.0f}"
        return (
            f"| {name} | {statistics.median(self.rates):.0f} | {spread} | {ratio:.2f} | "
            f"{statistics.median(self.cpu_us):.0f} |"
        )


async def burst(calls: list[Call], seconds: float) -> tuple[float, float]:
    """Calls a second with all sessions calling one after the other, and processor microseconds a call."""
    made = 0
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    end = began + seconds

    async def caller(call: Call) -> None:
        nonlocal made
        while time.perf_counter() < end:
            await call()
            made += 1

    await asyncio.gather(*[caller(call) for call in calls])
    return made / (time.perf_counter() - began), (time.process_time() - cpu) / made * 1e6


async def compare(contenders: dict[str, Any], *, rounds: int, seconds: float) -> dict[str, Figures]:
    """All contenders in turns, `rounds` times."""
    figures = {name: Figures() for name in contenders}
    async with contextlib.AsyncExitStack() as stack:
        opened = {name: await stack.enter_async_context(contender) for name, contender in contenders.items()}
        for calls in opened.values():
            # The first call of a session compiles schemas and makes a connection.
            await asyncio.gather(*[call() for call in calls])
        for number in range(rounds):
            for name, calls in opened.items():
                rate, cpu_us = await burst(calls, seconds)
                figures[name].rates.append(rate)
                figures[name].cpu_us.append(cpu_us)
                print(f"round {number}: {name}: {rate:.0f} calls/s, {cpu_us:.0f} us", flush=True)
    return figures


def table(figures: dict[str, Figures], against: str) -> list[str]:
    lines = [
        f"| | calls a second, median | spread | {against} = 1 | client's CPU, µs a call |",
        "| --- | --- | --- | --- | --- |",
    ]
    first = next(iter(figures.values()))
    return lines + [one.row(name, first) for name, one in figures.items()]


async def opening_seconds(contender: Any) -> tuple[float, float]:
    """By the clock, and of this process's processor time."""
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    async with contender:
        return time.perf_counter() - began, time.process_time() - cpu


async def waiting_seconds(source: Any) -> tuple[float, float]:
    """Eight calls of half a second at once in one session: the SDK's client, the bridge."""
    from mcp import Client

    from mcp_bridge import connect

    async def eight(call: Callable[[], Awaitable[Any]]) -> float:
        await call()
        began = time.perf_counter()
        await asyncio.gather(*[call() for _ in range(8)])
        return time.perf_counter() - began

    async with Client(source) as client:
        sdk = await eight(lambda: client.call_tool("wait", {}))
    async with connect(source) as toolset, toolset.open_world("bench") as world:
        ours = await eight(lambda: world.call("wait", {}))
    return sdk, ours


# ---------------------------------------------------------------------------------------------------------------------
# The page


async def over_http(rounds: int, seconds: float, sessions: list[int]) -> list[str]:
    lines = ["### Over HTTP", ""]
    for count in sessions:
        with served() as url:
            contenders: dict[str, Any] = {"raw aiohttp POSTs": raw_posts(url, count)}
            if count <= 256:
                contenders["SDK's client, one shared pool"] = sdk_over_http(url, count, shared=True)
            contenders["SDK's client, a pool each"] = sdk_over_http(url, count, shared=False)
            contenders["bridge"] = bridge(url, count)
            figures = await compare(contenders, rounds=rounds, seconds=seconds)
        lines += [f"{count} sessions, streamable HTTP, revision {MODERN}:", "", *table(figures, "raw"), ""]
    return lines


async def in_process(rounds: int, seconds: float) -> list[str]:
    lines = ["### In process", ""]
    for name, server in (("MCPServer", high_level()), ("lowlevel Server", low_level())):
        contenders = {
            "SDK's client, auto": sdk_in_process(server, 256, mode="auto"),
            "SDK's client, legacy": sdk_in_process(server, 256, mode="legacy"),
            "bridge": bridge(server, 256),
        }
        figures = await compare(contenders, rounds=rounds, seconds=seconds)
        lines += [f"256 sessions, {name}, results validated against the output schema:", "", *table(figures, "SDK"), ""]
    return lines


def function_contenders() -> dict[str, Any]:
    """A plain function as a tool, its arguments validated; the SDK has it as a tool of an `MCPServer`."""
    return {
        "SDK's client on an `MCPServer`": sdk_in_process(high_level(), 256, mode="auto"),
        "bridge on the function": bridge(get_order, 256),
    }


async def functions(rounds: int, seconds: float) -> list[str]:
    figures = await compare(function_contenders(), rounds=rounds, seconds=seconds)
    return ["### A Python function as a tool", "", "256 sessions, arguments validated:", "", *table(figures, "SDK"), ""]


async def openings(rounds: int) -> list[str]:
    names = ["SDK's client, auto", "bridge, a world each"]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    server = low_level()
    for number in range(rounds):
        contenders = (sdk_in_process(server, 2048, mode="auto"), bridge(server, 2048))
        for name, contender in zip(names, contenders, strict=True):
            taken[name].append(await opening_seconds(contender))
            print(f"round {number}: opening: {name}: {taken[name][-1][0]:.2f} s", flush=True)
    lines = ["### Opening 2 048 sessions in process", ""]
    lines += ["| | seconds, median | spread | processor seconds, median |", "| --- | --- | --- | --- |"]
    for name, times in taken.items():
        clock = [one for one, _ in times]
        cpu = statistics.median(one for _, one in times)
        lines.append(f"| {name} | {statistics.median(clock):.2f} | {min(clock):.2f} to {max(clock):.2f} | {cpu:.2f} |")
    return [*lines, ""]


async def concurrency(rounds: int) -> list[str]:
    lines = ["### Eight calls of 0.5 s at once in one session", "", "| | seconds, median |", "| --- | --- |"]
    with served() as url:
        for place, source in (("in process", high_level()), ("over HTTP", url)):
            pairs = [await waiting_seconds(source) for _ in range(rounds)]
            for name, times in (("SDK's client", [a for a, _ in pairs]), ("bridge", [b for _, b in pairs])):
                lines.append(f"| {name}, {place} | {statistics.median(times):.3f} |")
    return [*lines, ""]


def section(
    *, rounds: int = 3, seconds: float = 2.0, sessions: tuple[int, ...] = (256, 1024), parts: Sequence[str] = PARTS
) -> str:
    """The result as Markdown."""

    async def all_of_it() -> list[str]:
        measured = {
            "http": lambda: over_http(rounds, seconds, list(sessions)),
            "in-process": lambda: in_process(rounds, seconds),
            "functions": lambda: functions(rounds, seconds),
            "openings": lambda: openings(rounds),
            "concurrency": lambda: concurrency(rounds),
        }
        return [line for part in PARTS if part in parts for line in await measured[part]()]

    head = [
        "## Tool calls: the bridge beside the SDK's client and raw POSTs",
        "",
        f"All sessions call at once for {seconds:g} s, the contenders in turns, {rounds} rounds. The ratio is the "
        "median of the rounds'. The tool has a structured result, which every client validates; the bridge also "
        f"validates the arguments. Load average of the machine at the beginning: {os.getloadavg()[0]:.1f}.",
        "",
    ]
    return "\n".join([*head, *asyncio.run(all_of_it())]).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--sessions", type=int, nargs="+", default=[256, 1024])
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure; all of it if not given"
    )
    parser.add_argument("--serve", action="store_true", help="serve over HTTP instead; for the program itself")
    options = parser.parse_args()
    if options.serve:
        serve()
    else:
        print(
            section(
                rounds=options.rounds, seconds=options.seconds, sessions=tuple(options.sessions), parts=options.parts
            )
        )


if __name__ == "__main__":
    main()
