"""A network that loses requests and answers, between a client and a real HTTP server that it also kills."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
from listening_servers import ServerProcess
from servers import bank

FAULTS = ("drop_request", "drop_answer", "cut_answer", "error_status", "kill")


class FaultyNetwork:
    """Forwards HTTP requests one by one. Tool calls meet faults at random: `rate` of them, `kills` of those at most.

    `drop_request`: never forwarded. `drop_answer`: forwarded and answered; the answer is thrown away. `cut_answer`:
    half of it arrives. `error_status`: a 503 of a gateway. `kill`: the server is killed while it has the request.
    """

    def __init__(self, log: Path, *, seed: int, rate: float, kills: int) -> None:
        self._log = log
        self._random = random.Random(seed)
        self._rate = rate
        self._kills = kills
        self._stack = AsyncExitStack()
        self._starting = anyio.Lock()
        self._server: ServerProcess | None = None
        self.faults: Counter[str] = Counter()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._log.touch()
        server = self._server = ServerProcess(bank.app, log=str(self._log))
        self._stack.callback(server.kill)
        group = await self._stack.enter_async_context(anyio.create_task_group())
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        self._stack.callback(group.cancel_scope.cancel)
        self.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
        group.start_soon(self._listen, listener)
        return self

    async def _listen(self, listener: anyio.abc.Listener[anyio.abc.SocketStream]) -> None:
        async with listener:
            await listener.serve(self._serve)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            try:
                while await self._pass_on(client):
                    pass
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _pass_on(self, client: anyio.abc.SocketStream) -> bool:
        """One request; false where the connection is to be closed."""
        request = await _read_message(client)
        if b'"tools/call"' not in request:
            # Passed on as it comes: among these is the stream on which the server tells of changes.
            async for part in self._parts(request):
                await client.send(part)
            return False
        fault = self._choose()
        self.faults[fault] += 1
        if fault == "drop_request":
            return False
        if fault == "error_status":
            await client.send(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
            return True
        if fault == "kill":
            await self._kill_during(request)
            return False
        answer = await self._ask(request)
        if fault == "drop_answer" or not answer:
            return False
        await client.send(answer if fault == "none" else answer[: len(answer) // 2])
        return False  # the server was told to close, so the end of the connection is the end of the answer

    def _choose(self) -> str:
        if self._random.random() >= self._rate:
            return "none"
        fault = self._random.choice(FAULTS if self._kills else FAULTS[:-1])
        self._kills -= fault == "kill"
        return fault

    async def _ask(self, request: bytes) -> bytes:
        """The whole answer of the server; empty where it died."""
        return b"".join([part async for part in self._parts(request)])

    async def _parts(self, request: bytes) -> AsyncIterator[bytes]:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        assert self._server is not None
        try:
            async with await anyio.connect_tcp("127.0.0.1", self._server.port) as server:
                await server.send(b"\r\n".join([*lines, b"connection: close", b"", body]))
                async for part in server:
                    yield part
        except (OSError, anyio.BrokenResourceError):
            return

    async def _kill_during(self, request: bytes) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._ask, request)
            # Any moment will do: whether the server has done it by then is what nobody can know.
            await anyio.sleep(self._random.random() * 0.02)
            async with self._starting:
                assert self._server is not None
                await anyio.to_thread.run_sync(self._server.restart)


async def _read_message(stream: anyio.abc.SocketStream) -> bytes:
    """A request with its body. Raises `anyio.EndOfStream` between two of them."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = (int(lengths[0].partition(b":")[2]) if lengths else 0) - len(body)
    while missing > 0:
        part = await stream.receive()
        data, missing = data + part, missing - len(part)
    return data
