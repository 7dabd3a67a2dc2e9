"""Destructive tools that are real. Training explores: what it can destroy, it will."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..errors import SourceError
from ..records import Tool
from ..sources.options import ServerOptions
from .allow_list import is_named

logger = logging.getLogger(__name__)


def is_destructive(tool: Tool, *, unmarked: bool = False) -> bool:
    """Whether a tool says that it may destroy something, and not also that it only reads.

    `unmarked`: count one that says nothing of itself too. MCP's default of `destructiveHint` is true, but most servers
    annotate nothing, and a guard that refuses them all would only be switched off.
    """
    says = tool.annotations
    if says.read_only:
        return False
    return bool(says.destructive) or (unmarked and says.destructive is None)


def dangerous(tools: Iterable[Tool], options: ServerOptions) -> list[Tool]:
    """The destructive ones among a live source's tools that its options do not allow."""
    return [
        tool
        for tool in tools
        if is_destructive(tool, unmarked=options.unmarked_are_destructive)
        and not is_named(tool.name_at_source or tool.name, options.allow_destructive)
    ]


def require_known(tools: Iterable[Tool], allowed: Iterable[str]) -> None:
    """Raises `SourceError` where a name or a pattern in `allowed` fits none of the tools."""
    known = [tool.name for tool in tools]
    for name in allowed:
        if not any(is_named(one, [name]) for one in known):
            raise SourceError(f"allow_destructive names {name!r}, which is none of the tools: {', '.join(known)}")


def refuse_in_training(live: Iterable[Tool], allowed: Iterable[str]) -> None:
    """Raises `SourceError` that names the tools and what to do. `live`: see `Toolset.live_destructive`.

    `allowed`: names as the policy sees them, or patterns.
    """
    names = tuple(allowed)
    refused = [tool for tool in live if not is_named(tool.name, names)]
    if not refused:
        return
    shown = "; ".join(f"{tool.name!r} of {tool.source}" for tool in refused)
    first = refused[0]
    own = first.name_at_source or first.name
    raise SourceError(
        f"training would call destructive tools for real, thousands of times: {shown}. Train in a simulated backend "
        "(a sandbox, or a server with control tools). To leave a tool out, name it in mcp.json: "
        f'"toolbake": {{"deny": [{_quoted(own)}]}}. To train on it all the same: "toolbake": {{"allow_destructive": '
        f"[{_quoted(own)}]}} there, or config={{'allow_destructive': [{first.name!r}]}}"
    )


def warn_of(live: Iterable[Tool]) -> None:
    """Log a warning that names them, where rollouts are played that nobody trains on. `live`: as above."""
    if names := [tool.name for tool in live]:
        logger.warning("these tools may destroy something real, and the policy may call them: %s", ", ".join(names))


def _quoted(name: str) -> str:
    return f'"{name}"'
