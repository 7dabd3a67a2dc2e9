"""One MCP session with a task of its own.

The SDK's client must be entered and left in the same task, and an error of the transport cancels the task that
entered it. So each session has an owner task that does nothing else; calls come from any task, many at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import pydantic
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST

from .errors import ServerDied, ToolFailure
from .records import ErrorKind, ToolResult
from .results import error as error_result
from .results import from_mcp
from .specs import StdioSpec
from .transports import Era, Notes, Transport, is_closed

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

_MOST_PAGES = 1000
_REAP_S = 10.0
"""Longer than the SDK takes to stop a process: closing stdin, SIGTERM and SIGKILL, two seconds each."""
_GOODBYE_S = 2.0
"""How long a server without a process of ours may take to hear that its session ends."""


class CannotOpen(Exception):
    """A session did not come up. The message is complete and holds no secret."""

    def __init__(self, message: str, *, died: bool) -> None:
        super().__init__(message)
        self.died = died
        """True where the server started and then ended, which a server of the older era may do."""


class Session:
    """A session in an owner task; made by `open_session`."""

    def __init__(self, transport: Transport, era: Era, deadline: float) -> None:
        self._transport = transport
        self._era = era
        self._deadline = deadline
        self._notes = Notes(transport.spec.secrets)
        self._client: Client | None = None
        self._failure: Exception | None = None
        self._scope = anyio.CancelScope()
        self._stop = anyio.Event()
        self._settled = anyio.Event()
        self._ended = anyio.Event()
        self.listed: list[mcp_types.Tool] = []
        """The server's tools, control tools included, as they were when the session opened."""

    @property
    def dead(self) -> bool:
        """True once the connection is known to be gone or the session was closed."""
        return self._stop.is_set() or self._ended.is_set()

    async def start(self, group: anyio.abc.TaskGroup) -> None:
        """Open the session; its owner task runs in `group`. Raises `CannotOpen`."""
        group.start_soon(self._own)
        try:
            await self._settled.wait()
        except BaseException:
            self._scope.cancel()
            raise
        if self._client is None:
            raise self._cannot_open()

    async def close(self) -> None:
        """End the session and wait until its process, if it has one, is gone. Bounded, also when shielded."""
        self._stop.set()
        with anyio.move_on_after(_REAP_S if isinstance(self._transport.spec, StdioSpec) else _GOODBYE_S):
            await self._ended.wait()
        # A server that does not answer the goodbye is left; stopping a process is shielded from this.
        self._scope.cancel()
        await self._ended.wait()

    async def refresh(self) -> None:
        """List the tools again; raises `ToolFailure` where the session no longer answers."""
        client = self._alive()
        try:
            with anyio.fail_after(self._transport.connect_timeout_s):
                self.listed = await _list_tools(client)
        except (MCPError, RuntimeError, TimeoutError, anyio.ClosedResourceError, pydantic.ValidationError) as error:
            raise await self._broken("tools/list", error) from error

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> ToolResult:
        """Call a tool. The caller sets the time limit; a cancelled call leaves the session usable.

        Raises `ServerDied` where the connection ended and `ToolFailure` where the server broke the protocol.
        """
        client = self._alive()
        try:
            return from_mcp(await client.call_tool(name, arguments, meta=meta))  # type: ignore[arg-type]
        except MCPError as error:
            if _is_policys(error):
                kind: ErrorKind = "invalid_arguments" if error.code == INVALID_PARAMS else "tool_error"
                return error_result(error.message or "The tool refused the call without a message.", kind)
            raise await self._broken(name, error) from error
        # RuntimeError: the result violates the server's own output schema (as the SDK reports it).
        except (RuntimeError, pydantic.ValidationError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise await self._broken(name, error) from error

    def _alive(self) -> Client:
        if self._client is None or self.dead:
            raise self._died("the session is over")
        return self._client

    async def _own(self) -> None:
        try:
            with self._scope:
                with anyio.CancelScope(deadline=self._deadline) as limit:
                    async with self._transport.client(self._era, self._notes) as client:
                        self.listed = await _list_tools(client)
                        limit.deadline = math.inf
                        self._client = client
                        self._settled.set()
                        await self._stop.wait()
                if limit.cancelled_caught:
                    self._failure = TimeoutError()
        except Exception as error:
            # Kept for whoever starts or calls; raised here it would end every other session.
            self._failure = error
        finally:
            self._ended.set()
            self._settled.set()

    def _cannot_open(self) -> CannotOpen:
        label = self._transport.spec.label
        failure = _innermost(self._failure)
        explained = self._notes.explain()
        if isinstance(failure, TimeoutError):
            limit = self._transport.connect_timeout_s
            return CannotOpen(
                f"{label} did not answer within {limit:g} s and was given up. Is it an MCP server that speaks on "
                f"this transport? If it is only slow, raise connect_timeout_s.{explained}",
                died=False,
            )
        if isinstance(self._transport.spec, StdioSpec):
            return self._cannot_start(failure, explained)
        if self._notes.http_status in {401, 403}:
            return CannotOpen(f"{label} refused us; set the right `headers` for it.{explained}", died=False)
        told = self._notes.redact(f"{type(failure).__name__}: {failure}")
        return CannotOpen(
            f"{label} cannot be reached ({told}). Is the server running, and is the path right?{explained}", died=False
        )

    def _cannot_start(self, failure: BaseException | None, explained: str) -> CannotOpen:
        spec = self._transport.spec
        assert isinstance(spec, StdioSpec)
        if failure is not None and is_closed(failure):
            return CannotOpen(
                f"{spec.label} ended before it answered as an MCP server. Run the command by hand to see why."
                f"{explained}",
                died=True,
            )
        if isinstance(failure, FileNotFoundError | NotADirectoryError | PermissionError):
            if spec.cwd is not None and failure.filename == spec.cwd:
                return CannotOpen(
                    f"{spec.label}: cwd {self._notes.redact(spec.cwd)!r} is no folder that can be entered.", died=False
                )
            return CannotOpen(
                f"{spec.label}: the command {self._notes.redact(spec.command)!r} cannot be started "
                f"({failure.strerror}). Give the full path of a program, or install it so that it is on PATH.",
                died=False,
            )
        told = self._notes.redact(f"{type(failure).__name__}: {failure}")
        return CannotOpen(f"{spec.label} cannot be started as an MCP server ({told}).{explained}", died=False)

    async def _broken(self, name: str, error: Exception) -> ToolFailure:
        """The failure to raise for `error`; a session whose connection ended is closed first."""
        label = self._transport.spec.label
        gone = is_closed(error) or isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError)
        if gone:
            await self.close()
        if gone or self._ended.is_set():
            return self._died(f"during {name!r}")
        told = self._notes.redact(str(error))
        if isinstance(error, MCPError) and error.code == INVALID_REQUEST and "session" in told.lower():
            return ServerDied(f"{label} no longer knows the session, during {name!r}: {told}")
        code = f" (code {error.code})" if isinstance(error, MCPError) else ""
        return ToolFailure(f"{label} failed on {name!r}: {type(error).__name__}{code}: {told}")

    def _died(self, when: str) -> ServerDied:
        failure = _innermost(self._failure)
        why = f" ({self._notes.redact(f'{type(failure).__name__}: {failure}')})" if failure is not None else ""
        return ServerDied(f"the connection to {self._transport.spec.label} ended, {when}{why}.{self._notes.explain()}")


async def open_session(transport: Transport, group: anyio.abc.TaskGroup) -> Session:
    """A started session. Over stdio a server that dies of the first question is started once more, as one of the
    older era, within the same time limit. Raises `CannotOpen`."""
    async with transport.starts:
        deadline = anyio.current_time() + transport.connect_timeout_s
        session = Session(transport, transport.era, deadline)
        try:
            await session.start(group)
        except CannotOpen as first:
            retry = isinstance(transport.spec, StdioSpec) and first.died and transport.era == "auto"
            if not retry or anyio.current_time() >= deadline:
                raise
            session = Session(transport, "legacy", deadline)
            await session.start(group)
            transport.remember_legacy()
        return session


def was_refused(failure: ToolFailure) -> bool:
    """Whether the server itself answered with an error, so that it did not do what was asked."""
    cause = failure.__cause__
    return isinstance(cause, MCPError) and not is_closed(cause)


async def _list_tools(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise RuntimeError(f"tools/list has not ended after {_MOST_PAGES} pages")


def _is_policys(error: MCPError) -> bool:
    """Whether a protocol error tells the policy of its own mistake: bad arguments, or an application's own code.

    JSON-RPC 2.0 reserves -32768 to -32000; what lies outside is for applications.
    """
    return error.code == INVALID_PARAMS or not -32768 <= error.code <= -32000


def _innermost(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
