"""What a toolset shows a model, and what it does not: as a table, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_bridge.records import LeftOut, Tool, WorldKind
    from mcp_bridge.sessions.handlers import Handlers

    from .token_costs import TokenCosts

_LONGEST_SOURCE = 40
_KINDS = {
    "copy": "a copy of its own",
    "control": "a world of its own in the server",
    "process": "a process of its own",
    "session": "a session of its own",
    "shared": "the same as all others",
    "unknown": "what the source gives",
}


@dataclass(frozen=True)
class Listing:
    """The tools of a source, as `mcp_bridge.connect` gives them."""

    tools: Sequence[Tool]
    left_out: Sequence[LeftOut]
    live_destructive: frozenset[str]
    """Names of tools that training refuses."""
    worlds: Sequence[WorldKind] = ()
    """What each rollout gets of each source."""


def listing_of(source: Any, handlers: Handlers | None = None, connect_timeout_s: float = 20.0) -> Listing:
    """Connect, look, and leave. `handlers`: as in training; some servers offer more tools to clients that they can ask.

    Raises `mcp_bridge.SourceError`.
    """
    import anyio

    from ..connecting import connect

    async def ask() -> Listing:
        async with connect(source, connect_timeout_s=connect_timeout_s, handlers=handlers) as toolset:
            live = frozenset(tool.name for tool in toolset.live_destructive)
            return Listing(toolset.tools, toolset.left_out, live, toolset.worlds)

    return anyio.run(ask)


def as_table(listing: Listing, costs: TokenCosts | None) -> str:
    """A line for each tool: name, source, behaviour, tokens where they were counted; then what each rollout gets of
    each source, and what is left out, and why."""
    rows = [("tool", "from", "behaviour", "tokens")]
    rows += [
        (
            _shown_name(tool),
            _short(tool.source),
            _behaviour(tool, listing),
            str(costs.by_tool[tool.name]) if costs else "?",
        )
        for tool in listing.tools
    ]
    lines = _aligned(rows, numbers=True)
    lines += ["", "Each rollout has:"]
    lines += _aligned(
        [(_short(one.source), _KINDS[one.kind], _freshness(one)) for one in listing.worlds], numbers=False
    )
    if listing.left_out:
        lines += ["", "Left out:"]
        lines += _aligned([(one.tool, _short(one.source), one.reason) for one in listing.left_out], numbers=False)
    return "\n".join(lines)


def as_json(listing: Listing, costs: TokenCosts | None, *, model: str) -> str:
    """Everything the table and the descriptions say, for programs."""
    return json.dumps(
        {
            "model": model,
            "tokens": {"total": costs.total, "around": costs.around} if costs else None,
            "tools": [
                {
                    "name": tool.name,
                    "name_at_source": tool.name_at_source or tool.name,
                    "source": tool.source,
                    "description": tool.description,
                    "input_schema": tool.input_schema,
                    "annotations": tool.annotations.model_dump(exclude_none=True),
                    "refused_in_training": tool.name in listing.live_destructive,
                    "tokens": costs.by_tool[tool.name] if costs else None,
                }
                for tool in listing.tools
            ],
            "worlds": [one.model_dump() for one in listing.worlds],
            "left_out": [one.model_dump() for one in listing.left_out],
        },
        indent=2,
        ensure_ascii=False,
    )


def _shown_name(tool: Tool) -> str:
    return f"{tool.name} ({tool.name_at_source} there)" if tool.name_at_source else tool.name


def _short(source: str) -> str:
    """The name of a source without its command or URL."""
    name = source.partition(" (")[0]
    return name if len(name) <= _LONGEST_SOURCE else f"...{name[3 - _LONGEST_SOURCE :]}"


def _freshness(world: WorldKind) -> str:
    if world.is_fresh is None and world.shares:
        return f"fresh if it keeps no state in what all share: {'; '.join(world.shares)}"
    return {True: "fresh", False: "not fresh: all share its state", None: "fresh if it keeps no state elsewhere"}[
        world.is_fresh
    ]


def _behaviour(tool: Tool, listing: Listing) -> str:
    says = tool.annotations
    if says.read_only:
        return "read-only"
    if tool.name in listing.live_destructive:
        return "destructive and live: refused in training"
    words = ["destructive"] if says.destructive else ["changes"] if says.read_only is False else ["not said"]
    return ", ".join([*words, "idempotent"] if says.idempotent else words)


def _aligned(rows: Sequence[Sequence[str]], *, numbers: bool) -> list[str]:
    """Columns side by side, the last to the right where it holds numbers. What servers write is made harmless."""
    from ..evaluation.safe_text import one_line

    clean = [[one_line(cell) for cell in row] for row in rows]
    last = len(clean[0]) - 1
    widths = [max(len(row[place]) for row in clean) for place in range(last + 1)]
    return [
        "  ".join(
            cell.rjust(width) if numbers and place == last else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in clean
    ]
