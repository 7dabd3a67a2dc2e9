"""What a toolset is made of: its sources, each with its options, and the limits of every call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import SourceError
from ..guard.allow_list import choose
from ..guard.destructive import dangerous
from ..guard.naming import Named, told_apart
from ..records import LeftOut, Tool
from ..sources.options import ServerOptions
from ..world import SaidBySource, WorldSource
from .usable import split_usable


@dataclass(frozen=True)
class Limits:
    """What every call is held to."""

    call_timeout_s: float
    max_result_chars: int


@dataclass(frozen=True)
class Part(SaidBySource):
    """One source among those of a toolset."""

    label: str
    source: WorldSource
    aclose: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Ends what `connect` started; `None` for what the user brought running."""
    options: ServerOptions = field(default_factory=ServerOptions)

    @property
    def is_simulated(self) -> bool:
        """Whether calls change nothing outside their world. Only sources that say so (`simulated`) count."""
        return bool(getattr(self.source, "simulated", False))


@dataclass(frozen=True)
class Offer:
    """What the policy is offered of one part."""

    part: Part
    tools: list[Tool]
    left_out: list[LeftOut]

    @property
    def simulated(self) -> list[Tool]:
        """The tools whose calls change nothing outside their world."""
        return self.tools if self.part.is_simulated else self._named(getattr(self.part.source, "simulated_tools", ()))

    @property
    def live_destructive(self) -> list[Tool]:
        if self.part.is_simulated:
            return []
        told = getattr(self.part.source, "live_destructive", None)
        # Connected tools behind it know the options of their servers.
        return dangerous(self.tools, self.part.options) if told is None else self._named(told)

    def _named(self, at_source: Iterable[Tool]) -> list[Tool]:
        """Those of the tools that the source gave, under the names that they have here."""
        names = {tool.name for tool in at_source}
        return [tool for tool in self.tools if (tool.name_at_source or tool.name) in names]


def offers_of(parts: Sequence[Part]) -> list[Offer]:
    """The tools of all parts under names of their own. Raises `SourceError` where there is none, or two have one name.

    What a source itself left out, and says so in an attribute `left_out`, is kept with the rest. So are tools whose
    schema cannot be used.
    """
    chosen = [_chosen(part) for part in parts]
    named = told_apart(
        [Named(part.label, part.options.namespace, kept) for part, (kept, _) in zip(parts, chosen, strict=True)]
    )
    offers = [
        Offer(part, tools, [*getattr(part.source, "left_out", ()), *left_out])
        for part, tools, (_, left_out) in zip(parts, named, chosen, strict=True)
    ]
    if not any(offer.tools for offer in offers):
        labels = ", ".join(part.label for part in parts)
        dropped = [f"{one.tool!r} ({one.reason})" for offer in offers for one in offer.left_out]
        if dropped:
            raise SourceError(f"{labels}: no tool is left. Left out are {', '.join(dropped)}")
        raise SourceError(f"{labels}: no tools at all; give a source that has some")
    return offers


def _chosen(part: Part) -> tuple[list[Tool], list[LeftOut]]:
    kept, left_out = choose(part.source.tools, part.options, part.label)
    usable, unusable = split_usable(kept, part.label)
    return usable, [*left_out, *unusable]
