"""A source of worlds that stands before another one and is otherwise like it."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_bridge.records import LeftOut, Tool
from mcp_bridge.world import WorldSource


class WrappedSource:
    """Base of sources that record or spoil another: says of itself what that one says."""

    def __init__(self, source: WorldSource) -> None:
        self.source = source

    @property
    def tools(self) -> Sequence[Tool]:
        return self.source.tools

    @property
    def name(self) -> str:
        return str(getattr(self.source, "name", "") or type(self.source).__name__)

    @property
    def has_state(self) -> bool:
        return bool(getattr(self.source, "has_state", True))

    @property
    def can_setup(self) -> bool:
        return bool(getattr(self.source, "can_setup", True))

    @property
    def left_out(self) -> Sequence[LeftOut]:
        return tuple(getattr(self.source, "left_out", ()))

    @property
    def simulated(self) -> bool:
        """Whether calls change nothing real. Connected tools are asked which of theirs may destroy something."""
        live = getattr(self.source, "live_destructive", None)
        return bool(getattr(self.source, "simulated", live is not None and not live))
