"""What all sessions with one server have in common, made once: compiled schemas, the listing, the discovery."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.server import Server

from ..toolsets.acceptance import Acceptance
from ..toolsets.result_checks import ResultCheck
from .serving import Caller

QuickChecks = dict[str, tuple[dict[str, Any], Acceptance]]
"""By tool: the very schema that it was listed with, and what says quickly that a result satisfies it."""


@dataclass(frozen=True)
class Listing:
    """A complete answer to `tools/list`, as the handler gave it and as a client reads it."""

    given: types.ListToolsResult
    read: types.ListToolsResult
    header_maps: dict[str, dict[tuple[str, ...], str]]
    output_schemas: dict[str, dict[str, Any] | None]
    quick: QuickChecks


@dataclass(frozen=True)
class Adopted:
    """What a session made of what a server said of itself."""

    result: types.DiscoverResult
    options: tuple[Any, ...]
    """What it depends on beside that."""
    fields: dict[str, Any]
    envelope: dict[str, Any]
    caller: Caller


class Shared:
    """The common part of the sessions with one server. Grows with the schemas it has seen, not with the sessions."""

    def __init__(self) -> None:
        self.discovered: tuple[object, types.DiscoverResult] | None = None
        """The server object and what it said of itself."""
        self.template: Client | None = None
        """A client that was made and is not entered, for others to be made of it."""
        self.listing: Listing | None = None
        self.adopted: Adopted | None = None
        self._server_info: tuple[Server[Any], dict[str, Any], bool] | None = None
        self._checks: dict[str, ResultCheck] = {}

    def keep_discovered(self, server: object, discovered: types.DiscoverResult) -> None:
        self.discovered = (server, discovered)

    def server_info(self, server: Server[Any]) -> tuple[dict[str, Any], bool]:
        """What the server stamps on its results, and whether it holds text alone."""
        if self._server_info is None or self._server_info[0] is not server:
            stamp = server.server_info_stamp
            self._server_info = (server, stamp, all(type(value) is str for value in stamp.values()))
        return self._server_info[1:]

    def check(self, tool: str, schema: dict[str, Any]) -> ResultCheck:
        """What judges results of a tool by its output schema. Raises `RuntimeError` where that is not a valid one."""
        # As text, because Python holds `True` and `1` to be equal and JSON Schema does not.
        key = json.dumps([tool, schema], sort_keys=True)
        if key not in self._checks:
            try:
                self._checks[key] = ResultCheck(tool, schema)
            except ValueError as error:
                raise RuntimeError(str(error)) from error
        return self._checks[key]
