"""Messages over a server process's standard input and output, one a line. The process and all that it starts are one
process group, which is ended as a whole, with what has left the group. POSIX.

In place of the SDK's transport, which takes 19 s for a line of 20 MB, keeps lines of any length, leaves what a wrapper
started where the wrapper itself ends in time, and lets a server that reads nothing hold up who calls it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage

from ..daemon_threads import call_in_daemon_thread
from .messages import CLOSED, Incoming, LineSplitter, LongLine, ToClient, written
from .watchdog import MARK, strays, watchdog

# ---------------------------------------------------------------------------------------------------------------------
# The last lines that a server's process wrote to stderr, kept without ever growing.

_KEPT_BYTES = 16_384
_STDERR_CHUNK = 65_536


class StderrTail:
    """A pipe whose write end a child gets as its stderr. `follow` reads it; only the end is kept."""

    def __init__(self) -> None:
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self.file: TextIO = os.fdopen(write_fd, "w")
        """What to hand to the child as its stderr."""
        self._kept = b""

    async def follow(self) -> None:
        """Read until every holder of the write end is gone. Run it beside the session, and cancel it."""
        while True:
            await anyio.wait_readable(self._read_fd)
            if self._read_once() == 0:
                return

    def close_write_end(self) -> None:
        """Drop this process's copy once the child has its own."""
        self.file.close()

    def close(self) -> None:
        """Keep what is still in the pipe and give the file descriptors back."""
        self.file.close()
        if self._read_fd >= 0:
            while self._read_once():
                continue
            os.close(self._read_fd)
            self._read_fd = -1

    def text(self, *, lines: int = 15) -> str:
        """The last lines; bytes that are not UTF-8 are shown as replacement characters."""
        return "\n".join(self._kept.decode("utf-8", errors="replace").rstrip().splitlines()[-lines:])

    def _read_once(self) -> int | None:
        """How many bytes came; 0 at the end of the pipe, `None` where nothing is there yet."""
        try:
            chunk = os.read(self._read_fd, _STDERR_CHUNK)
        except BlockingIOError:
            return None
        self._kept = (self._kept + chunk)[-_KEPT_BYTES:]
        return len(chunk)


# ---------------------------------------------------------------------------------------------------------------------

EOF_GRACE_S = 2.0
"""How long a server may take to end after its standard input was closed, before SIGTERM."""
TERM_GRACE_S = 2.0
"""From SIGTERM to SIGKILL."""
_REAP_S = 2.0
_POLL_S = 0.01
_LONGEST_POLL_S = 0.1
_CHUNK = 262_144
_MUCH = 16_384
_WANTS_A_PROCESSOR = "RD"
"""States of proc(5): running or waiting for a processor, waiting for a disk."""


class ServerProcess:
    """A running server. `read` and `write` belong to one task each."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str | None, stderr: TextIO) -> None:
        """Raises `OSError` where it cannot be started."""
        self._mark = secrets.token_hex(8)
        self._popen = subprocess.Popen(
            list(command),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**env, MARK: self._mark},
            cwd=cwd,
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        watchdog.watch(self.pid, self._mark)
        self._ticks = 0
        """Of processor time, of all members, when it was last looked at."""

    @property
    def pid(self) -> int:
        """Of the process that was started, and of its group."""
        return self._popen.pid

    def has_computed(self) -> bool:
        """Whether a member of the group wants a processor, or has had one since this was last asked. Also False where
        the system does not tell."""
        before, self._ticks, wants = self._ticks, 0, False
        for fields in group_members(self.pid).values():
            wants = wants or fields[0] in _WANTS_A_PROCESSOR
            self._ticks += int(fields[11]) + int(fields[12])
        return wants or self._ticks - before > 1

    async def read(self) -> bytes:
        """What came on standard output; empty at its end."""
        while True:
            try:
                chunk = os.read(self._stdout.fileno(), _CHUNK)
            except BlockingIOError:
                await anyio.wait_readable(self._stdout.fileno())
            else:
                if len(chunk) >= _MUCH:
                    # A server that writes without a pause must not stop everything else.
                    await anyio.lowlevel.checkpoint()
                return chunk

    async def write(self, data: bytes) -> None:
        """All of `data` to standard input. Raises `OSError` where nobody reads any more."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._stdin.fileno(), left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._stdin.fileno())

    def end_input(self) -> None:
        """Close standard input: nothing more is written."""
        self._stdin.close()

    async def wait(self) -> int:
        """Wait until it has ended. Returns its exit status, negative for a signal; its group may live on."""
        while (status := self._popen.poll()) is None:  # noqa: ASYNC110 - no event tells of it on every system
            await anyio.sleep(_POLL_S)
        return status

    async def stop(self, *, grace_s: float = EOF_GRACE_S) -> None:
        """Close standard input, wait, then end the whole group and what has left it: SIGTERM, and SIGKILL where that is
        not heard.

        Bounded; shield it. `read` must go on meanwhile: a server that cannot write cannot end.
        """
        self._stdin.close()
        with anyio.move_on_after(grace_s):
            await self.wait()
        # Also where the server ended by itself: what it started may not have.
        if await self._signal(signal.SIGTERM) and not await self._all_gone(TERM_GRACE_S):
            await self._signal(signal.SIGKILL)
            await self._all_gone(_REAP_S)
        watchdog.forget(self.pid)

    def release(self) -> None:
        """Give the pipes back, when no task uses them any more."""
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    async def _all_gone(self, limit_s: float) -> bool:
        pause = _POLL_S
        with anyio.move_on_after(limit_s):
            while self._popen.poll() is None or _lives(self.pid) or await self._strays():
                await anyio.sleep(pause)
                # A look reads a file for each process of the machine: not a hundred times a second.
                pause = min(2 * pause, _LONGEST_POLL_S)
            return True
        return False

    async def _strays(self) -> list[int]:
        """What has left the group. In a thread: a look reads a file for each process of the machine."""
        return await call_in_daemon_thread(lambda: strays({self.pid: self._mark}), name="strays")

    async def _signal(self, number: int) -> bool:
        """Whether there was anybody to signal."""
        left = await self._strays()
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return bool(left)
        except PermissionError:
            pass  # zombies on macOS, or members of another user: wait for them as for the others
        return True


def _lives(group: int) -> bool:
    """Whether the group has a member that is more than a zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path("/proc/self/stat").exists() or any(fields[0] != "Z" for fields in group_members(group).values())


def group_members(group: int) -> dict[int, list[str]]:
    """Of each process of the group the fields of its `stat`, from the state on (proc(5)), where the system has such
    files."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of the program, in brackets, may hold anything.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if len(fields) > 12 and int(fields[2]) == group:
            found[int(stat.parent.name)] = fields
    return found


# ---------------------------------------------------------------------------------------------------------------------

_FLUSH_S = 0.5


class StdioStreams:
    """The messages of one process, for the SDK's client."""

    def __init__(self, process: ServerProcess, incoming: Incoming, on_end: Callable[[str], None]) -> None:
        """`on_end` hears that nothing more will come, and why where the server is not the one who ended it."""
        self._process = process
        self._incoming = incoming
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

    async def _read(self, to_client: ToClient) -> None:
        lines = LineSplitter(self._incoming.limit)
        with contextlib.suppress(OSError):
            try:
                with to_client, contextlib.suppress(*CLOSED):
                    while not self._fault and (chunk := await self._process.read()):
                        self._has_spoken = True
                        for line in lines.feed(chunk):
                            for message in self._messages(line):
                                await to_client.send(message)
            finally:
                self._on_end(self._fault)
            while await self._process.read():
                continue

    async def _write(self, from_client: MemoryObjectReceiveStream[SessionMessage], to_client: ToClient) -> None:
        try:
            async for message in from_client:
                if (text := await written(message, to_client)) is not None:
                    await self._process.write(text.encode() + b"\n")
        except OSError:
            # It may still be alive, but hears nothing more: the calls in flight must not wait for it.
            to_client.close()
        finally:
            self._flushed.set()

    def _messages(self, line: bytes | LongLine) -> Iterator[SessionMessage]:
        """The session ends where a line is too long and it cannot be told what it answers."""
        if isinstance(line, LongLine) and not line.can_be_skipped:
            self._fault = (
                f"a line of {line.told} came on stdout, above max_answer_mb of the server, and could not be skipped"
            )
        if isinstance(line, LongLine) or line.strip():
            yield from self._incoming.messages(line, "wrote a line to stdout")
