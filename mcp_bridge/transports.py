"""Opens the SDK's client for each kind of server. Imports `mcp`, which takes seconds: load it late."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from typing import Any, Literal

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, Implementation

from .control import CONTROL_ENV
from .redaction import redacted
from .specs import HttpSpec, ServerObjectSpec, ServerSpec, StdioSpec
from .stderr import StderrTail

Era = Literal["auto", "legacy"]

_legacy_commands: set[tuple[str, ...]] = set()
"""Commands whose servers die of the SDK's first question; learned once for each process of ours."""

_MOST_STARTS = max(2, os.cpu_count() or 2)


class Transport:
    """How to reach one server, again for each session. Holds what its sessions share."""

    def __init__(self, spec: ServerSpec, *, connect_timeout_s: float) -> None:
        self.spec = spec
        self.connect_timeout_s = connect_timeout_s
        # A start takes a core for a second: more at once would only run into the time limit.
        self.starts = anyio.CapacityLimiter(_MOST_STARTS)
        self._ssl: ssl.SSLContext | None = None

    @property
    def era(self) -> Era:
        """How to open the next session: `legacy` for commands known to need it."""
        return "legacy" if self._command in _legacy_commands else "auto"

    def remember_legacy(self) -> None:
        _legacy_commands.add(self._command)

    @property
    def _command(self) -> tuple[str, ...]:
        spec = self.spec
        return (spec.command, *spec.args) if isinstance(spec, StdioSpec) else ()

    @contextlib.asynccontextmanager
    async def client(self, era: Era, notes: Notes) -> AsyncIterator[Client]:
        """An entered client. Enter and leave it in one task. `notes` gathers what explains a failure."""
        spec = self.spec
        if isinstance(spec, StdioSpec):
            opened = _stdio(spec, era, notes)
        elif isinstance(spec, HttpSpec):
            opened = self._http(spec, notes)
        else:
            opened = _in_process(spec)
        async with opened as client:
            yield client

    @contextlib.asynccontextmanager
    async def _http(self, spec: HttpSpec, notes: Notes) -> AsyncIterator[Client]:
        if self._ssl is None:
            # Making one takes 50 ms: all sessions share it. Each has a client of its own, because the
            # cost of one shared connection pool grows with the sessions.
            self._ssl = httpx2.create_ssl_context()

        async def note_status(response: httpx2.Response) -> None:
            if response.status_code >= 400:
                notes.http_status = response.status_code

        # No read limit here: a call's own time limit is the bridge's.
        timeout = httpx2.Timeout(self.connect_timeout_s, read=None)
        async with httpx2.AsyncClient(
            headers=dict(spec.headers), timeout=timeout, verify=self._ssl, event_hooks={"response": [note_status]}
        ) as http:
            transport = streamable_http_client(spec.url, http_client=http)
            async with Client(transport, client_info=_client_info()) as client:
                yield client


class Notes:
    """What one attempt at a session left behind, for the message when it fails."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets
        self.http_status: int | None = None
        self.stderr: StderrTail | None = None

    def explain(self) -> str:
        """The end of the server's stderr and the HTTP status, where there are any; secrets replaced."""
        parts = []
        if self.http_status is not None:
            parts.append(f" The server answered HTTP {self.http_status}.")
        if self.stderr is not None:
            text = self.stderr.text()
            parts.append(f" The end of its stderr:\n{text}" if text else " It wrote nothing to stderr.")
        return redacted("".join(parts), self._secrets)

    def redact(self, text: str) -> str:
        return redacted(text, self._secrets)


@contextlib.asynccontextmanager
async def _stdio(spec: StdioSpec, era: Era, notes: Notes) -> AsyncIterator[Client]:
    env = {**get_default_environment(), CONTROL_ENV: "1", **spec.env}
    parameters = StdioServerParameters(
        command=spec.command, args=list(spec.args), env=env, cwd=spec.cwd, encoding_error_handler="replace"
    )
    tail = notes.stderr = StderrTail()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(tail.follow)
            async with Client(_forgetting_write_end(parameters, tail), mode=era, client_info=_client_info()) as client:
                yield client
            group.cancel_scope.cancel()
    finally:
        tail.close()


@contextlib.asynccontextmanager
async def _forgetting_write_end(parameters: StdioServerParameters, tail: StderrTail) -> AsyncIterator[Any]:
    async with stdio_client(parameters, errlog=tail.file) as streams:
        tail.close_write_end()
        yield streams


@contextlib.asynccontextmanager
async def _in_process(spec: ServerObjectSpec) -> AsyncIterator[Client]:
    server = spec.factory() if spec.factory is not None else spec.server
    async with Client(server, client_info=_client_info()) as client:
        yield client


def _client_info() -> Implementation:
    return Implementation(name="toolbake", version="1")


def is_closed(error: BaseException) -> bool:
    """Whether the SDK says that the connection is gone. A server may send -32000 too, with a text of its own."""
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message == "Connection closed"
