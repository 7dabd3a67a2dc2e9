"""From which level on a client wants to hear the log of the servers behind this one."""

from __future__ import annotations

from typing import Any, get_args

import mcp_types as types
from mcp.server.connection import allowed_log_levels
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

_LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)
_UNASKED = "info"
"""Where a client that shook hands has not chosen a level."""
_KEY = "toolbake/log_level"


def keep_level(kept: dict[str, Any], params: types.SetLevelRequestParams) -> types.EmptyResult:
    """`logging/setLevel`. `kept`: what is kept with the client's connection."""
    kept[_KEY] = params.level
    return types.EmptyResult()


def levels_of(context: Any, kept: dict[str, Any]) -> frozenset[str]:
    """The levels that go to the client of a request: by its connection, and since 2026-07-28 by the request itself."""
    if context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return frozenset(allowed_log_levels(context.protocol_version, context.meta))
    return frozenset(_LEVELS[_LEVELS.index(kept.get(_KEY, _UNASKED)) :])
