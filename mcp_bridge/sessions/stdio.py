"""Messages over a process's standard input and output, one a line.

In place of the SDK's transport, which takes 19 s for a line of 20 MB, keeps lines of any length, leaves what a wrapper
started where the wrapper itself ends in time, and lets a server that reads nothing hold up who calls it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from ..access.redaction import redacted
from .messages import LineSplitter, LongLine, instead_of, message_in, too_large, written
from .processes import EOF_GRACE_S, ServerProcess

logger = logging.getLogger(__name__)

_FLUSH_S = 0.5
_SHOWN = 200

Reading = MemoryObjectSendStream[SessionMessage | Exception]


class StdioStreams:
    """The messages of one process, for the SDK's client."""

    def __init__(
        self,
        process: ServerProcess,
        *,
        label: str,
        max_answer_bytes: int,
        secrets: Sequence[str],
        on_end: Callable[[str], None],
    ) -> None:
        """`on_end` hears that nothing more will come, and why where the server is not the one who ended it."""
        self._process = process
        self._label = label
        self._limit = max_answer_bytes
        self._secrets = tuple(secrets)
        self._on_end = on_end
        self._flushed = anyio.Event()
        self._has_spoken = False
        self._fault = ""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """The two streams. Leaving the block ends the process and its group, also when cancelled, within bounds."""
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        # Without an end: a server that reads nothing must not hold up who gives up on it.
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage](float("inf"))
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read, to_client)
                group.start_soon(self._write, from_client, to_client)
                try:
                    yield from_server, to_server
                finally:
                    with anyio.CancelScope(shield=True):
                        # Lets the reader go on to its end: a server that cannot write cannot end.
                        from_server.close()
                        to_server.close()
                        with anyio.move_on_after(_FLUSH_S):
                            await self._flushed.wait()
                        # One that has said nothing yet is still starting and does not look at its input.
                        await self._process.stop(grace_s=EOF_GRACE_S if self._has_spoken else 0.0)
                    group.cancel_scope.cancel()
        finally:
            self._process.release()
            for stream in (to_client, from_server, to_server, from_client):
                stream.close()

    async def _read(self, to_client: Reading) -> None:
        lines = LineSplitter(self._limit)
        with contextlib.suppress(OSError):
            try:
                with to_client, contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    while not self._fault and (chunk := await self._process.read()):
                        self._has_spoken = True
                        for line in lines.feed(chunk):
                            message = self._message(line)
                            if message is not None:
                                await to_client.send(message)
            finally:
                self._on_end(self._fault)
            while await self._process.read():
                continue

    async def _write(self, from_client: MemoryObjectReceiveStream[SessionMessage], to_client: Reading) -> None:
        try:
            async for message in from_client:
                text = written(message)
                if isinstance(text, str):
                    await self._process.write(text.encode() + b"\n")
                    continue
                if text is not None:
                    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                        await to_client.send(text)
        except OSError:
            # It may still be alive, but hears nothing more: the calls in flight must not wait for it.
            to_client.close()
        finally:
            self._flushed.set()

    def _message(self, line: bytes | LongLine) -> SessionMessage | None:
        if isinstance(line, LongLine):
            return self._instead_of(line)
        if not line.strip():
            return None
        # Not strict: one broken letter in a text is no reason to lose an answer.
        message = message_in(line.decode(errors="replace"))
        if message is None:
            shown = redacted(line[:_SHOWN].decode(errors="replace"), self._secrets)
            logger.warning("%s wrote a line to stdout that is no MCP message: %s", self._label, shown)
            return instead_of(line)
        return message

    def _instead_of(self, line: LongLine) -> SessionMessage | None:
        """An error for the request that the line answers. The whole session ends where that cannot be told."""
        megabytes = f"{line.size / 1e6:.1f} MB"
        size = megabytes if line.ended else f"more than {megabytes}"
        answers = line.answers()
        fault = too_large(size, self._limit)
        if not line.ended or answers is None:
            self._fault = (
                f"a line of {size} came on stdout, above max_answer_mb of the server, and could not be skipped"
            )
        if answers is None:
            return None
        return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=answers, error=fault.as_error()))
