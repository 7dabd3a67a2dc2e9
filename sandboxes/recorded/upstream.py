"""The recorder's side towards the real server: one session for each session of a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from mcp_bridge.control import CONTROL_META
from mcp_bridge.errors import SourceError
from mcp_bridge.records import Tool, ToolAnnotations
from mcp_bridge.sources.specs import HttpSpec, ServerObjectSpec, ServerSpec, StdioSpec

from .asking import Questions, declared

if TYPE_CHECKING:
    import mcp_types as types

    from mcp_bridge.sessions.session import Session
    from mcp_bridge.sessions.transports import Transport

MOST_SESSIONS = 256
"""At once: over stdio each is a process."""


def only_server(source: Any, server: str | None) -> ServerSpec:
    """The one server behind `source`. Raises `SourceError` where there are several and `server` names none of them."""
    from mcp_bridge.sources.identify import identify

    specs = identify(source)
    servers = [spec for spec in specs if isinstance(spec, StdioSpec | HttpSpec | ServerObjectSpec)]
    if len(servers) < len(specs):
        raise SourceError(
            "only an MCP server can be recorded from outside; for functions, OpenAPI files and sandboxes use "
            "sandboxes.recorded.record(toolset, path) in Python"
        )
    names = ", ".join(repr(spec.name) for spec in servers)
    if server is not None:
        servers = [spec for spec in servers if spec.name == server]
        if not servers:
            raise SourceError(f"there is no server {server!r}; the servers are {names}")
    if len(servers) != 1:
        raise SourceError(f"a recorder stands before one server; choose with --server: {names}")
    if servers[0].options.faults is not None:
        raise SourceError(
            f"{servers[0].label} has faults, and a recorder writes what the real server says; remove them"
        )
    return servers[0]


@dataclass
class Upstream:
    """A session with the real server."""

    session: Session
    answered: frozenset[str] | None
    """What its client answers of what the server asks; None before a client has said so."""
    questions: Questions
    learned: Sequence[types.Tool] | None = None
    """The tools, as they were when the cassette heard of them."""


class Upstreams:
    """Open sessions with the real server, by the key of whoever they are for."""

    def __init__(self, spec: ServerSpec, group: anyio.abc.TaskGroup, *, connect_timeout_s: float) -> None:
        self._spec = spec
        self._connect_timeout_s = connect_timeout_s
        self._transports: dict[frozenset[str], Transport] = {}
        self._group = group
        self._lock = anyio.Lock()
        self._open: dict[str, Upstream] = {}

    async def get(self, key: str, answered: frozenset[str] | None = None) -> Upstream:
        """The session of a key, opened when it is first asked for. Raises `SourceError` where that fails.

        `answered`: what the client answers of what the server asks; None where nobody knows it yet. The session that
        was opened without knowing it is replaced where the client answers anything.
        """
        async with self._lock:
            found = self._open.get(key)
            if found is not None and found.answered is None and answered:
                del self._open[key]
                await found.session.close()
                found = None
            if found is None:
                if len(self._open) >= MOST_SESSIONS:
                    raise SourceError(f"{MOST_SESSIONS} sessions are open; end some, or start another recorder")
                found = self._open[key] = await self._opened(answered)
            elif found.answered is None:
                found.answered = answered
            return found

    async def _opened(self, answered: frozenset[str] | None) -> Upstream:
        from mcp_bridge.sessions.opening import open_session
        from mcp_bridge.sessions.session import CannotOpen
        from mcp_bridge.sessions.transports import Transport

        known = answered or frozenset()
        if known not in self._transports:
            self._transports[known] = Transport(
                self._spec, connect_timeout_s=self._connect_timeout_s, handlers=declared(known)
            )
        try:
            session = await open_session(self._transports[known], self._group)
        except CannotOpen as error:
            raise SourceError(str(error)) from error
        return Upstream(session, answered, Questions(session.client))

    async def close(self, key: str) -> None:
        """End the session of a key, if there is one."""
        found = self._open.pop(key, None)
        if found is not None:
            await found.session.close()

    async def aclose(self) -> None:
        """End all sessions."""
        for key in list(self._open):
            await self.close(key)


def as_tools(listed: Sequence[types.Tool]) -> list[Tool]:
    """The server's tools as records, control tools left out."""
    found = []
    for tool in listed:
        if CONTROL_META in (tool.meta or {}):
            continue
        hints = tool.annotations
        annotations = (
            {
                "read_only": hints.read_only_hint,
                "destructive": hints.destructive_hint,
                "idempotent": hints.idempotent_hint,
                "open_world": hints.open_world_hint,
            }
            if hints is not None
            else {}
        )
        found.append(
            Tool(
                name=tool.name,
                description=tool.description or "",
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
                annotations=ToolAnnotations(**annotations),
            )
        )
    return found
